/* A libcuda that does nothing but call its launch callback: what is left of a
 * launch through it is the hook's own work. Prototypes after cuda.h. */
#include "stub.h"

typedef void (*callback)(void *, int, int, const void *);
static callback subscriber;
static void *argument;
static int enabled;
/* Each stream has a descriptor buffer of its own; here each thread has. */
static __thread uint32_t qmd[96];

int subscribe(uint32_t *handle, callback function, void *user) {
    subscriber = function;
    argument = user;
    *handle = 1;
    return 0;
}

int enable(uint32_t on, uint32_t handle, int domain, int id) {
    if (handle != 1 || domain != 0xb || id != 1) return 1;
    enabled = on;
    return 0;
}

static const void *table[12] = {(void *)sizeof table, 0, 0, (void *)subscribe, 0, 0, (void *)enable};

int cuGetExportTable(const void **out, const void *uuid) {
    static const unsigned char known[16] = {0x2c, 0x8e, 0x0a, 0xd8, 0x07, 0x10, 0xab, 0x4e,
                                            0x90, 0xdd, 0x54, 0x71, 0x9f, 0xe5, 0xf7, 0x4b};
    if (memcmp(uuid, known, 16) != 0) return 1;
    *out = table;
    return 0;
}

int cuInit(unsigned flags) { return flags ? 1 : 0; }

/* GPU n has a UUID of bytes 7 + n, the context 0x1000 * (n + 1), and streams 0x100000 * (n + 1) + …. */
static int gpus = 1;
static __thread uintptr_t current = 0x1000;
void stub_gpus(int count) { gpus = count; }
int cuDeviceGetCount(int *count) { *count = gpus; return 0; }
int cuDeviceGetUuid_v2(void *uuid, int device) { memset(uuid, 7 + device, 16); return 0; }
int cuCtxGetDevice(int *device) { *device = (int)(current / 0x1000) - 1; return 0; }
int cuCtxSetCurrent(void *context) { current = (uintptr_t)context; return 0; }
int cuCtxPushCurrent_v2(void *context) { current = (uintptr_t)context; return 0; }
int cuCtxPopCurrent_v2(void **context) { *context = (void *)current; current = 0x1000; return 0; }
int cuStreamGetCtx(void *stream, void **context) { *context = (void *)((uintptr_t)stream / 0x100000 * 0x1000); return 0; }
int cuStreamGetCaptureInfo_v2(void *stream, unsigned *status, uint64_t *id, void **graph, const void **nodes, size_t *count) {
    *status = 0;
    return 0;
}
int cuPointerGetAttribute(void *value, int attribute, uint64_t pointer) { return 1; }

/* What the program looks at afterwards: the descriptor as the hook left it. */
uint32_t *stub_descriptor(void) { return qmd; }

void stub_build(uint32_t *image, const uint32_t *own_mask) {
    memset(image, 0, sizeof qmd);
    ((unsigned char *)image)[72] = 0x40; /* QMD version 4.0 */
    if (own_mask) {
        image[0] = 0x80000000u;
        memcpy(&image[76], own_mask, 16);
    }
}

void stub_show(uint32_t *image) {
    uint64_t block[11] = {0};
    block[0] = sizeof block | 0x7ffd00000000ull; /* the upper half is garbage on real drivers */
    block[4] = (uintptr_t)image;
    if (enabled) subscriber(argument, 0xb, 1, block);
}

volatile uint64_t stub_launches;

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
    stub_build(qmd, gpus > 1 ? NULL : stream); /* with one GPU a stream stands for a launch whose mask the program has set itself */
    stub_show(qmd);
    stub_launches++;
    return (uintptr_t)function == 0x81100 ? 811 : 0; /* a kernel that launches kernels, in a client of MPS */
}

/* As on hardware, filling memory is a launch of the driver's own. */
int cuMemsetD8_v2(uint64_t pointer, unsigned char value, size_t bytes) {
    stub_build(qmd, NULL);
    stub_show(qmd);
    return 0;
}

int cuFuncGetAttribute(int *value, int attribute, void *function) {
    /* A function at an odd address was compiled for clusters of that many blocks. */
    *value = attribute == 11 && ((uintptr_t)function & 1) ? (int)((uintptr_t)function & 0xff) : 0;
    return 0;
}

int cuKernelGetFunction(void **function, void *kernel) { return 1; }
int cuCtxGetCurrent(void **context) { *context = (void *)current; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)0x1000; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
int cuMemAlloc_v2(uint64_t *pointer, size_t bytes) {
    static volatile uint64_t next = 0x10000000;
    *pointer = __atomic_fetch_add(&next, bytes, __ATOMIC_RELAXED);
    return 0;
}
int cuMemFree_v2(uint64_t pointer) { return 0; }
int cuMemGetAddressRange_v2(uint64_t *base, size_t *bytes, uint64_t pointer) { return 1; }
int cuIpcCloseMemHandle(uint64_t pointer) { return 1; }
int cuCtxGetLimit(size_t *value, unsigned limit) { return 1; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads, size_t shared) {
    *blocks = 2048 / threads;
    return 0;
}
