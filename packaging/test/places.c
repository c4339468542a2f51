/*
 * An ordinary program for the tests of packages: it launches a kernel again and again and prints on how many SMs
 * the blocks of each launch ran. It opens libcuda.so.1 at run time and ends with a signal.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Each block's first thread writes the number of its SM, and one. */
static const char PLACES[] =
    ".version 7.8\n.target sm_70\n.address_size 64\n"
    ".visible .entry places(.param .u64 out) {\n"
    "  .reg .b32 %r<5>; .reg .b64 %rd<4>; .reg .pred %p;\n"
    "  mov.u32 %r1, %tid.x; setp.ne.u32 %p, %r1, 0; @%p ret;\n"
    "  ld.param.u64 %rd1, [out]; cvta.to.global.u64 %rd1, %rd1; mov.u32 %r2, %ctaid.x;\n"
    "  mul.wide.u32 %rd2, %r2, 4; add.u64 %rd3, %rd1, %rd2; mov.u32 %r3, %smid; add.u32 %r4, %r3, 1;\n"
    "  st.global.u32 [%rd3], %r4; ret;\n}\n";

enum { BLOCKS = 1024, SMS = 1024 };

static void *library;

static void check(const char *call, int result)
{
    if (result) {
        printf("%s: error %d\n", call, result);
        exit(1);
    }
}

static void *find(const char *name)
{
    void *address = dlsym(library, name);
    if (!address) {
        printf("libcuda.so.1 has no %s\n", name);
        exit(1);
    }
    return address;
}

#define CALL(name, types, ...) check(#name, ((int (*) types) find(#name))(__VA_ARGS__))

int main(void)
{
    int device;
    void *context, *module, *kernel;
    unsigned long long out;
    static unsigned places[BLOCKS];
    setvbuf(stdout, NULL, _IOLBF, 0);
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        printf("%s\n", dlerror());
        return 1;
    }
    CALL(cuInit, (unsigned), 0);
    CALL(cuDeviceGet, (int *, int), &device, 0);
    CALL(cuCtxCreate_v2, (void **, unsigned, int), &context, 0, device);
    CALL(cuModuleLoadData, (void **, const void *), &module, PLACES);
    CALL(cuModuleGetFunction, (void **, void *, const char *), &kernel, module, "places");
    CALL(cuMemAlloc_v2, (unsigned long long *, size_t), &out, sizeof places);
    for (;;) {
        void *parameters[] = {&out};
        char seen[SMS] = {0};
        int count = 0;
        CALL(cuLaunchKernel,
             (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
             kernel, BLOCKS, 1, 1, 1024, 1, 1, 0, NULL, parameters, NULL);
        CALL(cuMemcpyDtoH_v2, (void *, unsigned long long, size_t), places, out, sizeof places);
        for (int block = 0; block < BLOCKS; block++) {
            unsigned sm = places[block] - 1;
            if (sm < SMS && !seen[sm]) {
                seen[sm] = 1;
                count++;
            }
        }
        printf("%d SMs\n", count);
        usleep(20000);
    }
}
