/* A program against the CUDA runtime, which is linked into it: NVIDIA's, or the one of runtime_stand_in.h. It knows of no driver. Prints
 * `memory held`, or what was wrong, and then the SMs on which a kernel's blocks ran. Argument: the file with the kernels. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The part of the runtime's interface used here, declared again. */
struct dim3 { unsigned x, y, z; };
struct channels { int x, y, z, w, kind; };
int cudaMemGetInfo(size_t *free_bytes, size_t *total);
int cudaMalloc(void **, size_t);
int cudaMallocPitch(void **, size_t *pitch, size_t width, size_t height);
int cudaMallocManaged(void **, size_t, unsigned flags);
int cudaMallocAsync(void **, size_t, void *stream);
int cudaMallocArray(void **, const struct channels *, size_t width, size_t height, unsigned flags);
int cudaFree(void *);
int cudaFreeAsync(void *, void *stream);
int cudaFreeArray(void *);
int cudaMemset(void *, int, size_t);
int cudaMemcpy(void *, const void *, size_t, int kind);
int cudaDeviceSynchronize(void);
int cudaLibraryLoadData(void **, const void *, void *, void *, unsigned, void *, void *, unsigned);
int cudaLibraryGetKernel(void **, void *, const char *);
int cudaLaunchKernel(const void *, struct dim3, struct dim3, void **, size_t, void *);

#ifdef STAND_IN
#include "runtime_stand_in.h"
#endif

/* cudaErrorMemoryAllocation, cudaMemcpyDeviceToHost. */
enum { NO_MEMORY = 2, TO_HOST = 2, BLOCKS = 128, SMS_MAX = 1024 };
#define MIB ((size_t)1 << 20)

static int failures;
static size_t quota;

static void check(const char *what, long long got, long long expected) {
    if (got == expected) return;
    printf("%s: got %lld, expected %lld\n", what, got, expected);
    failures++;
}

static size_t used(void) {
    size_t left = 0, total = 0;
    check("cudaMemGetInfo", cudaMemGetInfo(&left, &total), 0);
    quota = total;
    return total - left;
}

static void memory(void) {
    void *p = NULL, *q = NULL;
    size_t pitch = 0, base = used();
    unsigned char last = 0;
    struct channels floats = {32, 0, 0, 0, 2};
    check("cudaMalloc", cudaMalloc(&p, 3 * MIB + 1), 0);
    check("charged", used() - base, 3 * MIB + 1);
    check("cudaMemset", cudaMemset(p, 7, 3 * MIB + 1), 0);
    check("cudaMemcpy", cudaMemcpy(&last, (char *)p + 3 * MIB, 1, TO_HOST), 0);
    check("what was written", last, 7);
    check("beyond the quota", cudaMalloc(&q, quota), NO_MEMORY);
    check("cudaFree", cudaFree(p), 0);
    check("credited", used(), base);
    check("cudaMallocPitch", cudaMallocPitch(&p, &pitch, 1000, 10), 0);
    check("charged with its pitch", used() - base, 10 * pitch);
    check("rows beyond the quota", cudaMallocPitch(&q, &pitch, MIB, quota / MIB + 1), NO_MEMORY);
    check("cudaFree", cudaFree(p), 0);
    check("cudaMallocManaged", cudaMallocManaged(&p, 5000, 1), 0);
    check("charged", used() - base, 5000);
    check("managed memory beyond the quota", cudaMallocManaged(&q, quota, 1), NO_MEMORY);
    check("cudaFree", cudaFree(p), 0);
    check("cudaMallocAsync", cudaMallocAsync(&p, 70001, NULL), 0);
    check("charged", used() - base, 70001);
    check("in stream order beyond the quota", cudaMallocAsync(&q, quota, NULL), NO_MEMORY);
    check("cudaFreeAsync", cudaFreeAsync(p, NULL), 0);
    check("cudaDeviceSynchronize", cudaDeviceSynchronize(), 0);
    check("cudaMallocArray", cudaMallocArray(&p, &floats, 64, 32, 0), 0);
    check("charged", used() - base, 64 * 32 * 4);
    check("cudaFreeArray", cudaFreeArray(p), 0);
    check("all credited", used(), base);
    if (!failures) printf("memory held\n");
}

static void launch(const char *kernels) {
    static char text[1 << 16];
    static uint64_t records[BLOCKS][4];
    unsigned char seen[SMS_MAX] = {0};
    void *library, *kernel, *at;
    uint64_t duration = 20000;
    FILE *file = fopen(kernels, "r");
    if (!file || !fread(text, 1, sizeof text - 1, file)) exit(2);
    check("cudaMalloc", cudaMalloc(&at, sizeof records), 0);
    check("cudaMemset", cudaMemset(at, 0, sizeof records), 0);
    check("cudaLibraryLoadData", cudaLibraryLoadData(&library, text, NULL, NULL, 0, NULL, NULL, 0), 0);
    check("cudaLibraryGetKernel", cudaLibraryGetKernel(&kernel, library, "partita_census"), 0);
    if (failures) return;
    void *parameters[] = {&at, &duration};
    check("cudaLaunchKernel", cudaLaunchKernel(kernel, (struct dim3){BLOCKS, 1, 1}, (struct dim3){1024, 1, 1}, parameters, 0, NULL), 0);
    check("cudaDeviceSynchronize", cudaDeviceSynchronize(), 0);
    check("cudaMemcpy", cudaMemcpy(records, at, sizeof records, TO_HOST), 0);
    for (int block = 0; block < BLOCKS; block++) {
        check("blocks that ran", records[block][3], block + 1);
        seen[records[block][0] % SMS_MAX] = 1;
    }
    printf("sms");
    for (int sm = 0; sm < SMS_MAX; sm++) if (seen[sm]) printf(" %d", sm);
    printf("\n");
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    used();
    if (!failures) memory();
    if (!failures) launch(arguments[1]);
    return failures != 0;
}
