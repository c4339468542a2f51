/* Components of chains: receive a frame in GPU memory, work on it, pass it on.
 *
 * A chain is made and its processes are started by `partita chain`. A process attaches to its place and then handles one frame after the
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
 *         ... launch on the stream what works on the memory ...
 *         partita_chain_send(component, frame, PARTITA_CHAIN_FOREVER);
 *     }
 *
 * The GPU keeps the order: work on the component's stream comes after what the component before launched on the frame, and no host waits.
 *
 * Threads: a component and its frames belong to the thread that attached; other threads get PARTITA_CHAIN_MISUSE. Attaching makes the
 * device's primary context current on that thread: the one that the CUDA runtime uses.
 *
 * No function ends the process, prints, or takes a signal. The library starts no thread. It needs libcuda.so.1 when it is used.
 *
 * A panic in the library, which would be a bug of it, fails the call that it happens in (PARTITA_CHAIN_FAILED, 0 or a null pointer), and
 * partita_chain_error() says what it was. Every later call of that thread fails too: end the process, and `partita chain` starts the component
 * anew. That holds for the library that `just build`, or `cargo build --profile unwinding -p partita-chain-so`, puts into target/unwinding; in one of another profile a
 * panic prints a line and ends the process by SIGABRT.
 */
#ifndef PARTITA_CHAIN_H
#define PARTITA_CHAIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What functions return. Below zero: an error, of which partita_chain_error() tells more. */
#define PARTITA_CHAIN_OK 0
/* Nothing came, or there was no room, in time. */
#define PARTITA_CHAIN_LATE 1
/* The chain ends, and nothing is left to do. */
#define PARTITA_CHAIN_ENDED 2
/* The frame was dropped because there was no room, as the chain's policy says. */
#define PARTITA_CHAIN_DROPPED 3
/* The chain's file, the driver or the system refused. */
#define PARTITA_CHAIN_FAILED (-1)
/* A null pointer, a handle that is none or no longer one, or another thread than the one that attached. */
#define PARTITA_CHAIN_MISUSE (-2)

/* As a limit: as long as it takes. */
#define PARTITA_CHAIN_FOREVER (-1)

/* Words that travel with a frame. */
#define PARTITA_FRAME_META_WORDS 4

typedef struct partita_component partita_component;
typedef struct partita_frame partita_frame;

/* Takes the place that PARTITA_CHAIN (the chain's file) and PARTITA_COMPONENT (a number from 0) name, on the first visible GPU. What a dead
 * process in this place held is given back. The frames' memory is that of the keeper whose socket PARTITA_KEEPER names; if it names none, the
 * first component allocates it. */
int partita_chain_attach(partita_component **component);

/* As partita_chain_attach, with the file and the component's name, or its number in decimal digits, and the number of the GPU among those visible. */
int partita_chain_attach_to(partita_component **component, const char *file, const char *role, unsigned device);

/* Gives the place back. Refused (PARTITA_CHAIN_MISUSE) while the component has frames. */
int partita_chain_detach(partita_component *component);

/* Waits for the next frame, limit_ns nanoseconds long or as long as it takes: from the component before, or as the first one memory for a
 * new one. PARTITA_CHAIN_OK with a frame; PARTITA_CHAIN_LATE; PARTITA_CHAIN_ENDED. */
int partita_chain_receive(partita_component *component, int64_t limit_ns, partita_frame **frame);

/* The same, for the first component alone. */
int partita_chain_acquire(partita_component *component, int64_t limit_ns, partita_frame **frame);

/* Passes a frame on. It is the caller's no more, whatever is returned, except with PARTITA_CHAIN_LATE. PARTITA_CHAIN_OK; _DROPPED; _LATE;
 * _ENDED: the frame went back to the pool. */
int partita_chain_send(partita_component *component, partita_frame *frame, int64_t limit_ns);

/* Gives a frame back, as the last component. It is the caller's no more. */
int partita_chain_finish(partita_component *component, partita_frame *frame);

/* Gives a frame back that will not be passed on; it is counted as dropped. */
int partita_chain_drop(partita_component *component, partita_frame *frame);

/* The stream (CUstream, cudaStream_t) on which frames are in order; null for a component that is none. */
void *partita_chain_stream(partita_component *component);

/* The component's number, from 0, and how many there are; below zero for one that is none. */
int partita_chain_role(partita_component *component);
int partita_chain_roles(partita_component *component);

/* Of a frame that the component has; 0 for one that is none. Address on the device; bytes that count, and for which there is room; number in the order
 * in which frames were begun. */
uint64_t partita_frame_address(const partita_frame *frame);
uint64_t partita_frame_bytes(const partita_frame *frame);
uint64_t partita_frame_capacity(const partita_frame *frame);
uint64_t partita_frame_sequence(const partita_frame *frame);

/* Says how many bytes of it count, as many as there is room for at most. */
int partita_frame_set_bytes(partita_frame *frame, uint64_t bytes);

/* PARTITA_FRAME_META_WORDS words that travel with it, to be read and written; valid as long as the frame is the caller's. */
uint64_t *partita_frame_meta(partita_frame *frame);

/* Waits for the frame to be in order, and copies between it and host memory: for the first and the last component. */
int partita_frame_write(partita_frame *frame, const void *from, size_t bytes);
int partita_frame_read(partita_frame *frame, uint64_t offset, void *to, size_t bytes);

/* As the last component: waits for the stream, and says whether the GPU has done every component's work. It has not if one of them was
 * killed in the middle. 1 or 0; below zero: an error. */
int partita_frame_is_whole(partita_frame *frame);

/* What went wrong last on this thread, in one line; an empty string if nothing did. Valid until the thread's next call. */
const char *partita_chain_error(void);

#ifdef __cplusplus
}
#endif

#endif
