// Order: streams, events, default streams, host functions and words in memory.
#include "sim.h"

static void order(void) {
    start();
    CUstream a, b;
    CUevent e[4];
    float ms;
    OK(cuStreamCreate(&a, 1));
    OK(cuStreamCreate(&b, 1));
    for (int i = 0; i < 4; i++) OK(cuEventCreate(&e[i], 0));
    IS(1, cuEventCreate(&e[0], 64));
    IS(1, cuEventCreate(&e[0], 4)); // interprocess events keep no time
    IS(1, cuStreamCreate(&a, 8));
    IS(400, cuEventElapsedTime(&ms, e[0], e[1])); // never recorded
    OK(cuEventQuery(e[0]));
    OK(cuEventSynchronize(e[0]));
    // In one stream kernels follow one another; in two they run together. Virtual time says so exactly, once all is
    // queued behind something long.
    spin(a, 1, 32, 20000000);
    spin(b, 1, 32, 20000000);
    OK(cuEventRecord(e[0], a));
    spin(a, 1, 32, 3000000);
    spin(a, 1, 32, 3000000);
    OK(cuEventRecord(e[1], a));
    IS(600, cuEventQuery(e[1]));
    IS(600, cuEventElapsedTime(&ms, e[0], e[1]));
    OK(cuEventRecord(e[2], b));
    spin(b, 1, 32, 3000000);
    OK(cuEventRecord(e[3], b));
    OK(cuCtxSynchronize());
    OK(cuEventElapsedTime(&ms, e[0], e[1]));
    TRUE(ms > 6.0f && ms < 6.05f);
    OK(cuEventElapsedTime(&ms, e[2], e[3]));
    TRUE(ms > 3.0f && ms < 3.05f);
    OK(cuEventElapsedTime(&ms, e[0], e[3]));
    TRUE(ms < 5.5f || ms > 10.0f); // or the host was away between the two streams
    // A wait orders them.
    spin(a, 1, 32, 20000000);
    OK(cuEventRecord(e[0], a));
    spin(a, 1, 32, 2000000);
    OK(cuEventRecord(e[1], a));
    OK(cuStreamWaitEvent(b, e[1], 0));
    spin(b, 1, 32, 2000000);
    OK(cuEventRecord(e[2], b));
    OK(cuEventSynchronize(e[2]));
    OK(cuEventElapsedTime(&ms, e[0], e[2]));
    TRUE(ms > 4.0f && ms < 4.05f);
    IS(1, cuStreamWaitEvent(b, e[1], 9));
    // A destroyed event does not block; a destroyed handle is refused.
    OK(cuEventRecord(e[0], a));
    OK(cuEventDestroy_v2(e[0]));
    IS(400, cuEventRecord(e[0], a));
    IS(400, cuEventDestroy_v2(e[0]));
    OK(cuStreamSynchronize(a));
    // An event can be recorded only in its own context, and waited for in every one.
    CUcontext other;
    CUstream there;
    CUevent of_there;
    OK(cuCtxCreate_v2(&other, 0, 0));
    OK(cuStreamCreate(&there, 1));
    OK(cuEventCreate(&of_there, 0));
    IS(400, cuEventRecord(e[1], there));
    IS(400, cuEventRecord(of_there, a));
    OK(cuEventRecord(of_there, there));
    OK(cuStreamWaitEvent(a, of_there, 0));
    OK(cuStreamWaitEvent(there, e[1], 0));
    OK(cuCtxDestroy_v2(other));
    OK(cuStreamSynchronize(a));
    spin(a, 1, 32, 1000000);
    OK(cuStreamDestroy_v2(a)); // ends with its work
    IS(400, cuStreamDestroy_v2(a));
    IS(400, cuStreamQuery(a));
    IS(400, cuStreamDestroy_v2(NULL));
    int priority;
    unsigned flags;
    CUcontext owner;
    OK(cuStreamCreateWithPriority(&a, 1, -99));
    OK(cuStreamGetPriority(a, &priority));
    OK(cuStreamGetFlags(a, &flags));
    OK(cuStreamGetCtx(a, &owner));
    TRUE(priority == -5 && flags == 1 && owner == context);
}

