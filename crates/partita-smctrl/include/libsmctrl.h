/*
 * libsmctrl, implemented by Partita: keeps kernel launches of this process on
 * chosen TPCs of a GPU.
 *
 *     cc prog.c -lsmctrl -lcuda          (libsmctrl.so, or libsmctrl.a)
 *
 * Programs written for, or linked against, the libsmctrl of Bakita and
 * Anderson ("Hardware Compute Partitioning on NVIDIA GPUs", RTAS 2023) run
 * unchanged; see DIFFERENCES.
 *
 * MASKS
 *   A set bit DISABLES a TPC. Bit i is TPC i, which has the SMs 2i and 2i + 1
 *   (one SM a TPC on Pascal and before, except P100) in the numbering of %smid.
 *   A mask that disables every TPC is refused: its launches would never end.
 *
 *   The last bit of a 64-bit mask stands for TPC 63 and all above, as if it
 *   were sign-extended; of a 128-bit mask, bit 127 for TPC 127 and all above.
 *   So masks that are disjoint stay disjoint on every GPU, a mask and its
 *   complement divide the whole GPU, and masks reach every TPC. To name single
 *   TPCs from 64 on, use the _ext functions (128 bits) or the _wide
 *   ones (256 bits: bit i is bit i % 64 of word i / 64).
 *
 * WHICH MASK COUNTS
 *   The most specific one: next, then stream, then global. A next or stream
 *   mask of 0 means "all TPCs", whatever the other masks are; the
 *   libsmctrl_clear_ functions remove a mask. (Most launch descriptors before
 *   Hopper do not distinguish a stream's "all TPCs" from no mask, so the global
 *   mask applies to such a stream there.) The next mask applies to one launch
 *   of the calling thread; the first launch of a CUDA graph counts as one
 *   launch for each of its kernels. A later change of a mask does not affect
 *   work that is already launched.
 *   In a process started by `partita run` the tenant's partition holds too:
 *   masks can narrow it, but not leave it.
 *
 * ERRORS
 *   No function ends the process or prints to standard output. Numbers are
 *   those of <errno.h>, 0 for success. The setters that libsmctrl declares
 *   as void report theirs by libsmctrl_last_error() and one line on standard
 *   error, unless LIBSMCTRL_QUIET is set. To make them return it, define
 *   LIBSMCTRL_SETTERS_RETURN_INT before including this file.
 *     EINVAL    the mask leaves no TPC; a default or destroyed stream
 *     ENODATA   unknown or unproved for this driver: run `partita doctor`
 *     EBUSY     a profiler or another library has the launch callback
 *     ENOTSUP   this GPU, driver or environment cannot do it
 *     ENODEV    no driver, no such GPU
 *     ERANGE    more bits than the mask has; blocks outside of a range
 *     EFAULT    a null pointer
 *     EIO, ETIMEDOUT, ENOSYS, ...  see libsmctrl_error_string()
 *   A function that fails changes nothing.
 *
 * DIFFERENCES to the original
 *   - Bits of global and next masks count TPCs on every GPU. In the original
 *     they are the bits of the hardware's mask, which from Hopper on differ
 *     from board to board. LIBSMCTRL_NUMBERING=physical or
 *     libsmctrl_set_numbering() selects the original's numbering.
 *   - The library writes only to places that are proved for this driver build
 *     and this board. Partita caches such proofs. Without a cached proof, the
 *     program `partita` makes one at the first use, in a separate process,
 *     within seconds. The library finds it beside itself, in PATH, or by
 *     LIBSMCTRL_PARTITA. Without the program, global and next masks still work
 *     up to Hopper, by the kernel driver's report of its numbering; stream
 *     masks are refused.
 *   - GPC and TPC info need no kernel module.
 *   - Global and next masks need a process that sees one GPU
 *     (CUDA_VISIBLE_DEVICES); stream masks work on several.
 *
 * THREADS
 *   Every function can be called on any thread, even while others launch.
 *   Several copies of the library in one process act as one.
 */
#ifndef PARTITA_LIBSMCTRL_H
#define PARTITA_LIBSMCTRL_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __SIZEOF_INT128__
typedef unsigned __int128 uint128_t;
#else
#error "libsmctrl needs a compiler with 128-bit integers"
#endif

