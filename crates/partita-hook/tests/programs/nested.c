/* Launches a kernel that the driver refuses in clients of MPS, twice, and prints the codes. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

typedef int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) { fprintf(stderr, "%s\n", dlerror()); return 2; }
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
    launch kernel = (launch)dlsym(driver, "cuLaunchKernel");
    if (init(0) != 0) return 3;
    int codes[2];
    for (int i = 0; i < 2; i++) codes[i] = kernel((void *)(uintptr_t)0x81100, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    printf("%d %d\n", codes[0], codes[1]);
    return 0;
}
