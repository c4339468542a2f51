/* Launches of a tenant of low priority, while every allocation and lock of this thread is counted.
 * Argument: `one-by-one` for a driver that refuses batches of waits.
 * Prints, each a line: allocations locks; then batches, waits in them, waits one by one and records of 20000 launches of 10 µs; of 2000 of
 * 300 µs; of 2000 of 10 µs after 5000; of 10 of 10 µs each before and after a lane is closed; of 10 more. */
#define COUNTED __thread
#include "counting.h"
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

static launch kernel;
static void (*gates)(uint64_t *);

static void launches(int count, int shown) {
    uint64_t before[4], after[4];
    gates(before);
    counting = 1;
    for (int i = 0; i < count; i++) kernel((void *)0x10000, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    counting = 0;
    gates(after);
    if (!shown) return;
    for (int i = 0; i < 4; i++) printf("%lu ", (unsigned long)(after[i] - before[i]));
    puts("");
    fflush(stdout);
}

int main(int count, char **arguments) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) { fprintf(stderr, "%s\n", dlerror()); return 2; }
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
    void (*take)(uint64_t) = (void (*)(uint64_t))dlsym(driver, "stub_take");
    void (*refuse)(void) = (void (*)(void))dlsym(driver, "stub_refuse_batches");
    kernel = (launch)dlsym(driver, "cuLaunchKernel");
    gates = (void (*)(uint64_t *))dlsym(driver, "stub_gates");
    if (init(0) != 0) return 3;
    if (count > 1 && !strcmp(arguments[1], "one-by-one")) refuse();
    kernel((void *)0x10000, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL); /* starts the thread, and asks the driver of the function */
    launches(500, 0);
    allocations = locks = 0;
    launches(20000, 1);
    take(300000);
    launches(1000, 0);
    launches(2000, 1);
    take(10000);
    launches(5000, 0);
    launches(2000, 1);
    launches(10, 1);
    puts("close");
    fflush(stdout);
    getchar();
    launches(10, 1);
    launches(10, 1);
    printf("%ld %ld\n", allocations, locks);
    return 0;
}
