/*
 * Shared by the test programs: CUDA's driver interface, declared by hand, and a
 * kernel whose blocks report their SM.
 *
 * Programs get the path of a PTX file with `partita_census` as their first
 * argument.
 */
#ifndef GPU_H
#define GPU_H

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct CUstream_st *CUstream;

int cuInit(unsigned flags);
int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuCtxGetCurrent(void **context);
int cuCtxSynchronize(void);
int cuModuleLoadData(void **module, const void *image);
int cuModuleGetFunction(void **function, void *module, const char *name);
int cuMemAlloc_v2(uint64_t *address, size_t bytes);
int cuMemFree_v2(uint64_t address);
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes);
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t count);
int cuStreamCreate(CUstream *stream, unsigned flags);
int cuStreamDestroy_v2(CUstream stream);
int cuStreamSynchronize(CUstream stream);
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, CUstream stream, void **parameters, void **extra);

#define CHECK(call) check((call), #call, __FILE__, __LINE__)
#define EXPECT(holds) expect(!!(holds), #holds, __FILE__, __LINE__)

static inline void check(int result, const char *call, const char *file, int line)
{
    if (result) {
        fprintf(stderr, "%s:%d: %s: error %d\n", file, line, call, result);
        exit(91);
    }
}

static inline void expect(int holds, const char *what, const char *file, int line)
{
    if (!holds) {
        fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
        exit(92);
    }
}

/* A set of TPCs; bit i is bit i % 64 of word i / 64. */
typedef struct {
    uint64_t words[4];
} Tpcs;

static void *gpu_context, *gpu_census;
static int gpu_sms, gpu_tpcs, gpu_sms_per_tpc, gpu_major;

/* Opens device 0 on this thread. */
static inline void gpu_open(char **arguments)
{
    static char text[1 << 20];
    void *module;
    int minor;
    FILE *file = fopen(arguments[1], "r");
    EXPECT(file != NULL && fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&gpu_context, 0));
    CHECK(cuCtxSetCurrent(gpu_context));
    CHECK(cuModuleLoadData(&module, text));
    CHECK(cuModuleGetFunction(&gpu_census, module, "partita_census"));
    CHECK(cuDeviceGetAttribute(&gpu_sms, 16, 0));
    CHECK(cuDeviceGetAttribute(&gpu_major, 75, 0));
    CHECK(cuDeviceGetAttribute(&minor, 76, 0));
    gpu_sms_per_tpc = gpu_major > 6 || (gpu_major == 6 && minor == 0) ? 2 : 1;
    gpu_tpcs = gpu_sms / gpu_sms_per_tpc;
}

static inline CUstream gpu_stream(void)
{
    CUstream stream;
    CHECK(cuStreamCreate(&stream, 1));
    return stream;
}

/* The TPCs on which the blocks of ONE launch on a stream ran. There is no
 * memset: it is a launch as well, and would have a mask for the next one. */
static inline Tpcs ran_on(CUstream stream)
{
    Tpcs ran = { { 0 } };
    unsigned blocks = gpu_sms * 4;
    uint64_t records, duration_ns = 20000;
    void *parameters[] = { &records, &duration_ns };
    uint64_t *host = calloc(blocks, 32);
    CHECK(cuMemAlloc_v2(&records, blocks * 32));
    CHECK(cuMemcpyHtoD_v2(records, host, blocks * 32));
    CHECK(cuLaunchKernel(gpu_census, blocks, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
    CHECK(stream ? cuStreamSynchronize(stream) : cuCtxSynchronize());
    CHECK(cuMemcpyDtoH_v2(host, records, blocks * 32));
    CHECK(cuMemFree_v2(records));
    for (unsigned block = 0; block < blocks; block++) {
        unsigned tpc = host[4 * block] / gpu_sms_per_tpc;
        EXPECT(host[4 * block + 3] == block + 1 && tpc < 256);
        ran.words[tpc / 64] |= 1ull << tpc % 64;
    }
    free(host);
    return ran;
}

/* The TPCs of the device from low to high, exclusive. */
static inline Tpcs tpcs(int low, int high)
{
    Tpcs set = { { 0 } };
    for (int tpc = low; tpc < high && tpc < gpu_tpcs; tpc++)
        set.words[tpc / 64] |= 1ull << tpc % 64;
    return set;
}

static inline Tpcs all(void)
{
    return tpcs(0, gpu_tpcs);
}

static inline int same(Tpcs a, Tpcs b)
{
    return !memcmp(&a, &b, sizeof a);
}

/* Whether blocks ran, and none outside of the set. A census need not reach
 * every TPC of a busy GPU. */
static inline int inside(Tpcs ran, Tpcs set)
{
    uint64_t any = 0, outside = 0;
    for (int word = 0; word < 4; word++) {
        any |= ran.words[word];
        outside |= ran.words[word] & ~set.words[word];
    }
    return any && !outside;
}

static inline void show(const char *what, Tpcs set)
{
    fprintf(stderr, "%s: %016llx %016llx\n", what, (unsigned long long) set.words[1], (unsigned long long) set.words[0]);
}

/* Whether a launch on the stream runs on exactly this set. */
#define RUNS_ON(stream, set) runs_on((stream), (set), #set, __FILE__, __LINE__)

static inline void runs_on(CUstream stream, Tpcs set, const char *what, const char *file, int line)
{
    Tpcs ran = ran_on(stream);
    if (!inside(ran, set) || !same(ran, set)) {
        fprintf(stderr, "%s:%d: a launch did not run on just %s\n", file, line, what);
        show("expected", set);
        show("ran on", ran);
        exit(93);
    }
}

#endif
