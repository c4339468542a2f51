// Several processes on one GPU. The parent sends each its instructions over standard input, a line at a time.
#include "sim.h"
#include <sched.h>
#include <sys/syscall.h>

static void say(const char *text) {
    puts(text);
    fflush(stdout);
}

static void hear(void) {
    char line[64];
    if (!fgets(line, sizeof line, stdin)) exit(0);
}

// Memory and events of another process.
static void ipc(void) {
    int there[2], back[2];
    CUipcHandle memory, event;
    TRUE(pipe(there) == 0 && pipe(back) == 0);
    pid_t child = fork();
    if (child == 0) {
        CUdeviceptr small, same;
        CUevent done;
        uint32_t word;
        char go;
        TRUE(read(there[0], &memory, sizeof memory) == sizeof memory);
        TRUE(read(there[0], &event, sizeof event) == sizeof event);
        start();
        OK(cuIpcOpenMemHandle_v2(&small, memory, 1));
        OK(cuIpcOpenEventHandle(&done, event));
        CUstream stream;
        OK(cuStreamCreate(&stream, 1));
        OK(cuStreamWaitEvent(stream, done, 0)); // recorded behind a kernel of the parent
        OK(cuStreamSynchronize(stream));
        OK(cuMemcpyDtoH_v2(&word, small, 4));
        EQ(word, 0x07070707);
        OK(cuMemsetD8_v2(small, 8, 100));
        OK(cuCtxSynchronize());
        IS(1, cuMemFree_v2(small)); // opened memory is closed, not freed
        CUipcHandle wrong = memory;
        wrong.reserved[20] ^= 1;
        IS(1, cuIpcOpenMemHandle_v2(&same, wrong, 1));
        TRUE(write(back[1], "x", 1) == 1 && read(there[0], &go, 1) == 1);
        // The owner has freed it; the opened memory is still there.
        OK(cuMemcpyDtoH_v2(&word, small, 4));
        EQ(word, 0x08080808);
        OK(cuIpcCloseMemHandle(small));
        IS(1, cuIpcCloseMemHandle(small));
        exit(0);
    }
    start();
    CUdeviceptr a, twin;
    CUevent done;
    char go;
    int status;
    uint32_t word;
    size_t before, after, total;
    OK(cuEventCreate(&done, 2 | 4));
    OK(cuMemAlloc_v2(&twin, 1000));
    OK(cuMemGetInfo_v2(&before, &total));
    OK(cuMemAlloc_v2(&a, 4 * MIB));
    OK(cuMemsetD8_v2(a, 7, 100));
    OK(cuCtxSynchronize());
    OK(cuIpcGetMemHandle(&memory, a));
    OK(cuIpcGetEventHandle(&event, done));
    IS(1, cuIpcGetMemHandle(&memory, 0x1234));
    IS(201, cuIpcOpenMemHandle_v2(&twin, memory, 1)); // in the same process
    spin(NULL, 1, 32, 50000000);
    OK(cuEventRecord(done, NULL));
    TRUE(write(there[1], &memory, sizeof memory) == sizeof memory);
    TRUE(write(there[1], &event, sizeof event) == sizeof event);
    TRUE(read(back[0], &go, 1) == 1);
    OK(cuMemcpyDtoH_v2(&word, a, 4));
    EQ(word, 0x08080808);
    OK(cuMemFree_v2(a));
    TRUE(write(there[1], "x", 1) == 1);
    waitpid(child, &status, 0);
    EQ(status, 0);
    do OK(cuMemGetInfo_v2(&after, &total));
    while (after < before); // until the child's context has gone
    EQ(after, before);
}

