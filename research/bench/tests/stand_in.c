/* A stand-in for a peer's library: it says with which limits it was loaded, and for which calls it was asked, and changes nothing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void say(const char *what, const char *value) {
    char line[512];
    const char *path = getenv("STAND_IN_LOG");
    int log = path ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0644) : -1;
    int length = snprintf(line, sizeof line, "%s %s\n", what, value ? value : "-");
    if (log < 0 || write(log, line, length) != length) _exit(99);
    close(log);
}

__attribute__((constructor)) static void loaded(void) {
    say("loaded", getenv("CUDA_DEVICE_MEMORY_LIMIT"));
    say("cores", getenv("CUDA_DEVICE_SM_LIMIT"));
    say("cache", getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"));
}

void *dlsym(void *handle, const char *name) {
    static void *(*real)(void *, const char *);
    if (!real) real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!real) real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (!strcmp(name, "cuLaunchKernel") || !strcmp(name, "cuMemAlloc_v2")) say("asked", name);
    return real(handle, name);
}
