/* As CUDA wranglers are written: function pointers under the driver's own names, filled by dlsym. Built with
 * -rdynamic, so that the program exports them. Says what the driver answers, "0 0" where all is well. */
#include <dlfcn.h>
#include <stdio.h>

typedef int init(unsigned);
typedef int launch(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

init *cuInit;
launch *cuLaunchKernel;

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 2;
    cuInit = (init *)dlsym(driver, "cuInit");
    cuLaunchKernel = (launch *)dlsym(driver, "cuLaunchKernel");
    int initialised = cuInit(0);
    printf("%d %d\n", initialised, cuLaunchKernel((void *)0x1000, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    return 0;
}
