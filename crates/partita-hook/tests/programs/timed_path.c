/* Launches of a tenant with a share of time, while every allocation and lock of this thread is counted once the length of its kernels is known:
 * the hook's own thread may allocate.
 * Prints: allocations locks waits records, of 20000 launches, and how often others took the process's place on a processor meanwhile. */
#define COUNTED __thread
#include "counting.h"
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

typedef int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) { fprintf(stderr, "%s\n", dlerror()); return 2; }
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
    launch kernel = (launch)dlsym(driver, "cuLaunchKernel");
    void (*units)(uint64_t *) = (void (*)(uint64_t *))dlsym(driver, "stub_units");
    if (init(0) != 0) return 3;
    /* The thread looks every few milliseconds, and units grow by the look. */
    for (int look = 0; look < 60; look++) {
        for (int i = 0; i < 500; i++)
            if (kernel((void *)0x10000, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL)) return 4;
        usleep(6000);
    }
    uint64_t before[2], after[2];
    struct rusage at_start, at_end;
    getrusage(RUSAGE_SELF, &at_start);
    units(before);
    counting = 1;
    for (int i = 0; i < 20000; i++) kernel((void *)0x10000, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    counting = 0;
    units(after);
    getrusage(RUSAGE_SELF, &at_end);
    printf("%ld %ld %lu %lu %ld\n", allocations, locks, (unsigned long)(after[0] - before[0]), (unsigned long)(after[1] - before[1]),
           at_end.ru_nivcsw - at_start.ru_nivcsw);
    return 0;
}
