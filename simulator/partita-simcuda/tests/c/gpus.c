// Several GPUs in one process.
#include "watch.h"

CUresult cuDeviceCanAccessPeer(int *, CUdevice, CUdevice);
CUresult cuDeviceGetP2PAttribute(int *, int, CUdevice, CUdevice);
CUresult cuMemcpyPeer(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t);
CUresult cuStreamGetDevice(CUstream, CUdevice *);
int partita_sim_control_open(const char *);

static CUcontext contexts[2];
static CUmodule modules[2];

static void use(int gpu) {
    OK(cuCtxSetCurrent(contexts[gpu]));
    module = modules[gpu];
}

static void begin(void) {
    OK(cuInit(0));
    for (int gpu = 0; gpu < 2; gpu++) {
        OK(cuDevicePrimaryCtxRetain(&contexts[gpu], gpu));
        OK(cuCtxSetCurrent(contexts[gpu]));
        OK(cuModuleLoadData(&modules[gpu], PTX));
    }
}

static void visible(void) {
    CUresult started = cuInit(0);
    printf("%d", started);
    int count = 0;
    if (!started) OK(cuDeviceGetCount(&count));
    for (int gpu = 0; gpu < count; gpu++) {
        CUuuid uuid;
        char bus[32];
        CUdevice again;
        OK(cuDeviceGetUuid_v2(&uuid, gpu));
        OK(cuDeviceGetPCIBusId(bus, sizeof bus, gpu));
        OK(cuDeviceGetByPCIBusId(&again, bus));
        EQ(again, gpu);
        printf(" ");
        for (int i = 0; i < 16; i++) printf("%02x", uuid.bytes[i]);
        printf("@%s", bus);
    }
    printf("\n");
    CUdevice none;
    TRUE(cuDeviceGet(&none, count) != 0);
}

static void apart(void) {
    begin();
    CUstream stream[2];
    CUdeviceptr memory[2];
    CUdevice device;
    int ordinal;
    size_t before[2], after, total;
    for (int gpu = 0; gpu < 2; gpu++) {
        use(gpu);
        OK(cuCtxGetDevice(&device));
        EQ(device, gpu);
        OK(cuMemGetInfo_v2(&before[gpu], &total));
        OK(cuMemAlloc_v2(&memory[gpu], 64 * MIB));
        OK(cuPointerGetAttribute(&ordinal, 9, memory[gpu]));
        EQ(ordinal, gpu);
        OK(cuStreamCreate(&stream[gpu], 1));
        OK(cuStreamGetDevice(stream[gpu], &device));
        EQ(device, gpu);
        EQ(census(stream[gpu], 264, 1024, 1000, NULL), 132);
    }
    // An allocation on one does not reduce the other's free memory.
    use(0);
    OK(cuMemGetInfo_v2(&after, &total));
    EQ(before[0] - after, 64 * MIB);
    // A kernel on one does not keep the other waiting.
    spin(stream[0], 1, 32, 1000000000);
    use(1);
    uint64_t start = now_ns();
    spin(stream[1], 1, 32, 1000);
    OK(cuStreamSynchronize(stream[1]));
    TRUE(now_ns() - start < 500000000);
    // Streams and events can be queried from any context; kernels are launched where they were loaded.
    IS(600, cuStreamQuery(stream[0]));
    uint64_t ns = 1000;
    void *params[] = {&ns};
    IS(400, cuLaunchKernel(function("partita_spin"), 1, 1, 1, 32, 1, 1, 0, stream[0], params, NULL));
    OK(cuStreamSynchronize(stream[0]));
    // Memory can be freed from any context, and is filled on its own device.
    IS(1, cuMemsetD32Async(memory[0], 1, 16, stream[1]));
    OK(cuMemFree_v2(memory[0]));
    use(0);
    OK(cuMemGetInfo_v2(&after, &total));
    EQ(after, before[0]);
    OK(cuMemFree_v2(memory[1]));
    OK(cuStreamDestroy_v2(stream[1]));
    OK(cuStreamDestroy_v2(stream[0]));
    OK(cuDeviceCanAccessPeer(&ordinal, 0, 1));
    EQ(ordinal, 0);
    OK(cuDeviceGetP2PAttribute(&ordinal, 2, 1, 0));
    EQ(ordinal, 0);
    IS(101, cuDeviceGetP2PAttribute(&ordinal, 2, 1, 1));
    IS(101, cuDeviceCanAccessPeer(&ordinal, 0, 2));
    // Each device has its own primary context.
    OK(cuDevicePrimaryCtxRelease_v2(0));
    unsigned flags;
    OK(cuDevicePrimaryCtxGetState(0, &flags, &ordinal));
    EQ(ordinal, 0);
    OK(cuDevicePrimaryCtxGetState(1, &flags, &ordinal));
    EQ(ordinal, 1);
    use(1);
    EQ(census(NULL, 264, 1024, 1000, NULL), 132);
}

