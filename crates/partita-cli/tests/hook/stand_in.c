/* Stands in for the driver, as a tool does that its launcher preloads behind the hook. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

int stand_in_calls;
static int (*driver_init)(unsigned);

int cuInit(unsigned flags) {
    stand_in_calls++;
    return driver_init(flags);
}

/* Through the address of a name that others may define first. */
void *dlopen(const char *name, int flags) {
    void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    Dl_info first;
    if (driver_init && name && !strcmp(name, "libcuda.so.1") && dladdr((void *)cuInit, &first)) return next(first.dli_fname, flags);
    return next(name, flags);
}

__attribute__((constructor)) static void at_load(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver) driver_init = (int (*)(unsigned))dlsym(driver, "cuInit");
}
