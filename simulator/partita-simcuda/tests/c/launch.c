// Modules, launches, the launch descriptor and errors of misuse.
#include "sim.h"

static void kernels(void) {
    start();
    Record records[264];
    EQ(census(NULL, 264, 1024, 100000, records), 132);
    // Two blocks of 1024 threads fit an SM: all 264 run in one wave.
    for (int i = 0; i < 264; i++) TRUE(records[i].start - records[0].start < 50000);
    EQ(census(NULL, 300, 1024, 100000, NULL), 132);
    enum { N = 1000 };
    float a[N], b[N], c[N], got[N];
    for (int i = 0; i < N; i++) a[i] = (float)i / 7, b[i] = 1.0f / (float)(i + 1), c[i] = (float)(i % 13);
    CUdeviceptr da, db, dc, out;
    OK(cuMemAlloc_v2(&da, sizeof a));
    OK(cuMemAlloc_v2(&db, sizeof a));
    OK(cuMemAlloc_v2(&dc, sizeof a));
    OK(cuMemAlloc_v2(&out, sizeof a));
    OK(cuMemcpyHtoD_v2(da, a, sizeof a));
    OK(cuMemcpyHtoD_v2(db, b, sizeof a));
    OK(cuMemcpyHtoD_v2(dc, c, sizeof a));
    uint64_t n = N;
    uint32_t rounds = 3, side = 25;
    void *fma_params[] = {&out, &da, &db, &dc, &n, &rounds};
    OK(cuLaunchKernel(function("partita_fma"), 4, 1, 1, 256, 1, 1, 0, NULL, fma_params, NULL));
    OK(cuMemcpyDtoH_v2(got, out, sizeof a));
    for (int i = 0; i < N; i++) {
        float acc = c[i];
        for (unsigned r = 0; r < rounds; r++) acc = fmaf(a[i], b[i], acc);
        TRUE(acc == got[i]);
    }
    void *matmul_params[] = {&out, &da, &db, &side};
    OK(cuLaunchKernel(function("partita_matmul"), 2, 2, 1, 16, 16, 1, 0, NULL, matmul_params, NULL));
    OK(cuMemcpyDtoH_v2(got, out, sizeof a));
    for (unsigned y = 0; y < side; y++)
        for (unsigned x = 0; x < side; x++) {
            float acc = 0;
            for (unsigned k = 0; k < side; k++) acc = fmaf(a[y * side + k], b[k * side + x], acc);
            TRUE(acc == got[y * side + x]);
        }
    // The other way of passing parameters.
    struct { uint64_t dst, src, bytes; } packed = {out, da, 400};
    size_t size = sizeof packed;
    void *extra[] = {(void *)1, &packed, (void *)2, &size, NULL};
    OK(cuLaunchKernel(function("partita_copy"), 1, 1, 1, 64, 1, 1, 0, NULL, NULL, extra));
    OK(cuMemcpyDtoH_v2(got, out, 400));
    TRUE(!memcmp(got, a, 400));
    // A kernel of the program runs at a declared cost.
    CUevent begin, end;
    float ms;
    uint32_t number = 1;
    char structure[24] = {0};
    void *strange[] = {&number, structure};
    OK(cuEventCreate(&begin, 0));
    OK(cuEventCreate(&end, 0));
    CUfunction stranger = function("stranger");
    spin(NULL, 1, 32, 20000000); // until all is queued
    OK(cuEventRecord(begin, NULL));
    OK(cuLaunchKernel(stranger, 264, 1, 1, 1024, 1, 1, 0, NULL, strange, NULL));
    OK(cuEventRecord(end, NULL));
    OK(cuCtxSynchronize());
    OK(cuEventElapsedTime(&ms, begin, end));
    TRUE(ms > 0.500f && ms < 0.520f); // PARTITA_SIM_KERNEL_US=500
}