// Bytes go from one device to the other, and work waits for work there.
static void together(void) {
    begin();
    CUdeviceptr there[2], pool[2];
    CUstream stream[2];
    CUevent event[2];
    enum { COUNT = 1 << 20 };
    uint32_t *host, *back = malloc(4 * COUNT);
    use(0);
    OK(cuMemAllocHost_v2((void **)&host, 4 * COUNT));
    for (uint32_t i = 0; i < COUNT; i++) host[i] = i * 2654435761u;
    for (int gpu = 0; gpu < 2; gpu++) {
        use(gpu);
        OK(cuMemAlloc_v2(&there[gpu], 4 * COUNT));
        OK(cuStreamCreate(&stream[gpu], 1));
        OK(cuEventCreate(&event[gpu], 0));
    }
    use(0);
    OK(cuMemcpyHtoDAsync_v2(there[0], host, 4 * COUNT, stream[0]));
    OK(cuEventRecord(event[0], stream[0]));
    IS(400, cuEventRecord(event[0], stream[1]));
    OK(cuStreamWaitEvent(stream[1], event[0], 0));
    // Given to the other device's stream, behind the wait.
    OK(cuMemcpyDtoDAsync_v2(there[1], there[0], 4 * COUNT, stream[1]));
    use(1);
    memset(host, 0, 4 * COUNT);
    // Pinned memory is every device's.
    OK(cuMemcpyDtoHAsync_v2(host, there[1], 4 * COUNT, stream[1]));
    OK(cuStreamSynchronize(stream[1]));
    for (uint32_t i = 0; i < COUNT; i++) TRUE(host[i] == i * 2654435761u);
    OK(cuMemsetD32_v2(there[1], 7, COUNT));
    OK(cuCtxSynchronize());
    OK(cuMemcpyPeer(there[0], contexts[0], there[1], contexts[1], 4 * COUNT));
    use(0);
    OK(cuMemcpyDtoH_v2(back, there[0], 4 * COUNT));
    for (uint32_t i = 0; i < COUNT; i++) TRUE(back[i] == 7);
    IS(1, cuMemcpyDtoD_v2(there[1], there[0], 8 * COUNT)); // more than there is
    // A long kernel on one blocks the streams of the other that wait for it, and no other stream.
    CUstream free_one;
    use(1);
    OK(cuStreamCreate(&free_one, 1));
    use(0);
    spin(stream[0], 1, 32, 100000000);
    OK(cuEventRecord(event[0], stream[0]));
    OK(cuStreamWaitEvent(stream[1], event[0], 0));
    use(1);
    spin(stream[1], 1, 32, 1000);
    OK(cuEventRecord(event[1], stream[1]));
    spin(free_one, 1, 32, 1000);
    OK(cuStreamSynchronize(free_one));
    IS(600, cuEventQuery(event[1]));
    OK(cuEventSynchronize(event[1]));
    OK(cuEventQuery(event[0]));
    float ms;
    IS(400, cuEventElapsedTime(&ms, event[0], event[1])); // clocks of two devices
    for (int gpu = 0; gpu < 2; gpu++) {
        use(gpu);
        CUmemoryPool default_pool;
        int ordinal;
        OK(cuDeviceGetDefaultMemPool(&default_pool, gpu));
        OK(cuMemAllocFromPoolAsync(&pool[gpu], MIB, default_pool, stream[gpu]));
        OK(cuPointerGetAttribute(&ordinal, 9, pool[gpu]));
        EQ(ordinal, gpu);
        OK(cuMemFreeAsync(pool[gpu], stream[gpu]));
        // Physical memory and addresses for it.
        MemProp properties = {.kind = 1, .location = {1, gpu}};
        AccessDesc access = {{1, gpu}, 3};
        CUmem physical;
        CUdeviceptr address;
        OK(cuMemCreate(&physical, 2 * MIB, &properties, 0));
        OK(cuMemAddressReserve(&address, 2 * MIB, 0, 0, 0));
        OK(cuMemMap(address, 2 * MIB, 0, physical, 0));
        OK(cuMemSetAccess(address, 2 * MIB, &access, 1));
        OK(cuMemsetD32_v2(address, 5, 1024));
        OK(cuMemcpyDtoH_v2(back, address, 4096));
        EQ(back[1023], 5);
        OK(cuMemUnmap(address, 2 * MIB));
        OK(cuMemRelease(physical));
    }
    OK(cuMemFreeHost(host));
    use(0);
    OK(cuCtxSynchronize());
}

