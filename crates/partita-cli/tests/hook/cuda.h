/* The part of the driver API that these tests use, declared again:
 * libcuda opened at run time, each name looked up through dlsym or through
 * cuGetProcAddress, as the caller chooses. */
#ifndef TEST_CUDA_H
#define TEST_CUDA_H
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t address;
typedef int (*getter)(const char *, void **, int, uint64_t, int *);

static void *driver_library;
static getter get_proc_address;

static void die(const char *what, int code) {
    fprintf(stderr, "%s: %d\n", what, code);
    exit(1);
}

/* By dlsym: the exact exported name. */
static void *by_name(const char *name) {
    if (!driver_library) driver_library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver_library) { fprintf(stderr, "%s\n", dlerror()); exit(1); }
    void *found = dlsym(driver_library, name);
    if (!found) die(name, -1);
    return found;
}

/* As the CUDA runtime does: base name, version, legacy (1) or per-thread (2) default stream. */
static void *by_version(const char *name, int version, uint64_t flags) {
    void *found = NULL;
    int status = 0;
    if (!get_proc_address) get_proc_address = (getter)by_name("cuGetProcAddress_v2");
    int code = get_proc_address(name, &found, version, flags, &status);
    if (code || !found) die(name, code);
    return found;
}

#define CALL(type, name) ((type)by_name(name))
#define OK(what, call) do { int code_ = (call); if (code_) die(what, code_); } while (0)

typedef int (*fn_u)(unsigned);
typedef int (*fn_p)(void *);
typedef int (*fn_pp)(void *, void *);
typedef int (*fn_pi)(void *, int);
typedef int (*fn_pui)(void *, unsigned, int);
typedef int (*fn_sizes)(size_t *, size_t *);

static void *context;

/* cuInit, device 0, and a current context: a created one, or the primary. */
static void start(int primary) {
    OK("cuInit", CALL(fn_u, "cuInit")(0));
    if (primary) {
        OK("cuDevicePrimaryCtxRetain", CALL(fn_pi, "cuDevicePrimaryCtxRetain")(&context, 0));
        OK("cuCtxSetCurrent", CALL(fn_p, "cuCtxSetCurrent")(context));
    } else {
        OK("cuCtxCreate_v2", CALL(fn_pui, "cuCtxCreate_v2")(&context, 0, 0));
    }
}

static size_t total_bytes(void) {
    size_t free_bytes, total;
    OK("cuMemGetInfo_v2", CALL(fn_sizes, "cuMemGetInfo_v2")(&free_bytes, &total));
    return total;
}

static size_t free_bytes(void) {
    size_t left, total;
    OK("cuMemGetInfo_v2", CALL(fn_sizes, "cuMemGetInfo_v2")(&left, &total));
    return left;
}
#endif