#ifdef LIBSMCTRL_SETTERS_RETURN_INT
#define LIBSMCTRL_SETTER int
#else
#define LIBSMCTRL_SETTER void
#endif

/* Initialises the library; every setter does it on demand. From then on the
 * driver calls back into it at each launch. */
int libsmctrl_init(void);
/* The same in a program that uses CUDA already; ENXIO if this thread has no context. */
int libsmctrl_init_from_cuda(void);
/* Whether launches go through the library. */
bool libsmctrl_is_init(void);
/* "partita" and a version. */
const char *libsmctrl_get_version(void);

/* Every launch of the process without a more specific mask. */
LIBSMCTRL_SETTER libsmctrl_set_global_mask(uint64_t mask);
int libsmctrl_set_global_mask_ext(uint128_t mask);
int libsmctrl_set_global_mask_wide(const uint64_t mask[4]);
int libsmctrl_clear_global_mask(void);

/* Every launch on a stream: a cudaStream_t or CUstream that was created. The
 * default streams (0, 1, 2) are refused. */
LIBSMCTRL_SETTER libsmctrl_set_stream_mask(void *stream, uint64_t mask);
LIBSMCTRL_SETTER libsmctrl_set_stream_mask_ext(void *stream, uint128_t mask);
int libsmctrl_set_stream_mask_wide(void *stream, const uint64_t mask[4]);
int libsmctrl_clear_stream_mask(void *stream);

/* The next launch of the calling thread, on any stream. */
LIBSMCTRL_SETTER libsmctrl_set_next_mask(uint64_t mask);
int libsmctrl_set_next_mask_ext(uint128_t mask);
int libsmctrl_set_next_mask_wide(const uint64_t mask[4]);
int libsmctrl_clear_next_mask(void);

/* The mask that ENABLES the TPCs from low to high, exclusive. EINVAL for an
 * empty range, ERANGE beyond the width; 64 bits also name a range that ends with the
 * last TPC of CUDA's device 0. */
int libsmctrl_make_mask(uint64_t *result, uint32_t low, uint32_t high_exclusive);
int libsmctrl_make_mask_ext(uint128_t *result, uint32_t low, uint32_t high_exclusive);

/* Runs a kernel on the stream and checks that its blocks ran on TPCs from low
 * to high, exclusive. ERANGE if one did not; ENOTSUP under MPS, where SM
 * numbers are not the device's. With echo, prints a line on standard error.
 * Does not consume a next mask. */
int libsmctrl_validate_stream_mask(void *stream, int low, int high_exclusive, bool echo);

/* The TPCs of each GPC: a set bit of (*tpcs_for_gpc)[i] is a TPC of GPC i, so
 * ~(*tpcs_for_gpc)[i] is the mask that enables GPC i alone. A cluster
 * of blocks runs within one GPC. dev counts the machine's GPUs by PCI address.
 * The array is valid until the thread calls this again or ends. ERANGE if 64 or
 * 128 bits cannot name a TPC. */
int libsmctrl_get_gpc_info(uint32_t *num_enabled_gpcs, uint64_t **tpcs_for_gpc, int dev);
int libsmctrl_get_gpc_info_ext(uint32_t *num_enabled_gpcs, uint128_t **tpcs_for_gpc, int dev);
/* How many TPCs a GPU has; dev as above. */
int libsmctrl_get_tpc_info(uint32_t *num_tpcs, int dev);
/* The same from CUDA alone; cuda_dev is CUDA's number. ENOTSUP below compute
 * capability 3.5. */
int libsmctrl_get_tpc_info_cuda(uint32_t *num_tpcs, int cuda_dev);

/* What bits of global and next masks count, for masks set from now on. Masks of
 * streams always count TPCs. */
#define LIBSMCTRL_LOGICAL 0
#define LIBSMCTRL_PHYSICAL 1
int libsmctrl_set_numbering(int numbering);
int libsmctrl_get_numbering(void);

/* Launches that could not be masked because their descriptors were of another
 * version than the one known here. After one, setters refuse with ENOTSUP. */
int libsmctrl_get_unmasked_launches(uint64_t *launches);

/* The result of this thread's last call other than these two: a number of
 * <errno.h> or 0, and a text, which is valid until the thread's next failure. */
int libsmctrl_last_error(void);
const char *libsmctrl_error_string(void);

#ifdef __cplusplus
}
#endif

#endif