// Masks and graphs are each device's.
static void masked(void) {
    begin();
    subscribe();
    CUstream stream[2];
    for (int gpu = 0; gpu < 2; gpu++) {
        use(gpu);
        OK(cuStreamCreate(&stream[gpu], 1));
        uint32_t mask[5] = {1, ~(3u << gpu), ~0u, ~0u, ~0u};
        memcpy(*(char **)stream[gpu] + 0x51c, mask, sizeof mask);
    }
    for (int gpu = 0; gpu < 2; gpu++) {
        use(gpu);
        Record records[64];
        EQ(census(stream[gpu], 64, 1024, 1000, records), 4);
        for (int i = 0; i < 64; i++) TRUE(records[i].smid / 2 >= (unsigned)gpu && records[i].smid / 2 <= gpu + 1u);
        CUgraph graph;
        CUgraphExec exec;
        int calls = seen.calls;
        OK(cuStreamBeginCapture_v2(stream[gpu], 0));
        spin(stream[gpu], 1, 32, 1000);
        OK(cuStreamEndCapture(stream[gpu], &graph));
        OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        IS(1, cuGraphLaunch(exec, stream[1 - gpu]));
        OK(cuGraphLaunch(exec, stream[gpu]));
        OK(cuStreamSynchronize(stream[gpu]));
        EQ(seen.calls, calls + 2);
        OK(cuGraphExecDestroy(exec));
    }
    TRUE(partita_sim_control_open("/dev/nvidia1") >= 0);
    TRUE(partita_sim_control_open("/dev/nvidia2") < 0);
}

// A child of a process that uses several GPUs can use none.
static void forked(void) {
    begin();
    pid_t child = fork();
    if (child == 0) {
        int count;
        _exit(cuDeviceGetCount(&count) == 3 && cuInit(0) == 3 ? 0 : 1);
    }
    int status;
    TRUE(waitpid(child, &status, 0) == child && status == 0);
    for (int gpu = 0; gpu < 2; gpu++) {
        use(gpu);
        EQ(census(NULL, 264, 1024, 1000, NULL), 132);
    }
}

CASES({"visible", visible}, {"apart", apart}, {"together", together}, {"masked", masked}, {"forked", forked})
