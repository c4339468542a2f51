/* Threads of one processor that ask for the same at the same time: ordinary ones without pause, and one of real-time
 * priority, where that is allowed, that comes between them. A thread that waits by giving up its turn again and
 * again never lets one of lower priority run, so no thread may wait like that.
 * Prints how often any thread has given up its turn, how many requests there were, how many of the urgent thread,
 * how many of these took longer than a millisecond, the longest in microseconds, and whether the thread was urgent.
 * Arguments: launches, allocations, or lock, and for how many seconds. The last is the measure of the machine: a plain
 * lock that lends priority, held for a microsecond, without a driver. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

enum { THREADS = 4, REST_MILLISECONDS = 500 };

static volatile long yields, requests;
static volatile int stop;
static int (*allocate)(uint64_t *, size_t);
static int (*release)(uint64_t);
static launch kernel;
static int launches, is_plain;
static pthread_mutex_t plain;
static double seconds;
static long urgent_requests, slow_requests, longest_us;

/* The C library's, counted. */
int sched_yield(void) {
    __atomic_add_fetch(&yields, 1, __ATOMIC_RELAXED);
    return (int)syscall(SYS_sched_yield);
}

static void request(void) {
    uint64_t memory;
    if (is_plain) {
        pthread_mutex_lock(&plain);
        for (volatile int work = 0; work < 1000; work++) {}
        pthread_mutex_unlock(&plain);
    } else if (launches) {
        if (kernel((void *)0x10000, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL)) abort();
    } else if (allocate(&memory, 4096) || release(memory)) abort();
    __atomic_add_fetch(&requests, 1, __ATOMIC_RELAXED);
}

static void *ordinary(void *unused) {
    while (!stop) request();
    return unused;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void *urgent(void *unused) {
    struct timespec pause = {0, 200000};
    double end = now() + seconds;
    while (now() < end) {
        nanosleep(&pause, NULL);
        double begin = now();
        request();
        long us = (long)((now() - begin) * 1e6);
        urgent_requests++;
        slow_requests += us > 1000;
        if (us > longest_us) longest_us = us;
    }
    return unused;
}

int main(int count, char **arguments) {
    if (count < 3) return 1;
    launches = !strcmp(arguments[1], "launches");
    is_plain = !strcmp(arguments[1], "lock");
    pthread_mutexattr_t lends;
    pthread_mutexattr_init(&lends);
    pthread_mutexattr_setprotocol(&lends, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&plain, &lends);
    seconds = atof(arguments[2]);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 2;
    allocate = (int (*)(uint64_t *, size_t))dlsym(driver, "cuMemAlloc_v2");
    release = (int (*)(uint64_t))dlsym(driver, "cuMemFree_v2");
    kernel = (launch)dlsym(driver, "cuLaunchKernel");
    if (((int (*)(unsigned))dlsym(driver, "cuInit"))(0)) return 3;

    /* All on one processor, whichever this program may use. */
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    for (int processor = 0; processor < CPU_SETSIZE; processor++)
        if (CPU_ISSET(processor, &all)) {
            CPU_SET(processor, &one);
            break;
        }
    sched_setaffinity(0, sizeof one, &one);

    pthread_t threads[THREADS], fifo;
    for (int at = 0; at < THREADS; at++) pthread_create(&threads[at], NULL, ordinary, NULL);
    pthread_attr_t attributes;
    struct sched_param priority = {.sched_priority = 10};
    pthread_attr_init(&attributes);
    pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED);
    pthread_attr_setschedpolicy(&attributes, SCHED_FIFO);
    pthread_attr_setschedparam(&attributes, &priority);
    int is_urgent = !pthread_create(&fifo, &attributes, urgent, NULL);
    if (!is_urgent) pthread_create(&fifo, NULL, urgent, NULL);
    pthread_join(fifo, NULL);
    struct timespec rest = {0, REST_MILLISECONDS * 1000000L};
    nanosleep(&rest, NULL);
    stop = 1;
    for (int at = 0; at < THREADS; at++) pthread_join(threads[at], NULL);
    printf("%ld %ld %ld %ld %ld %d\n", yields, requests, urgent_requests, slow_requests, longest_us, is_urgent);
    return 0;
}
