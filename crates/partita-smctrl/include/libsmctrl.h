/*
 * libsmctrl, as Partita has it: keeps kernel launches of this process on
 * chosen TPCs of a GPU.
 *
 *     cc prog.c -lsmctrl -lcuda          (libsmctrl.so, or libsmctrl.a)
 *
 * Programs written for, or linked against, the libsmctrl of Bakita and
 * Anderson ("Hardware Compute Partitioning on NVIDIA GPUs", RTAS 2023) run
 * unchanged; what differs is said under DIFFERENCES.
 *
 * MASKS
 *   A set bit DISABLES a TPC. Bit i is TPC i, which has the SMs 2i and 2i + 1
 *   (one SM a TPC on Pascal and before, except P100) in the numbering of %smid.
 *   A mask that leaves no TPC is refused: its launches would never end.
 *
 *   The last bit of a 64-bit mask stands for TPC 63 and all above, as if it
 *   were sign-extended; of a 128-bit mask, bit 127 for TPC 127 and all above.
 *   So masks that are disjoint stay disjoint on every GPU, a mask and its
 *   complement part the whole GPU, and no TPC is out of reach. To name TPCs
 *   from 64 on one by one, use the _ext functions (128 bits) or the _wide
 *   ones (256 bits: bit i is bit i % 64 of word i / 64).
 *
 * WHICH MASK COUNTS
 *   next, then stream, then global. Each is a wish of its own: a next or
 *   stream mask of 0 is "all TPCs", whatever the farther masks say; the
 *   libsmctrl_clear_ functions take a wish away. (The launch descriptors of
 *   most GPUs before Hopper cannot tell a stream's "all TPCs" from no mask, so
 *   the global one applies to such a stream there.) The next mask belongs to one
 *   launch of the calling thread and is gone after it; the first launch of a
 *   CUDA graph counts as one launch for each of its kernels. Work that is
 *   launched keeps the mask that it was launched with.
 *   In a process started by `partita run` the tenant's partition holds too:
 *   masks can narrow it, and not leave it.
 *
 * ERRORS
 *   No function ends the process or prints to standard output. Numbers are
 *   those of <errno.h>, 0 for success. The setters that were published as
 *   void tell theirs by libsmctrl_last_error() and one line on standard error
 *   (none if LIBSMCTRL_QUIET is set); define LIBSMCTRL_SETTERS_RETURN_INT
 *   before including this file to have them return it.
 *     EINVAL    the mask leaves no TPC; a default stream; a dead stream
 *     ENODATA   not known or not proved for this driver: run `partita doctor`
 *     EBUSY     a profiler or another library has the launch callback
 *     ENOTSUP   this GPU, driver or environment cannot do it
 *     ENODEV    no driver, no such GPU
 *     ERANGE    more bits than the mask has; blocks outside of a range
 *     EFAULT    a null pointer
 *     EIO, ETIMEDOUT, ENOSYS, ...  see libsmctrl_error_string()
 *   A function that fails changes nothing.
 *
 * DIFFERENCES to the original
 *   - Bits of global and next masks count TPCs on every GPU. The original
 *     writes them as the hardware numbers places, which differs from board to
 *     board from Hopper on. LIBSMCTRL_NUMBERING=physical, or
 *     libsmctrl_set_numbering(), brings that numbering back, bit for bit.
 *   - Nothing is written to a place that is not proved for this driver build
 *     and this board. What is proved is kept by Partita; where nothing is kept,
 *     the program `partita` proves it in a process of its own at the first
 *     use, which takes a second or a few (it is looked for beside this
 *     library, in PATH, and by LIBSMCTRL_PARTITA). Without it, global and next
 *     masks still work up to Hopper, by what the kernel driver tells of its
 *     numbering; stream masks are refused.
 *   - GPC and TPC info need no kernel module.
 *   - Global and next masks need a process that sees one GPU
 *     (CUDA_VISIBLE_DEVICES); stream masks work on several.
 *
 * THREADS
 *   Every function may be called on any thread, also while others launch.
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

/* Makes the library ready, which every setter does by itself. From then on the
 * driver calls back into it at each launch. */
int libsmctrl_init(void);
/* The same where CUDA is in use already; ENXIO if this thread has no context. */
int libsmctrl_init_from_cuda(void);
/* Whether launches go through the library. */
bool libsmctrl_is_init(void);
/* "partita" and a version. */
const char *libsmctrl_get_version(void);

/* Every launch of the process that has no nearer mask. */
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

/* The next launch of the calling thread, on whichever stream. */
LIBSMCTRL_SETTER libsmctrl_set_next_mask(uint64_t mask);
int libsmctrl_set_next_mask_ext(uint128_t mask);
int libsmctrl_set_next_mask_wide(const uint64_t mask[4]);
int libsmctrl_clear_next_mask(void);

/* The mask that ENABLES the TPCs from low up to high, exclusive. EINVAL for
 * none, ERANGE beyond the width; 64 bits also name a range that ends with the
 * last TPC of CUDA's device 0. */
int libsmctrl_make_mask(uint64_t *result, uint32_t low, uint32_t high_exclusive);
int libsmctrl_make_mask_ext(uint128_t *result, uint32_t low, uint32_t high_exclusive);

/* Runs a kernel on the stream and checks that its blocks ran on TPCs from low
 * up to high, exclusive. ERANGE if one did not; ENOTSUP under MPS, where SM
 * numbers are not the device's. With echo, a line on standard error. Does not
 * use up a next mask. */
int libsmctrl_validate_stream_mask(void *stream, int low, int high_exclusive, bool echo);

/* The TPCs of each GPC: a set bit of (*tpcs_for_gpc)[i] is a TPC of GPC i, so
 * ~(*tpcs_for_gpc)[i] is the mask that enables GPC i alone. A GPC is what
 * clusters of blocks may share. dev counts the machine's GPUs by PCI address.
 * The array is the thread's until it asks again or ends. ERANGE if 64 or 128
 * bits cannot name a TPC. */
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

/* How this thread's last call went, these two apart: a number of <errno.h> or
 * 0, and a sentence, which is the thread's until its next call that fails. */
int libsmctrl_last_error(void);
const char *libsmctrl_error_string(void);

#ifdef __cplusplus
}
#endif

#endif
