/* Looks the driver up behind a tool that stands in for it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return puts("no driver"), 1;
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
    int (*total)(size_t *, int) = (int (*)(size_t *, int))dlsym(driver, "cuDeviceTotalMem_v2");
    int *calls = (int *)dlsym(RTLD_DEFAULT, "stand_in_calls");
    size_t bytes = 0;
    int code = init(0);
    if (total(&bytes, 0)) return puts("no total"), 1;
    printf("cuInit %d, stand-in called %d, total %zu MiB\n", code, calls ? *calls : -1, bytes >> 20);
    return 0;
}