// Physical memory passed as a descriptor.
static void descriptors(void) {
    int fd;
    MemProp prop = {.kind = 1, .handles = 1, .location = {1, 0}};
    AccessDesc access = {{1, 0}, 3};
    int ready[2];
    TRUE(pipe(ready) == 0);
    // The child is forked before CUDA starts and opens the descriptor by a number that both know.
    int slot = 200;
    pid_t parent = getpid();
    pid_t child = fork();
    if (child == 0) {
        char go, path[64];
        TRUE(read(ready[0], &go, 1) == 1);
        start();
        // Another process's descriptor through /proc: the same open pipe.
        snprintf(path, sizeof path, "/proc/%d/fd/%d", parent, slot);
        FILE *file = fopen(path, "w");
        TRUE(file != NULL);
        CUmem memory, unused;
        CUdeviceptr at;
        uint32_t word;
        OK(cuMemImportFromShareableHandle(&memory, (void *)(intptr_t)fileno(file), 1));
        IS(1, cuMemImportFromShareableHandle(&unused, (void *)(intptr_t)0, 1));
        OK(cuMemAddressReserve(&at, 2 * MIB, 0, 0, 0));
        OK(cuMemMap(at, 2 * MIB, 0, memory, 0));
        OK(cuMemSetAccess(at, 2 * MIB, &access, 1));
        OK(cuMemcpyDtoH_v2(&word, at, 4));
        EQ(word, 0x09090909);
        OK(cuMemsetD8_v2(at, 10, 4));
        OK(cuCtxSynchronize());
        exit(0);
    }
    start();
    CUmem memory;
    CUdeviceptr at;
    uint32_t word;
    int status;
    OK(cuMemCreate(&memory, 2 * MIB, &prop, 0));
    OK(cuMemAddressReserve(&at, 2 * MIB, 0, 0, 0));
    OK(cuMemMap(at, 2 * MIB, 0, memory, 0));
    OK(cuMemSetAccess(at, 2 * MIB, &access, 1));
    OK(cuMemsetD8_v2(at, 9, 4));
    OK(cuCtxSynchronize());
    OK(cuMemExportToShareableHandle(&fd, memory, 1, 0));
    TRUE(dup2(fd, slot) == slot);
    TRUE(write(ready[1], "x", 1) == 1);
    waitpid(child, &status, 0);
    EQ(status, 0);
    OK(cuMemcpyDtoH_v2(&word, at, 4));
    EQ(word, 0x0a0a0a0a);
    close(fd);
    close(slot);
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

// Short kernels of a few blocks, timed; prints the greatest and the median time in microseconds.
static void victim(void) {
    start();
    CUevent begin, end;
    float times[41];
    OK(cuEventCreate(&begin, 0));
    OK(cuEventCreate(&end, 0));
    spin(NULL, 8, 32, 1000);
    OK(cuCtxSynchronize());
    say("ready");
    hear();
    for (int i = 0; i < 41; i++) {
        OK(cuEventRecord(begin, NULL));
        spin(NULL, 8, 32, 100000);
        OK(cuEventRecord(end, NULL));
        OK(cuCtxSynchronize());
        OK(cuEventElapsedTime(&times[i], begin, end));
    }
    qsort(times, 41, sizeof *times, ascending);
    printf("%.0f %.0f\n", (double)times[40] * 1000, (double)times[20] * 1000);
    fflush(stdout);
    hear();
}

// Keeps 64 of the 132 SMs busy until it gets a line to stop.
static void *until_told(void *stop) {
    hear();
    *(volatile int *)stop = 1;
    return NULL;
}

static void neighbour(void) {
    start();
    volatile int stop = 0;
    pthread_t thread;
    say("ready");
    pthread_create(&thread, NULL, until_told, (void *)&stop);
    while (!stop) {
        CUresult result = 0;
        // The error of a fault may come at a launch as well.
        for (int i = 0; i < 8 && !result; i++) result = try_spin(NULL, 64, 1024, 500000);
        if (!result) result = cuCtxSynchronize();
        if (result) {
            printf("%d\n", result);
            fflush(stdout);
            return;
        }
    }
    OK(cuCtxDestroy_v2(context));
    say("done");
    pthread_join(thread, NULL);
}

// A client of MPS that makes its context, and a fault, when it gets a line.
static void late_fault(void) {
    OK(cuInit(0));
    say("ready");
    hear();
    start();
    CUdeviceptr nowhere = 0x10;
    uint64_t ns = 1000;
    void *params[] = {&nowhere, &ns};
    OK(cuLaunchKernel(function("partita_census"), 8, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    printf("%d\n", cuCtxSynchronize());
    fflush(stdout);
}

// Holds memory and runs a long kernel until it is killed.
static void holder(void) {
    start();
    CUdeviceptr a;
    OK(cuMemAlloc_v2(&a, 10 * GIB));
    spin(NULL, 8, 32, 60000000000ull);
    say("ready");
    hear();
}

// Ends in order while its kernel runs.
static void leaver(void) {
    start();
    spin(NULL, 8, 32, 60000000000ull);
    say("ready");
    hear();
    exit(0);
}

// The same with a kernel that never ends and writes memory.
static void writer(void) {
    start();
    CUdeviceptr records;
    uint64_t ns = 1ull << 60;
    OK(cuMemAlloc_v2(&records, 8 * sizeof(Record)));
    void *params[] = {&records, &ns};
    OK(cuLaunchKernel(function("partita_census"), 8, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    say("ready");
    hear();
    exit(0);
}

// As holder, beside a process with the same descriptors, which lives until it gets a line.
static void shared_descriptors(void) {
    start();
    spin(NULL, 8, 32, 60000000000ull);
    if (syscall(SYS_clone, CLONE_FILES, NULL, NULL, NULL, NULL) == 0) {
        char byte;
        _exit(read(0, &byte, 1) == 1 ? 0 : 1);
    }
    say("ready");
    for (;;) pause();
}

static void memory_left(void) {
    size_t left, total;
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuMemGetInfo_v2(&left, &total));
    printf("%llu\n", (unsigned long long)left / MIB);
}

// An MPS client's view: attribute 133, the SM count, and where its blocks run.
static void client(void) {
    start();
    int enabled, sms;
    OK(cuDeviceGetAttribute(&enabled, 133, 0));
    OK(cuDeviceGetAttribute(&sms, 16, 0));
    Record records[528];
    int used = census(NULL, 528, 1024, 100000, records);
    int greatest = 0;
    for (int i = 0; i < 528; i++) greatest = (int)records[i].smid > greatest ? (int)records[i].smid : greatest;
    CUcontext limited = NULL;
    int affinity[2] = {0, 3}, granted[2] = {0, 0};
    CUresult made = cuCtxCreate_v3(&limited, affinity, 1, 0, 0);
    CUresult cuCtxGetExecAffinity(void *, int);
    if (!made) OK(cuCtxGetExecAffinity(granted, 0));
    printf("%d %d %d %d %d %d\n", enabled, sms, used, greatest, made, granted[1]);
    fflush(stdout);
    hear();
}

// The SMs of contexts that this process makes under changing percentages, and with an affinity of
// its own; then where their blocks run.
static void percentages(void) {
    CUresult cuCtxGetExecAffinity(void *, int);
    const char *values[] = {"25", "100", "10", "junk", "80"};
    OK(cuInit(0));
    for (int i = 0; i < 5; i++) {
        int granted[2] = {0, 0};
        setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", values[i], 1);
        OK(cuCtxCreate_v2(&context, 0, 0));
        OK(cuCtxGetExecAffinity(granted, 0));
        printf("%d ", granted[1]);
    }
    int affinity[2] = {0, 20}, granted[2];
    CUcontext limited;
    OK(cuCtxCreate_v3(&limited, affinity, 1, 0, 0));
    OK(cuCtxGetExecAffinity(granted, 0));
    printf("%d\n", granted[1]);
}

// A thread that works in a context of the pool: a cooperative grid as large as the context's SMs
// hold.
typedef struct { CUcontext context; int wanted, granted, per_sm, used; } Place;

static void *work_in(void *of) {
    enum { THREADS = 1024 };
    CUresult cuCtxGetExecAffinity(void *, int);
    Place *place = of;
    CUmodule loaded;
    CUfunction census;
    CUdeviceptr out;
    int affinity[2];
    uint64_t ns = 100000;
    OK(cuCtxSetCurrent(place->context));
    OK(cuCtxGetExecAffinity(affinity, 0));
    place->granted = affinity[1];
    OK(cuModuleLoadData(&loaded, PTX));
    OK(cuModuleGetFunction(&census, loaded, "partita_census"));
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&place->per_sm, census, THREADS, 0));
    unsigned blocks = (unsigned)(place->granted * place->per_sm);
    Record *records = calloc(blocks, sizeof(Record));
    OK(cuMemAlloc_v2(&out, blocks * sizeof(Record)));
    void *params[] = {&out, &ns};
    OK(cuLaunchCooperativeKernel(census, blocks, 1, 1, THREADS, 1, 1, 0, NULL, params));
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoH_v2(records, out, blocks * sizeof(Record)));
    char seen[1024] = {0};
    for (unsigned i = 0; i < blocks; i++) place->used += !seen[records[i].smid], seen[records[i].smid] = 1;
    free(records);
    return NULL;
}

// The best practice of NVIDIA's guide, 5.2: contexts of several sizes are made beforehand, and each
// thread takes one.
static void pool(void) {
    int sms;
    OK(cuInit(0));
    OK(cuDeviceGetAttribute(&sms, 16, 0));
    Place places[4] = {{.wanted = 1}, {.wanted = 2}, {.wanted = (sms - 3) / 3}, {.wanted = (sms - 3) / 3 * 2}};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        int affinity[2] = {0, places[i].wanted};
        OK(cuCtxCreate_v3(&places[i].context, affinity, 1, 0, 0));
    }
    for (int i = 0; i < 4; i++) EQ(pthread_create(&threads[i], NULL, work_in, &places[i]), 0);
    for (int i = 0; i < 4; i++) {
        Place *place = &places[i];
        EQ(pthread_join(threads[i], NULL), 0);
        printf("%d %d %d %d\n", place->wanted, place->granted, place->per_sm, place->used);
        OK(cuCtxDestroy_v2(place->context));
    }
}

