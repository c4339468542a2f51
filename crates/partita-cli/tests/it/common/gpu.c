/*
 * An ordinary CUDA driver-API program: it knows nothing of Partita, opens
 * libcuda.so.1 at run time and needs no header of the toolkit.
 *
 *   gpu PTX total          total memory as the driver tells it
 *   gpu PTX alloc N...     allocates these sizes one after the other, prints each result
 *   gpu PTX census         prints the SMs that blocks of a full grid ran on
 *   gpu PTX rate           prints the GPU's microseconds for 8448 blocks of 200 us, two of which fill
 *                          an SM: the shortest of 20 kernels
 *   gpu PTX copy           copies 256 MiB of device memory by a kernel, again and again
 *   gpu WORKLOADS write    writes as much: nothing is written on the simulator, which takes no time
 *   gpu PTX loop           prints them again and again until it is ended
 *   gpu PTX fault          prints them once, and when it is sent a line, writes where it has no memory
 *   gpu PTX break          prints them once, and when it is sent a line, breaks as the line says:
 *                          address, trap, assert (its own kernel fails), or with an endless kernel
 *                          in flight kill, segv, abort, leave (_exit)
 *   gpu PTX cluster        waits for a cluster that does not fit the mask of its stream
 *   gpu PTX hang           launches the same and exits without waiting
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *library;

static void *symbol(const char *name)
{
    void *address = dlsym(library, name);
    if (!address) {
        fprintf(stderr, "no %s\n", name);
        exit(90);
    }
    return address;
}

static void check(const char *call, int result)
{
    if (result) {
        printf("%s: error %d\n", call, result);
        fflush(stdout);
        exit(91);
    }
}

#define CALL(name, types, ...) check(#name, ((int (*) types) symbol(#name))(__VA_ARGS__))

#define RECORD_WORDS 4
#define THREADS 1024
#define SPIN_NS 20000

static uint64_t records;
static int sms;
static void *function;

static void prepare(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 1 << 20);
    if (!file || !text || !fread(text, 1, (1 << 20) - 1, file)) {
        perror(path);
        exit(92);
    }
    void *module;
    CALL(cuModuleLoadData, (void **, const void *), &module, text);
    CALL(cuModuleGetFunction, (void **, void *, const char *), &function, module, "partita_census");
    CALL(cuDeviceGetAttribute, (int *, int, int), &sms, 16, 0);
    CALL(cuMemAlloc_v2, (uint64_t *, size_t), &records, (size_t) sms * 4 * RECORD_WORDS * 8);
}

static void census(void)
{
    int blocks = sms * 4;
    size_t bytes = (size_t) blocks * RECORD_WORDS * 8;
    uint64_t duration = SPIN_NS;
    void *parameters[] = { &records, &duration };
    uint64_t *host = calloc(1, bytes);
    char *seen = calloc(1, 65536);
    for (int round = 0; round < 4; round++) {
        CALL(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
             function, blocks, 1, 1, THREADS, 1, 1, 0, NULL, parameters, NULL);
        CALL(cuCtxSynchronize, (void));
        CALL(cuMemcpyDtoH_v2, (void *, uint64_t, size_t), host, records, bytes);
        for (int block = 0; block < blocks; block++)
            seen[host[block * RECORD_WORDS] & 65535] = 1;
    }
    printf("sms");
    for (int sm = 0; sm < 65536; sm++)
        if (seen[sm])
            printf(" %d", sm);
    printf("\n");
    fflush(stdout);
    free(host);
    free(seen);
}

/* Copies or writes 256 MiB, again and again. */
static void traffic(const char *path, int copies)
{
    void *module, *kernel;
    uint64_t from, to, bytes = 256u << 20, words = bytes / 4, step = 1;
    void *copy[] = { &to, &from, &bytes }, *write[] = { &to, &words, &step, &step };
    CALL(cuDeviceGetAttribute, (int *, int, int), &sms, 16, 0);
    CALL(cuModuleLoad, (void **, const char *), &module, path);
    CALL(cuModuleGetFunction, (void **, void *, const char *), &kernel, module, copies ? "partita_copy" : "partita_work_chain");
    CALL(cuMemAlloc_v2, (uint64_t *, size_t), &from, bytes);
    CALL(cuMemAlloc_v2, (uint64_t *, size_t), &to, bytes);
    printf("traffic\n");
    fflush(stdout);
    for (;;) {
        for (int i = 0; i < 64; i++)
            CALL(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
                 kernel, sms * 2, 1, 1, THREADS, 1, 1, 0, NULL, copies ? copy : write, NULL);
        CALL(cuCtxSynchronize, (void));
    }
}

static void rate(const char *path)
{
    void *spin, *module, *events[2];
    uint64_t duration = 200000;
    void *parameters[] = { &duration };
    float shortest = 1e9f;
    CALL(cuModuleLoad, (void **, const char *), &module, path);
    CALL(cuModuleGetFunction, (void **, void *, const char *), &spin, module, "partita_spin");
    for (int i = 0; i < 2; i++)
        CALL(cuEventCreate, (void **, unsigned), &events[i], 0);
    for (int round = 0; round < 20; round++) {
        float ms;
        CALL(cuEventRecord, (void *, void *), events[0], NULL);
        CALL(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
             spin, 8448, 1, 1, THREADS, 1, 1, 0, NULL, parameters, NULL);
        CALL(cuEventRecord, (void *, void *), events[1], NULL);
        CALL(cuCtxSynchronize, (void));
        CALL(cuEventElapsedTime, (float *, void *, void *), &ms, events[0], events[1]);
        if (ms < shortest)
            shortest = ms;
    }
    printf("%.1f\n", shortest * 1000);
}

