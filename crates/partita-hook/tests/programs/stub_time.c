/* Events and waits of the stub driver: every kernel takes as long as was said last, 10 µs at first, of a clock that nothing else moves. */
#include "stub.h"

extern volatile uint64_t stub_launches;
static volatile uint64_t records, waits, batches, batched;
static volatile int refuses_batches;
static uint64_t kernel_ns = 10000, past_ns, past_launches;
static uint64_t times[1 << 12];
static volatile uintptr_t events;

static uint64_t now_ns(void) { return past_ns + (stub_launches - past_launches) * kernel_ns; }

int cuMemHostRegister_v2(void *start, size_t bytes, unsigned flags) { return 0; }
int cuMemHostGetDevicePointer_v2(uint64_t *device, void *start, unsigned flags) { *device = (uintptr_t)start; return 0; }
int cuStreamWaitValue32_v2(void *stream, uint64_t address, unsigned value, unsigned flags) { waits++; return 0; }
int cuStreamWriteValue32_v2(void *stream, uint64_t address, unsigned value, unsigned flags) { return 0; }
int cuStreamBatchMemOp_v2(void *stream, unsigned count, void *operations, unsigned flags) {
    if (refuses_batches) return 801;
    batches++;
    batched += count;
    return 0;
}
int cuEventDestroy_v2(void *event) { return 0; }
int cuEventCreate(void **event, unsigned flags) { *event = (void *)__sync_add_and_fetch(&events, 1); return 0; }
int cuEventRecord(void *event, void *stream) {
    records++;
    times[(uintptr_t)event % (1 << 12)] = now_ns();
    return 0;
}
int cuEventQuery(void *event) { return 0; }
int cuEventElapsedTime(float *milliseconds, void *start, void *end) {
    *milliseconds = ((double)times[(uintptr_t)end % (1 << 12)] - (double)times[(uintptr_t)start % (1 << 12)]) / 1e6;
    return 0;
}
int cuStreamQuery(void *stream) { return 0; }
int cuStreamCreate(void **stream, unsigned flags) { *stream = (void *)0x7000; return 0; }
int cuStreamIsCapturing(void *stream, unsigned *status) { *status = 0; return 0; }
int cuMemGetAllocationPropertiesFromHandle(void *properties, uint64_t handle) { return 1; }
int cuMemRelease(uint64_t handle) { return 1; }
int cuThreadExchangeStreamCaptureMode(unsigned *mode) { return 0; }

/* Calls for units so far: waits, then records. */
void stub_units(uint64_t out[2]) { out[0] = waits; out[1] = records; }
/* The same for gates: batches of waits, waits in them, waits one by one, records. */
void stub_gates(uint64_t out[4]) { out[0] = batches; out[1] = batched; out[2] = waits; out[3] = records; }
void stub_refuse_batches(void) { refuses_batches = 1; }
/* How long kernels take from now on. */
void stub_take(uint64_t ns) {
    past_ns = now_ns();
    past_launches = stub_launches;
    kernel_ns = ns;
}
