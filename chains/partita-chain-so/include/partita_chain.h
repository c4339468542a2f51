/* Components of chains: receive a frame in GPU memory, work on it, pass it on.
 *
 * `partita chain` makes a chain and starts its processes. A process attaches to its place and then handles one frame after the
 * other:
 *
 *     partita_component *component;
 *     if (partita_chain_attach(&component) != PARTITA_CHAIN_OK)
 *         errx(1, "%s", partita_chain_error());
 *     partita_frame *frame;
 *     int got;
 *     while ((got = partita_chain_receive(component, PARTITA_CHAIN_FOREVER, &frame)) == PARTITA_CHAIN_OK) {
 *         CUdeviceptr at = partita_frame_address(frame);
 *         CUstream stream = partita_chain_stream(component);
 *         ... launch work on the memory on this stream ...
 *         partita_chain_send(component, frame, PARTITA_CHAIN_FOREVER);
 *     }
 *
 * The GPU keeps the order: work on the component's stream runs after the work that the component before launched on the frame, and no host waits.
 *
 * Threads: a component and its frames belong to the thread that attached; other threads get PARTITA_CHAIN_MISUSE. Attaching makes the
 * device's primary context current on that thread: the one that the CUDA runtime uses.
 *
 * No function ends the process, prints, or takes a signal. The library starts no thread. It needs libcuda.so.1 when it is used.
 *
 * A panic in the library, which would be a bug of it, fails the call (PARTITA_CHAIN_FAILED, 0 or a null pointer), and partita_chain_error()
 * describes it. Every later call of that thread fails too: end the process, and `partita chain` restarts the component. That holds for the
 * library that `just build`, or `cargo build --profile unwinding -p partita-chain-so`, puts into target/unwinding; with another profile a
 * panic prints a line and ends the process by SIGABRT.
 */
#ifndef PARTITA_CHAIN_H
#define PARTITA_CHAIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Results of functions. Below zero: an error, which partita_chain_error() describes. */
#define PARTITA_CHAIN_OK 0
/* No frame arrived, or there was no room, in time. */
#define PARTITA_CHAIN_LATE 1
/* The chain ends, and no work is left. */
#define PARTITA_CHAIN_ENDED 2
/* The frame was dropped because there was no room, by the chain's policy. */
#define PARTITA_CHAIN_DROPPED 3
/* The chain's file, the driver or the system refused. */
#define PARTITA_CHAIN_FAILED (-1)
/* A null pointer, an invalid or released handle, or another thread than the one that attached. */
#define PARTITA_CHAIN_MISUSE (-2)

/* As a limit: wait without limit. */
#define PARTITA_CHAIN_FOREVER (-1)

/* Words that travel with a frame. */
#define PARTITA_FRAME_META_WORDS 4

typedef struct partita_component partita_component;
typedef struct partita_frame partita_frame;

/* Takes the place that PARTITA_CHAIN (the chain's file) and PARTITA_COMPONENT (a number from 0) name, on the first visible GPU. Frees what a
 * dead process in this place held. The frames' memory comes from the keeper whose socket PARTITA_KEEPER names; without it, the first
 * component allocates the memory. PARTITA_STEER names the method by which the component applies its compute units: "masks" (the default),
 * "green" or "contexts", as `steer` in the chain's definition sets it. PARTITA_TRANSPORT names how frames' content reaches the next
 * component: "ring" (the default), "udp-handle", "unix-handle" or "udp-copy", as `transport` in the definition sets it; all components
 * must have the same. */
int partita_chain_attach(partita_component **component);

/* As partita_chain_attach, with the file and the component's name, or its number in decimal digits, and the number of the GPU among those visible. */
int partita_chain_attach_to(partita_component **component, const char *file, const char *role, unsigned device);

/* Releases the place. Refused (PARTITA_CHAIN_MISUSE) while the component has frames. */
int partita_chain_detach(partita_component *component);

/* Waits for the next frame, for limit_ns nanoseconds or without limit: from the component before, or as the first one memory for a
 * new one. PARTITA_CHAIN_OK with a frame; PARTITA_CHAIN_LATE; PARTITA_CHAIN_ENDED. */
int partita_chain_receive(partita_component *component, int64_t limit_ns, partita_frame **frame);

/* The same, for the first component only. */
int partita_chain_acquire(partita_component *component, int64_t limit_ns, partita_frame **frame);

/* Passes a frame on. The caller then no longer has it, whatever the result, except with PARTITA_CHAIN_LATE. PARTITA_CHAIN_OK; _DROPPED; _LATE;
 * _ENDED: the frame went back to the pool. */
int partita_chain_send(partita_component *component, partita_frame *frame, int64_t limit_ns);

/* Returns a frame, as the last component. The caller then no longer has it. */
int partita_chain_finish(partita_component *component, partita_frame *frame);

/* Returns a frame that will not be passed on; it is counted as dropped. */
int partita_chain_drop(partita_component *component, partita_frame *frame);

/* The stream (CUstream, cudaStream_t) on which frames are in order; null for an invalid component. With green contexts or contexts of MPS it
 * changes with each division: ask again for each frame, and load kernels as CUkernel (cuLibraryGetKernel), which belongs to no context. */
void *partita_chain_stream(partita_component *component);

/* The component's number, from 0, and the number of components; below zero for an invalid component. */
int partita_chain_role(partita_component *component);
int partita_chain_roles(partita_component *component);

/* Of a frame that the component has; 0 for an invalid one. Address on the device; bytes in use, and capacity in bytes; number in the order
 * in which frames were started. */
uint64_t partita_frame_address(const partita_frame *frame);
uint64_t partita_frame_bytes(const partita_frame *frame);
uint64_t partita_frame_capacity(const partita_frame *frame);
uint64_t partita_frame_sequence(const partita_frame *frame);

/* Sets how many bytes of it are in use, at most its capacity. */
int partita_frame_set_bytes(partita_frame *frame, uint64_t bytes);

/* PARTITA_FRAME_META_WORDS words that travel with it, to read and write; valid as long as the caller has the frame. */
uint64_t *partita_frame_meta(partita_frame *frame);

/* Waits for the frame to be in order, and copies between it and host memory: for the first and the last component. */
int partita_frame_write(partita_frame *frame, const void *from, size_t bytes);
int partita_frame_read(partita_frame *frame, uint64_t offset, void *to, size_t bytes);

/* As the last component: waits for the stream, and returns whether the GPU has done every component's work. It has not if one of them was
 * killed meanwhile. 1 or 0; below zero: an error. */
int partita_frame_is_whole(partita_frame *frame);

/* The last error of this thread, in one line; an empty string without one. Valid until the thread's next call. */
const char *partita_chain_error(void);

#ifdef __cplusplus
}
#endif

#endif