/*
 * Launches a cluster of 8 blocks in a stream whose own mask, written as libsmctrl does, has no GPC
 * with 8 SMs: TPCs 0 to 7 are in different GPCs. The driver is 580.159.04, where streams have their
 * masks at 0x51c.
 */
static void launch_cluster(void)
{
    void *stream;
    uint64_t duration = SPIN_NS;
    void *parameters[] = { &records, &duration };
    struct { uint32_t id, pad, values[16]; } cluster = { 4, 0, { 8, 1, 1 } };
    struct { uint32_t sizes[7]; void *stream, *attributes; uint32_t count; } config = {
        { 8, 1, 1, 32, 1, 1, 0 }, NULL, &cluster, 1
    };
    uint32_t mask[5] = { 1, ~0xffu, ~0u, ~0u, ~0u };
    CALL(cuStreamCreate, (void **, unsigned), &stream, 1);
    memcpy(*(char **) stream + 0x51c, mask, sizeof mask);
    config.stream = stream;
    CALL(cuLaunchKernelEx, (void *, void *, void **, void **), &config, function, parameters, NULL);
}

static const char FAILING[] =
    ".version 6.0\n.target sm_30\n.address_size 64\n"
    ".extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);\n"
    ".visible .entry traps() { trap; ret; }\n"
    ".visible .entry asserts() {\n"
    "  .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;\n"
    "  call.uni __assertfail, (a, b, c, d, e);\n"
    "  ret;\n}\n";

static void launch(void *kernel, int blocks, void **parameters)
{
    CALL(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
         kernel, blocks, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL);
}

static void break_as(const char *how)
{
    void *module, *kernel;
    uint64_t duration = UINT64_C(1) << 62;
    void *parameters[] = { &records, &duration };
    if (!strcmp(how, "address")) {
        records = 4096;
        duration = SPIN_NS;
        launch(function, 1, parameters);
    } else if (!strcmp(how, "trap") || !strcmp(how, "assert")) {
        CALL(cuModuleLoadData, (void **, const void *), &module, FAILING);
        CALL(cuModuleGetFunction, (void **, void *, const char *), &kernel, module, *how == 't' ? "traps" : "asserts");
        launch(kernel, 1, NULL);
    } else {
        launch(function, 1, parameters);
        usleep(100000);
        if (!strcmp(how, "kill"))
            kill(getpid(), SIGKILL);
        else if (!strcmp(how, "segv"))
            raise(SIGSEGV);
        else if (!strcmp(how, "abort"))
            abort();
        else
            _exit(3);
    }
    CALL(cuCtxSynchronize, (void));
}

int main(int count, char **arguments)
{
    if (count < 3)
        return 93;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 94;
    }
    void *context;
    CALL(cuInit, (unsigned), 0);
    CALL(cuDevicePrimaryCtxRetain, (void **, int), &context, 0);
    CALL(cuCtxSetCurrent, (void *), context);
    const char *what = arguments[2];
    if (!strcmp(what, "total")) {
        size_t free_bytes, total;
        CALL(cuMemGetInfo_v2, (size_t *, size_t *), &free_bytes, &total);
        printf("total %zu\n", total);
    } else if (!strcmp(what, "alloc")) {
        for (int i = 3; i < count; i++) {
            uint64_t address;
            int result = ((int (*)(uint64_t *, size_t)) symbol("cuMemAlloc_v2"))(&address, strtoull(arguments[i], NULL, 10));
            printf("alloc %d\n", result);
        }
    } else if (!strcmp(what, "serve")) {
        char line[256];
        while (fgets(line, sizeof line, stdin)) {
            uint64_t address;
            if (!strncmp(line, "alloc ", 6))
                printf("%d\n", ((int (*)(uint64_t *, size_t)) symbol("cuMemAlloc_v2"))(&address, strtoull(line + 6, NULL, 10)));
            printf("done\n");
            fflush(stdout);
        }
    } else if (!strcmp(what, "census")) {
        prepare(arguments[1]);
        census();
    } else if (!strcmp(what, "copy") || !strcmp(what, "write")) {
        traffic(arguments[1], !strcmp(what, "copy"));
    } else if (!strcmp(what, "rate")) {
        rate(arguments[1]);
    } else if (!strcmp(what, "fault")) {
        prepare(arguments[1]);
        census();
        getchar();
        records = 4096;
        census();
    } else if (!strcmp(what, "break")) {
        char line[64] = "";
        prepare(arguments[1]);
        census();
        if (fgets(line, sizeof line, stdin)) {
            line[strcspn(line, "\n")] = 0;
            break_as(line);
        }
    } else if (!strcmp(what, "cluster")) {
        prepare(arguments[1]);
        launch_cluster();
        CALL(cuCtxSynchronize, (void));
        printf("done\n");
    } else if (!strcmp(what, "hang")) {
        prepare(arguments[1]);
        launch_cluster();
        usleep(100000);
        _exit(0);
    } else if (!strcmp(what, "fill") && count > 3) {
        /* Every SM, for so many milliseconds. */
        uint64_t duration = strtoull(arguments[3], NULL, 10) * 1000000;
        void *parameters[] = { &records, &duration };
        prepare(arguments[1]);
        int blocks = sms * (2048 / THREADS);
        CALL(cuMemAlloc_v2, (uint64_t *, size_t), &records, (size_t) blocks * RECORD_WORDS * 8);
        CALL(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
             function, blocks, 1, 1, THREADS, 1, 1, 0, NULL, parameters, NULL);
        printf("fills\n");
        fflush(stdout);
        CALL(cuCtxSynchronize, (void));
        printf("done\n");
    } else if (!strcmp(what, "loop")) {
        prepare(arguments[1]);
        for (;;) {
            census();
            usleep(2000);
        }
    } else {
        return 95;
    }
    return 0;
}