// Two kernels in one stream, then one in another, when all wait for the same work: whether the last
// runs beside the first. In one hardware queue it is behind the second, which waits for the first.
static void queues(void) {
    start();
    CUstream streams[3];
    CUevent ready;
    CUdeviceptr out[2];
    Record records[2];
    uint64_t ns = 1000000;
    OK(cuEventCreate(&ready, 0));
    for (int i = 0; i < 3; i++) OK(cuStreamCreate(&streams[i], 1));
    for (int i = 0; i < 2; i++) OK(cuMemAlloc_v2(&out[i], sizeof(Record)));
    spin(streams[0], 1, 32, 100000000);
    OK(cuEventRecord(ready, streams[0]));
    for (int i = 0; i < 2; i++) {
        void *params[] = {&out[i], &ns};
        OK(cuStreamWaitEvent(streams[i + 1], ready, 0));
        OK(cuLaunchKernel(function("partita_census"), 1, 1, 1, 32, 1, 1, 0, streams[i + 1], params, NULL));
        if (i == 0) spin(streams[1], 1, 32, ns);
    }
    OK(cuCtxSynchronize());
    for (int i = 0; i < 2; i++) OK(cuMemcpyDtoH_v2(&records[i], out[i], sizeof(Record)));
    puts(records[1].start < records[0].stop && records[0].start < records[1].stop ? "together" : "in turns");
}

