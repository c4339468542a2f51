/* The CUDA runtime as far as the driver sees it, for a machine without NVIDIA's: it opens libcuda.so.1 by name, asks dlsym for
 * cuGetProcAddress_v2 alone, and that for everything else, by base name, version and default stream; it uses the primary context. NVIDIA's (13.0, linked
 * statically) does the same, and asks for undocumented tables besides, which the simulated driver has not. */
#include "cuda.h"

#define DRIVER(type, name) ((type)by_version(name, 13000, 1))

static int ready(void) {
    static int began;
    if (began) return 0;
    int code = DRIVER(fn_u, "cuInit")(0);
    if (!code) code = DRIVER(fn_pi, "cuDevicePrimaryCtxRetain")(&context, 0);
    if (!code) code = DRIVER(fn_p, "cuCtxSetCurrent")(context);
    began = !code;
    return code;
}

#define CALLED(type, name, ...) (ready() ? 999 : DRIVER(type, name)(__VA_ARGS__))

int cudaMemGetInfo(size_t *left, size_t *total) { return CALLED(fn_sizes, "cuMemGetInfo", left, total); }
int cudaMalloc(void **p, size_t bytes) { return CALLED(int (*)(address *, size_t), "cuMemAlloc", (address *)p, bytes); }
int cudaMallocPitch(void **p, size_t *pitch, size_t width, size_t height) {
    return CALLED(int (*)(address *, size_t *, size_t, size_t, unsigned), "cuMemAllocPitch", (address *)p, pitch, width, height, 4);
}
int cudaMallocManaged(void **p, size_t bytes, unsigned flags) {
    return CALLED(int (*)(address *, size_t, unsigned), "cuMemAllocManaged", (address *)p, bytes, flags);
}
int cudaMallocAsync(void **p, size_t bytes, void *stream) {
    return CALLED(int (*)(address *, size_t, void *), "cuMemAllocAsync", (address *)p, bytes, stream);
}
int cudaMallocArray(void **array, const struct channels *channels, size_t width, size_t height, unsigned flags) {
    struct { size_t width, height; unsigned format, count; } shape = {width, height, 0x20 /* float */, channels->x / 32};
    return flags ? 1 : CALLED(fn_pp, "cuArrayCreate", array, &shape);
}
int cudaFree(void *p) { return CALLED(int (*)(address), "cuMemFree", (address)p); }
int cudaFreeAsync(void *p, void *stream) { return CALLED(int (*)(address, void *), "cuMemFreeAsync", (address)p, stream); }
int cudaFreeArray(void *array) { return CALLED(fn_p, "cuArrayDestroy", array); }
int cudaMemset(void *p, int value, size_t bytes) {
    return CALLED(int (*)(address, unsigned char, size_t), "cuMemsetD8", (address)p, value, bytes);
}
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
    return kind == 2 ? CALLED(int (*)(void *, address, size_t), "cuMemcpyDtoH", to, (address)from, bytes) : 1;
}
int cudaDeviceSynchronize(void) { return ready() ? 999 : DRIVER(fn_p, "cuCtxSynchronize")(NULL); }
int cudaLibraryLoadData(void **library, const void *code, void *a, void *b, unsigned c, void *d, void *e, unsigned f) {
    return CALLED(int (*)(void **, const void *, void *, void *, unsigned, void *, void *, unsigned), "cuLibraryLoadData", library, code, a, b, c, d, e, f);
}
int cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
    return CALLED(int (*)(void **, void *, const char *), "cuLibraryGetKernel", kernel, library, name);
}
int cudaLaunchKernel(const void *kernel, struct dim3 grid, struct dim3 block, void **parameters, size_t shared, void *stream) {
    return CALLED(int (*)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **), "cuLaunchKernel",
                  (void *)kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared, stream, parameters, NULL);
}