static void modules(void) {
    start();
    CUfunction f;
    CUmodule other, owner;
    CUdeviceptr at;
    size_t bytes, offset;
    int value;
    IS(500, cuModuleGetFunction(&f, module, "nothing"));
    IS(1, cuModuleGetFunction(&f, module, NULL));
    IS(218, cuModuleLoadData(&other, "this is no PTX")); // CUDA_ERROR_INVALID_PTX
    IS(1, cuModuleLoadData(&other, NULL));
    IS(301, cuModuleLoad(&other, "/nonexistent")); // CUDA_ERROR_FILE_NOT_FOUND
    OK(cuModuleGetGlobal_v2(&at, &bytes, module, "table"));
    EQ(bytes, 64);
    OK(cuMemsetD8_v2(at, 1, 64));
    IS(500, cuModuleGetGlobal_v2(&at, &bytes, module, "chair"));
    f = function("stranger");
    OK(cuFuncGetParamInfo(f, 0, &offset, &bytes));
    TRUE(offset == 0 && bytes == 4);
    OK(cuFuncGetParamInfo(f, 1, &offset, &bytes));
    TRUE(offset == 8 && bytes == 24);
    IS(1, cuFuncGetParamInfo(f, 2, &offset, &bytes));
    OK(cuFuncGetAttribute(&value, 0, f));
    EQ(value, 1024);
    OK(cuFuncGetAttribute(&value, 8, f));
    EQ(value, 49152);
    OK(cuFuncSetAttribute(f, 8, 227 * 1024));
    IS(1, cuFuncSetAttribute(f, 8, 228 * 1024));
    IS(1, cuFuncSetAttribute(f, 4, 10));
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, f, 1024, 0));
    EQ(value, 2);
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, f, 32, 100 * 1024));
    EQ(value, 2);
    int grid, block;
    OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, f, NULL, 0, 0));
    TRUE(block == 1024 && grid == 264);
    OK(cuFuncGetModule(&owner, f));
    TRUE(owner == module);
    // Libraries: kernels without a context.
    CUlibrary library;
    CUkernel kernel;
    OK(cuLibraryLoadData(&library, PTX, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "partita_spin"));
    IS(500, cuLibraryGetKernel(&kernel, library, "nothing"));
    OK(cuKernelGetFunction(&f, kernel));
    uint64_t ns = 1000;
    void *params[] = {&ns};
    OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    OK(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    OK(cuCtxSynchronize());
    OK(cuLibraryGetModule(&other, library));
    OK(cuLibraryUnload(library));
    IS(400, cuLibraryUnload(library));
    IS(400, cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    f = function("partita_spin");
    OK(cuModuleUnload(module));
    IS(400, cuModuleUnload(module));
    IS(400, cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
}

// The first CUDA's way of launching, the linker, and calls that are not simulated.
static void old_ways(void) {
    start();
    CUdeviceptr out;
    uint32_t word;
    Record records[4];
    uint64_t ns = 1000;
    CUfunction f = function("partita_census");
    OK(cuMemAlloc_v2(&out, sizeof records));
    OK(cuFuncSetBlockShape(f, 64, 2, 1));
    OK(cuParamSetSize(f, 16));
    OK(cuParamSetv(f, 0, &out, 8));
    OK(cuParamSetv(f, 8, &ns, 8));
    OK(cuLaunchGrid(f, 2, 2));
    OK(cuMemcpyDtoH_v2(records, out, sizeof records));
    for (int i = 0; i < 4; i++) EQ(records[i].block, i + 1);
    void *link;
    const void *image;
    size_t bytes;
    OK(cuLinkCreate_v2(0, NULL, NULL, &link));
    OK(cuLinkAddData_v2(link, 1, (void *)PTX, sizeof PTX, "a", 0, NULL, NULL));
    IS(218, cuLinkAddData_v2(link, 1, "junk", 5, "b", 0, NULL, NULL));
    OK(cuLinkComplete(link, &image, &bytes));
    OK(cuModuleLoadData(&module, image));
    OK(cuLinkDestroy(link));
    function("partita_copy");
    IS(801, cuTexObjectDestroy(7)); // CUDA_ERROR_NOT_SUPPORTED
    OK(cuMemcpyDtoH_v2(&word, out, 4));
}

static void misuse(void) {
    start();
    CUfunction f = function("partita_spin");
    uint64_t ns = 1000;
    void *params[] = {&ns}, *none[] = {NULL};
#define LAUNCH(gx, gy, gz, bx, by, bz, shared) \
    cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, NULL, params, NULL)
    OK(LAUNCH(1, 1, 1, 1024, 1, 1, 49152));
    IS(1, LAUNCH(0, 1, 1, 32, 1, 1, 0));
    IS(1, LAUNCH(1, 1, 1, 32, 0, 1, 0));
    IS(1, LAUNCH(1, 65536, 1, 32, 1, 1, 0));
    IS(1, LAUNCH(1, 1, 1, 1025, 1, 1, 0));
    IS(1, LAUNCH(1, 1, 1, 1, 1, 65, 0));
    IS(1, LAUNCH(1, 1, 1, 32, 33, 1, 0));
    IS(1, LAUNCH(1, 1, 1, 32, 1, 1, 49153));
    IS(1, cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    IS(1, cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, none, NULL));
    IS(400, cuLaunchKernel(NULL, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    Attribute cluster = {.id = 4, .u.dim = {4, 1, 1}}, coop = {.id = 2, .u.value = 1};
    Config config = {{8, 1, 1}, {32, 1, 1}, 0, NULL, &cluster, 1};
    OK(cuLaunchKernelEx(&config, f, params, NULL));
    config.grid[0] = 9;
    IS(1, cuLaunchKernelEx(&config, f, params, NULL));
    config.grid[0] = 16;
    cluster.u.dim[0] = 16;
    IS(912, cuLaunchKernelEx(&config, f, params, NULL)); // CUDA_ERROR_INVALID_CLUSTER_SIZE: not portable
    OK(cuFuncSetAttribute(f, 14, 1));
    OK(cuLaunchKernelEx(&config, f, params, NULL));
    config.grid[0] = cluster.u.dim[0] = 32;
    IS(912, cuLaunchKernelEx(&config, f, params, NULL));
    IS(1, cuLaunchKernelEx(NULL, f, params, NULL));
    config.attrs = &coop;
    config.grid[0] = 264;
    config.block[0] = 1024;
    OK(cuLaunchKernelEx(&config, f, params, NULL));
    config.grid[0] = 265;
    IS(720, cuLaunchKernelEx(&config, f, params, NULL)); // CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
    IS(720, cuLaunchCooperativeKernel(f, 265, 1, 1, 1024, 1, 1, 0, NULL, params));
    OK(cuLaunchCooperativeKernel(f, 264, 1, 1, 1024, 1, 1, 0, NULL, params));
    OK(cuCtxSynchronize());
}

// The debug callback sees the genuine descriptor on the launching thread, and may change it.
static struct { pthread_t thread; int calls; uint32_t qmd[96]; uint32_t mask[4]; int write; } seen;

static void callback(void *user, int domain, int id, const void *params) {
    TRUE(user == &seen && domain == 0xb && id == 1);
    EQ(*(const uint32_t *)params, 0x58);
    uint32_t *qmd = ((uint32_t *const *)params)[4];
    memcpy(seen.qmd, qmd, sizeof seen.qmd);
    seen.thread = pthread_self();
    seen.calls++;
    if (seen.write) {
        memcpy((char *)qmd + 304, seen.mask, 16);
        qmd[0] |= 1u << 31;
    }
}

static void subscribe(void) {
    static const CUuuid id = {{0x2c, 0x8e, 0x0a, 0xd8, 0x07, 0x10, 0xab, 0x4e, 0x90, 0xdd, 0x54, 0x71, 0x9f, 0xe5,
                               0xf7, 0x4b}};
    static const CUuuid other = {{1}};
    const void *table;
    uint32_t handle;
    IS(1, cuGetExportTable(&table, &other));
    OK(cuGetExportTable(&table, &id));
    TRUE(*(const size_t *)table >= 0x38);
    int (*sub)(uint32_t *, void *, void *) = ((void *const *)table)[3];
    int (*enable)(uint32_t, uint32_t, int, int) = ((void *const *)table)[6];
    EQ(sub(&handle, (void *)callback, &seen), 0);
    EQ(enable(1, handle, 0xb, 1), 0);
    TRUE(enable(1, handle + 1, 0xb, 1) != 0);
    TRUE(sub(&handle, (void *)callback, &seen) != 0); // one place for a subscriber
}

static void descriptor(void) {
    start();
    subscribe();
    Record records[264];
    seen.calls = 0;
    EQ(census(NULL, 200, 128, 1000, records), 132);
    EQ(seen.calls, 1);
    TRUE(pthread_equal(seen.thread, pthread_self()));
    const unsigned char *bytes = (const unsigned char *)seen.qmd;
    EQ(bytes[72], 0x40);
    EQ(seen.qmd[32], 200);
    EQ(seen.qmd[36] & 0xffff, 128);
    EQ(seen.qmd[0] >> 31, 0);
    // A mask in physical numbers: bits 0 and 1 are the first two TPCs of GPC 0 and carry SMs 0, 1, 16 and 17.
    memset(seen.mask, 0xff, 16);
    seen.mask[0] = ~3u;
    seen.write = 1;
    EQ(census(NULL, 64, 1024, 1000, records), 4);
    for (int i = 0; i < 64; i++) TRUE(records[i].smid / 2 == 0 || records[i].smid / 2 == 8);
    // Bits beyond 64 are live: TPC 83 is the last.
    memset(seen.mask, 0xff, 16);
    seen.mask[2] = ~(1u << 19);
    EQ(census(NULL, 8, 1024, 1000, records), 2);
    TRUE(records[0].smid / 2 == 65);
    seen.write = 0;
    EQ(census(NULL, 264, 1024, 1000, NULL), 132);
    // Clusters and cooperation look as on hardware.
    uint64_t ns = 1000;
    void *params[] = {&ns};
    Attribute cluster = {.id = 4, .u.dim = {4, 1, 1}};
    Config config = {{8, 1, 1}, {96, 1, 1}, 0, NULL, &cluster, 1};
    OK(cuLaunchKernelEx(&config, function("partita_spin"), params, NULL));
    TRUE(seen.qmd[32] == 2 && seen.qmd[67] == 0x00010104 && seen.qmd[78] == 0xffffff00 && seen.qmd[0] >> 31);
    OK(cuLaunchCooperativeKernel(function("partita_spin"), 8, 1, 1, 96, 1, 1, 0, NULL, params));
    TRUE(seen.qmd[32] == 1 && seen.qmd[69] == 0x00010008 && seen.qmd[70] == 1);
    OK(cuCtxSynchronize());
}

static void set_stream_mask(CUstream stream, uint32_t on, const uint32_t mask[4]) {
    char *structure = *(char **)stream + 0x51c;
    memcpy(structure + 4, mask, 16);
    memcpy(structure, &on, 4);
}

// The mask of a stream is logical: bit i stands for SMs 2i and 2i + 1.
static void stream_mask(void) {
    start();
    subscribe();
    CUstream stream, plain;
    Record records[64];
    uint32_t mask[4] = {~(1u << 5), ~0u, ~1u, ~0u};
    OK(cuStreamCreate(&stream, 1));
    OK(cuStreamCreate(&plain, 1));
    EQ(census(stream, 64, 1024, 1000, NULL), 64);
    set_stream_mask(stream, 1, mask);
    EQ(census(stream, 64, 1024, 1000, records), 4);
    for (int i = 0; i < 64; i++) TRUE(records[i].smid / 2 == 5 || records[i].smid / 2 == 64);
    TRUE(seen.qmd[0] >> 31 == 1);
    EQ(census(plain, 264, 1024, 1000, NULL), 132);
    set_stream_mask(stream, 0, mask);
    EQ(census(stream, 264, 1024, 1000, NULL), 132);
    OK(cuStreamDestroy_v2(stream));
    // A new stream in the old one's place starts without a mask.
    OK(cuStreamCreate(&stream, 1));
    EQ(census(stream, 264, 1024, 1000, NULL), 132);
}

CUresult cuOccupancyMaxPotentialClusterSize(int *, CUfunction, const Config *);

// Clusters that the whole device holds: of a GPC's SMs as many as fit, with two blocks of 1024 threads to an SM.
static void clusters(void) {
    start();
    CUfunction f = function("partita_spin");
    int value;
    static const int expected[][2] = {{1, 264}, {2, 132}, {4, 62}, {8, 30}};
    Attribute cluster = {.id = 4, .u.dim = {1, 1, 1}};
    Config config = {{256, 1, 1}, {1024, 1, 1}, 0, NULL, &cluster, 1};
    for (int i = 0; i < 4; i++) {
        cluster.u.dim[0] = (unsigned)expected[i][0];
        OK(cuOccupancyMaxActiveClusters(&value, f, &config));
        EQ(value, expected[i][1]);
    }
    OK(cuOccupancyMaxPotentialClusterSize(&value, f, &config));
    EQ(value, 8);
    cluster.u.dim[0] = 16;
    IS(912, cuOccupancyMaxActiveClusters(&value, f, &config)); // CUDA_ERROR_INVALID_CLUSTER_SIZE
    OK(cuFuncSetAttribute(f, 14, 1)); // CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    OK(cuOccupancyMaxActiveClusters(&value, f, &config));
    EQ(value, 14);
    OK(cuOccupancyMaxPotentialClusterSize(&value, f, &config));
    EQ(value, 16);
    // One block to an SM.
    config.shared = 120 * 1024;
    OK(cuFuncSetAttribute(f, 8, 120 * 1024));
    OK(cuOccupancyMaxActiveClusters(&value, f, &config));
    EQ(value, 7);
}

CASES({"kernels", kernels}, {"modules", modules}, {"old_ways", old_ways}, {"misuse", misuse}, {"descriptor", descriptor},
      {"stream_mask", stream_mask}, {"clusters", clusters})
