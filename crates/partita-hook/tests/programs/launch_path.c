/* Launches under the hook while every allocation and lock of the process is
 * counted, then again in seccomp's strict mode, in which any system call but
 * read, write, exit and sigreturn ends the process with SIGKILL.
 *
 * Prints: allocations locks mask-words-as-hex cluster-refused small-cluster. */
#include "counting.h"
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

int main(int count, char **arguments) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) { fprintf(stderr, "%s\n", dlerror()); return 2; }
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
    launch kernel = (launch)dlsym(driver, "cuLaunchKernel");
    uint32_t *(*descriptor)(void) = (uint32_t *(*)(void))dlsym(driver, "stub_descriptor");
    if (init(0) != 0) return 3;

    void *plain = (void *)0x10000;
    kernel(plain, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL); /* asks the driver of the function once */
    counting = 1;
    for (int i = 0; i < 10000; i++) kernel(plain, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    counting = 0;
    uint32_t masked[5];
    masked[0] = descriptor()[0];
    memcpy(masked + 1, descriptor() + 76, 16);

    /* The program's own mask, which disables the lower half of every word. */
    uint32_t own[4] = {0xffff, 0xffff, 0xffff, 0xffff}, both[4];
    kernel(plain, 1, 1, 1, 32, 1, 1, 0, own, NULL, NULL);
    memcpy(both, descriptor() + 76, 16);
    /* One that would leave nothing. */
    uint32_t nothing[4] = {~0u, ~0u, ~0u, ~0u}, kept[4];
    kernel(plain, 1, 1, 1, 32, 1, 1, 0, nothing, NULL, NULL);
    memcpy(kept, descriptor() + 76, 16);

    int too_large = kernel((void *)(uintptr_t)0x2000f, 16, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL); /* clusters of 15 */
    int fits = kernel((void *)(uintptr_t)0x30003, 16, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);      /* clusters of 3 */

    char line[512];
    int length = snprintf(line, sizeof line, "%ld %ld %08x:%08x,%08x,%08x,%08x %08x,%08x,%08x,%08x %08x,%08x,%08x,%08x %d %d\n",
                          allocations, locks, masked[0], masked[1], masked[2], masked[3], masked[4], both[0], both[1],
                          both[2], both[3], kept[0], kept[1], kept[2], kept[3], too_large, fits);
    if (prctl(PR_SET_SECCOMP, 1 /* SECCOMP_MODE_STRICT */) != 0) return 4;
    for (int i = 0; i < 10000; i++) {
        kernel(plain, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
        /* What was refused, and said, once. */
        kernel((void *)(uintptr_t)0x2000f, 16, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    }
    if (write(1, line, length) != length) syscall(SYS_exit, 5);
    syscall(SYS_exit, 0);
}
