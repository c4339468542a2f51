// Init, devices, contexts, and errors of misuse.
#include "sim.h"

static void identity(void) {
    int count, value, version;
    char name[64], bus[32];
    CUdevice device;
    size_t bytes;
    IS(3, cuDeviceGetCount(&count)); // CUDA_ERROR_NOT_INITIALIZED
    IS(1, cuInit(1));
    OK(cuInit(0));
    OK(cuInit(0));
    OK(cuDriverGetVersion(&version));
    EQ(version, 13000);
    OK(cuDeviceGetCount(&count));
    EQ(count, 1);
    OK(cuDeviceGet(&device, 0));
    IS(101, cuDeviceGet(&device, 1));
    IS(101, cuDeviceGet(&device, -1));
    IS(1, cuDeviceGet(NULL, 0));
    OK(cuDeviceGetName(name, sizeof name, 0));
    TRUE(!strcmp(name, "NVIDIA H200"));
    OK(cuDeviceGetName(name, 7, 0));
    TRUE(!strcmp(name, "NVIDIA"));
    OK(cuDeviceTotalMem_v2(&bytes, 0));
    EQ(bytes, 150109880320ll);
    static const struct { int attribute, value; } known[] = {
        {1, 1024}, {2, 1024}, {4, 64}, {5, 2147483647}, {8, 49152}, {10, 32}, {12, 65536}, {16, 132}, {39, 2048},
        {41, 1}, {75, 9}, {76, 0}, {78, 1}, {81, 233472}, {82, 65536}, {83, 1}, {95, 1}, {97, 232448}, {102, 1},
        {103, 1}, {106, 32}, {111, 1024}, {115, 1}, {120, 1}, {133, 0}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        OK(cuDeviceGetAttribute(&value, known[i].attribute, 0));
        if (value != known[i].value) fprintf(stderr, "attribute %d\n", known[i].attribute);
        EQ(value, known[i].value);
    }
    for (int i = 1; i <= 147; i++)
        if (i != 105 || 1) OK(cuDeviceGetAttribute(&value, i, 0));
    IS(1, cuDeviceGetAttribute(&value, 0, 0));
    IS(1, cuDeviceGetAttribute(&value, 100000, 0));
    IS(101, cuDeviceGetAttribute(&value, 1, 1));
    OK(cuDeviceGetPCIBusId(bus, sizeof bus, 0));
    OK(cuDeviceGetByPCIBusId(&device, bus));
    IS(101, cuDeviceGetByPCIBusId(&device, "0000:ff:00.0"));
    CUuuid uuid, again;
    OK(cuDeviceGetUuid_v2(&uuid, 0));
    OK(cuDeviceGetUuid_v2(&again, 0));
    TRUE(!memcmp(&uuid, &again, 16));
    for (int i = 0; i < 16; i++) printf(i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid.bytes[i]);
    printf("\n");
}

static void hidden(void) {
    int count = 7;
    CUdevice device;
    IS(100, cuInit(0)); // CUDA_ERROR_NO_DEVICE
    OK(cuDeviceGetCount(&count));
    EQ(count, 0);
    IS(101, cuDeviceGet(&device, 0));
}