// The legacy default stream and blocking streams wait for one another, non-blocking ones do not wait.
static void legacy(void) {
    start();
    CUstream blocking, free_one;
    CUevent e[4];
    float ms, after;
    OK(cuStreamCreate(&blocking, 0));
    OK(cuStreamCreate(&free_one, 1));
    for (int i = 0; i < 4; i++) OK(cuEventCreate(&e[i], 0));
    spin(NULL, 1, 32, 20000000);
    OK(cuEventRecord(e[0], NULL));
    spin(free_one, 1, 32, 20000000);
    OK(cuEventRecord(e[3], free_one));
    spin(blocking, 1, 32, 2000000);
    spin(NULL, 1, 32, 2000000);
    spin(blocking, 1, 32, 2000000);
    OK(cuEventRecord(e[1], blocking));
    spin(free_one, 1, 32, 2000000);
    OK(cuEventRecord(e[2], free_one));
    OK(cuCtxSynchronize());
    OK(cuEventElapsedTime(&ms, e[0], e[1]));
    TRUE(ms > 6.0f);
    OK(cuEventElapsedTime(&ms, e[3], e[2]));
    OK(cuEventElapsedTime(&after, e[2], e[1]));
    TRUE(ms > 2.0f && (after > 0.0f || ms > 2.05f)); // or the host was away before the last launch
    // The handles 1 and 2, and the calls with a default stream of each thread.
    uint64_t ns = 2000000;
    void *params[] = {&ns};
    CUfunction f = function("partita_spin");
    OK(cuStreamSynchronize((CUstream)1));
    OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, (CUstream)2, params, NULL));
    IS(600, cuStreamQuery((CUstream)2));
    OK(cuLaunchKernel_ptsz(f, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    OK(cuStreamSynchronize((CUstream)2));
    OK(cuCtxSynchronize());
}

static void *other_thread(void *finished) {
    OK(cuCtxSetCurrent(context));
    uint64_t ns = 20000000;
    void *params[] = {&ns};
    OK(cuLaunchKernel_ptsz(function("partita_spin"), 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    OK(cuStreamSynchronize((CUstream)2));
    *(volatile int *)finished = 1;
    return NULL;
}

// Each thread has its own default stream, and a context is current in one thread at a time.
static void threads(void) {
    start();
    pthread_t thread;
    volatile int finished = 0;
    uint64_t ns = 1000;
    void *params[] = {&ns};
    pthread_create(&thread, NULL, other_thread, (void *)&finished);
    OK(cuLaunchKernel_ptsz(function("partita_spin"), 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    OK(cuStreamSynchronize((CUstream)2));
    pthread_join(thread, NULL);
    TRUE(finished);
    OK(cuCtxSynchronize());
}

static volatile int trace[8], traced;
static void note(void *what) { trace[traced++] = (int)(intptr_t)what; }
static void note_callback(CUstream stream, CUresult result, void *what) {
    TRUE(result == 0 && stream != NULL);
    trace[traced++] = (int)(intptr_t)what;
}

static int counted;
static void count(void *unused) {
    (void)unused;
    counted++;
}

static void host_functions(void) {
    start();
    CUstream stream;
    OK(cuStreamCreate(&stream, 1));
    IS(1, cuLaunchHostFunc(stream, NULL, NULL));
    spin(stream, 1, 32, 5000000);
    OK(cuLaunchHostFunc(stream, note, (void *)1));
    OK(cuStreamAddCallback(stream, note_callback, (void *)2, 0));
    spin(stream, 1, 32, 1000000);
    OK(cuLaunchHostFunc(stream, note, (void *)3));
    EQ(traced, 0);
    OK(cuStreamSynchronize(stream));
    TRUE(traced == 3 && trace[0] == 1 && trace[1] == 2 && trace[2] == 3);
    // More at once than the queue between board and worker holds.
    CUstream streams[1500];
    spin(NULL, 1, 32, 20000000);
    for (int i = 0; i < 1500; i++) {
        OK(cuStreamCreate(&streams[i], 0)); // behind the kernel of the legacy stream
        OK(cuLaunchHostFunc(streams[i], count, NULL));
    }
    OK(cuCtxSynchronize());
    EQ(counted, 1500);
}

// A destroyed stream ends with its work, which the context waits for, and which its slot's next stream does not hide.
static void destroyed(void) {
    start();
    CUstream stream;
    for (int round = 1; round <= 20; round++) {
        OK(cuStreamCreate(&stream, 1));
        spin(stream, 1, 32, 5000000);
        OK(cuLaunchHostFunc(stream, count, NULL));
        OK(cuStreamDestroy_v2(stream));
        if (round % 2) {
            OK(cuStreamCreate(&stream, 1));
            OK(cuStreamSynchronize(stream));
            OK(cuStreamDestroy_v2(stream));
        }
        OK(cuCtxSynchronize());
        EQ(counted, round);
    }
}

// A gate in host memory, as in the measurements of gates across processes.
static void gate(void) {
    start();
    CUstream stream;
    CUdeviceptr word, host_word;
    uint32_t *host;
    OK(cuStreamCreate(&stream, 1));
    OK(cuMemAlloc_v2(&word, 64));
    OK(cuMemsetD8_v2(word, 0, 64));
    OK(cuCtxSynchronize());
    host = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    OK(cuMemHostRegister_v2(host, 4096, 2));
    OK(cuMemHostGetDevicePointer_v2(&host_word, host, 0));
    IS(1, cuStreamWaitValue32_v2(stream, host_word + 2, 1, 1));
    IS(1, cuStreamWaitValue32_v2(stream, 0x1000, 1, 1));
    IS(1, cuStreamWaitValue32_v2(stream, host_word, 1, 9));
    OK(cuStreamWaitValue32_v2(stream, host_word, 1, 1)); // equal
    OK(cuStreamWriteValue32_v2(stream, word, 77, 0));
    OK(cuStreamWriteValue32_v2(stream, host_word + 4, 78, 0));
    usleep(20000);
    IS(600, cuStreamQuery(stream));
    *(volatile uint32_t *)host = 1;
    OK(cuStreamSynchronize(stream));
    EQ(host[1], 78);
    uint32_t value;
    OK(cuMemcpyDtoH_v2(&value, word, 4));
    EQ(value, 77);
    OK(cuStreamWaitValue32_v2(stream, word, 70, 0)); // at least
    OK(cuStreamWaitValue32_v2(stream, word, 1, 2));  // a common bit
    OK(cuStreamWaitValue32_v2(stream, word, 1, 3));  // a bit in neither
    OK(cuStreamSynchronize(stream));
}

// More launches than the ring holds, from two threads.
static void *many(void *unused) {
    (void)unused;
    OK(cuCtxSetCurrent(context));
    CUstream stream;
    OK(cuStreamCreate(&stream, 1));
    for (int i = 0; i < 6000; i++) spin(stream, 1, 32, 100);
    OK(cuStreamSynchronize(stream));
    OK(cuStreamDestroy_v2(stream));
    return NULL;
}

static void flood(void) {
    start();
    pthread_t thread;
    pthread_create(&thread, NULL, many, NULL);
    many(NULL);
    pthread_join(thread, NULL);
}

CASES({"order", order}, {"legacy", legacy}, {"threads", threads}, {"host_functions", host_functions},
      {"destroyed", destroyed}, {"gate", gate}, {"flood", flood})
