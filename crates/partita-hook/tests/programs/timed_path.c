/* Launches of a tenant with a share of time, while every allocation and lock of this thread is counted once the length of its kernels is known:
 * the hook's own thread may allocate.
 * Prints: allocations locks waits records, of 20000 launches, and for how many µs its threads were ready and had no processor. */
#define COUNTED __thread
#include "counting.h"
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

typedef int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

/* For how long the threads of this process were ready to run and had no processor. */
static long waited_us(void) {
    unsigned long sum = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks && (task = readdir(tasks));) {
        char path[300];
        unsigned long on, ready;
        snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", task->d_name);
        FILE *file = fopen(path, "r");
        if (file && fscanf(file, "%lu %lu", &on, &ready) == 2) sum += ready;
        if (file) fclose(file);
    }
    if (tasks) closedir(tasks);
    return sum / 1000;
}

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
    long at_start = waited_us();
    units(before);
    counting = 1;
    for (int i = 0; i < 20000; i++) kernel((void *)0x10000, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    counting = 0;
    units(after);
    printf("%ld %ld %lu %lu %ld\n", allocations, locks, (unsigned long)(after[0] - before[0]), (unsigned long)(after[1] - before[1]),
           waited_us() - at_start);
    return 0;
}