static void contexts(void) {
    CUcontext a, b, found;
    size_t before, left, total;
    int active;
    unsigned flags;
    OK(cuInit(0));
    IS(201, cuMemGetInfo_v2(&left, &total)); // CUDA_ERROR_INVALID_CONTEXT
    IS(201, cuCtxSynchronize());
    OK(cuCtxGetCurrent(&found));
    TRUE(!found);
    IS(1, cuCtxCreate_v2(NULL, 0, 0));
    IS(1, cuCtxCreate_v2(&a, 0x1000, 0));
    IS(1, cuCtxCreate_v2(&a, 3, 0)); // two ways of waiting at once
    IS(101, cuCtxCreate_v2(&a, 0, 5));
    OK(cuCtxCreate_v2(&a, 0, 0));
    OK(cuMemGetInfo_v2(&before, &total));
    OK(cuCtxCreate_v4(&b, NULL, 4, 0));
    OK(cuMemGetInfo_v2(&left, &total));
    TRUE(before - left >= 500 * MIB && before - left <= 560 * MIB);
    OK(cuCtxGetCurrent(&found));
    TRUE(found == b);
    OK(cuCtxPopCurrent_v2(&found));
    TRUE(found == b);
    OK(cuCtxGetCurrent(&found));
    TRUE(found == a);
    OK(cuCtxPushCurrent_v2(b));
    OK(cuCtxSetCurrent(a));
    OK(cuCtxGetCurrent(&found));
    TRUE(found == a);
    OK(cuCtxDestroy_v2(b));
    IS(201, cuCtxPushCurrent_v2(b));
    IS(201, cuCtxDestroy_v2(b));
    OK(cuMemGetInfo_v2(&left, &total));
    EQ(left, before);
    unsigned version;
    size_t limit;
    int least, greatest;
    OK(cuCtxGetApiVersion(a, &version));
    OK(cuCtxSetLimit(0, 4096));
    OK(cuCtxGetLimit(&limit, 0));
    EQ(limit, 4096);
    IS(215, cuCtxGetLimit(&limit, 77)); // CUDA_ERROR_UNSUPPORTED_LIMIT
    OK(cuCtxGetStreamPriorityRange(&least, &greatest));
    EQ(least, 0);
    EQ(greatest, -5);
    int affinity[2] = {0, 20};
    IS(224, cuCtxCreate_v3(&b, affinity, 1, 0, 0)); // without MPS
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    EQ(active, 0);
    OK(cuDevicePrimaryCtxSetFlags_v2(0, 4));
    CUcontext p, q;
    OK(cuDevicePrimaryCtxRetain(&p, 0));
    OK(cuDevicePrimaryCtxRetain(&q, 0));
    TRUE(p == q);
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    TRUE(active == 1 && flags == 4);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuCtxSetCurrent(p));
    OK(cuCtxSynchronize());
    IS(201, cuCtxDestroy_v2(p)); // the primary context is released, not destroyed
    OK(cuDevicePrimaryCtxRelease_v2(0));
    IS(201, cuDevicePrimaryCtxRelease_v2(0));
    IS(709, cuCtxSynchronize()); // CUDA_ERROR_CONTEXT_IS_DESTROYED
    OK(cuDevicePrimaryCtxRetain(&p, 0));
    OK(cuDevicePrimaryCtxReset_v2(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    EQ(active, 0);
}

// Objects of a context go with it, also those that the program forgot.
static void leftovers(void) {
    size_t first, left, total;
    OK(cuInit(0));
    CUcontext watch;
    OK(cuCtxCreate_v2(&watch, 0, 0));
    OK(cuMemGetInfo_v2(&first, &total));
    start();
    CUdeviceptr a, m;
    CUstream stream;
    OK(cuMemAlloc_v2(&a, 100 * MIB));
    OK(cuMemAllocManaged(&m, 10 * MIB, 1));
    *(volatile int *)m = 5;
    OK(cuStreamCreate(&stream, 0));
    spin(stream, 1, 32, 1000);
    OK(cuCtxDestroy_v2(context));
    IS(400, cuStreamSynchronize(stream)); // CUDA_ERROR_INVALID_HANDLE
    OK(cuCtxSetCurrent(watch));
    OK(cuMemGetInfo_v2(&left, &total));
    EQ(left, first);
}

static void names(void) {
    const char *text;
    OK(cuGetErrorName(2, &text));
    TRUE(!strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY"));
    OK(cuGetErrorString(2, &text));
    TRUE(strlen(text) > 5);
    IS(1, cuGetErrorName(123456, &text));
    TRUE(!text);
}

static void addresses(void) {
    void *found, *twin;
    int status;
    OK(cuGetProcAddress_v2("cuMemAlloc", &found, 13000, 0, &status));
    TRUE(found == (void *)cuMemAlloc_v2 && status == 0);
    OK(cuGetProcAddress_v2("cuLaunchKernel", &found, 13000, 0, &status));
    TRUE(found == (void *)cuLaunchKernel);
    OK(cuGetProcAddress_v2("cuLaunchKernel", &twin, 13000, 2, &status));
    TRUE(twin == (void *)cuLaunchKernel_ptsz);
    OK(cuGetProcAddress_v2("cuStreamGetCaptureInfo", &found, 11030, 0, &status));
    TRUE(found == (void *)cuStreamGetCaptureInfo_v2);
    found = &found;
    IS(500, cuGetProcAddress_v2("cuNoSuchCall", &found, 13000, 0, &status)); // CUDA_ERROR_NOT_FOUND
    TRUE(!found && status == 1);
    OK(cuGetProcAddress_v2("cuGraphCreate", &found, 9000, 0, &status));
    TRUE(!found && status == 2);
    IS(1, cuGetProcAddress_v2("cuInit", &found, 13000, 77, &status));
}

// A child of an initialised process cannot use CUDA; its parent still can.
static void forked(void) {
    start();
    CUdeviceptr a;
    OK(cuMemAlloc_v2(&a, 4096));
    pid_t child = fork();
    if (child == 0) {
        int count;
        _exit(cuInit(0) == 3 && cuDeviceGetCount(&count) == 3 && cuMemFree_v2(a) == 3 ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    EQ(status, 0);
    OK(cuMemsetD8_v2(a, 1, 4096));
    OK(cuCtxSynchronize());
    OK(cuMemFree_v2(a));
}

CASES({"identity", identity}, {"hidden", hidden}, {"contexts", contexts}, {"leftovers", leftovers},
      {"names", names}, {"addresses", addresses}, {"forked", forked})