// Fills the GPU with ten waves of blocks of 10 ms, again and again, until it gets a line to stop.
static void crowd(void) {
    start();
    volatile int stop = 0;
    pthread_t thread;
    // Some are always queued, so that a busy machine leaves no gap between them.
    CUevent ends[4];
    for (int i = 0; i < 4; i++) {
        OK(cuEventCreate(&ends[i], 0));
        spin(NULL, 2640, 1024, 10000000);
        OK(cuEventRecord(ends[i], NULL));
    }
    say("ready");
    pthread_create(&thread, NULL, until_told, (void *)&stop);
    for (int i = 0; !stop; i = (i + 1) % 4) {
        OK(cuEventSynchronize(ends[i]));
        spin(NULL, 2640, 1024, 10000000);
        OK(cuEventRecord(ends[i], NULL));
    }
    OK(cuCtxSynchronize());
    OK(cuCtxDestroy_v2(context));
    say("done");
    pthread_join(thread, NULL);
}

CASES({"late_fault", late_fault}, {"ipc", ipc}, {"descriptors", descriptors}, {"victim", victim}, {"neighbour", neighbour}, {"holder", holder},
      {"leaver", leaver}, {"writer", writer}, {"shared_descriptors", shared_descriptors}, {"memory_left", memory_left}, {"client", client},
      {"percentages", percentages}, {"pool", pool}, {"queues", queues}, {"crowd", crowd})
