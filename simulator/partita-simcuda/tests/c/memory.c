// Every way to allocate memory, its cost, and copies.
#include "sim.h"

static size_t available(void) {
    size_t left, total;
    OK(cuMemGetInfo_v2(&left, &total));
    return left;
}

static unsigned char *pattern(size_t bytes, int seed) {
    unsigned char *p = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) p[i] = (unsigned char)(i * 131 + i / 251 + (size_t)seed);
    return p;
}

static void routes(void) {
    // No module: its global variables would share the page of the first small allocation.
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    CUdeviceptr a, b, base;
    size_t bytes, pitch, first = available();
    IS(1, cuMemAlloc_v2(&a, 0));
    IS(1, cuMemAlloc_v2(NULL, 10));
    OK(cuMemFree_v2(0));
    IS(1, cuMemFree_v2(0x1234));
    // To the byte, and small ones share pages.
    OK(cuMemAlloc_v2(&a, 1000));
    EQ(first - available(), 2 * MIB);
    OK(cuMemAlloc_v2(&b, 1000));
    EQ(first - available(), 2 * MIB);
    TRUE(a % 512 == 0 && b % 512 == 0 && a != b);
    OK(cuMemGetAddressRange_v2(&base, &bytes, a + 999));
    TRUE(base == a && bytes == 1000);
    IS(500, cuMemGetAddressRange_v2(&base, &bytes, a + 1000));
    IS(1, cuMemFree_v2(a + 8)); // inside
    OK(cuMemFree_v2(a));
    IS(1, cuMemFree_v2(a));
    OK(cuMemFree_v2(b));
    EQ(available(), first);
    OK(cuMemAlloc_v2(&a, MIB + 1));
    EQ(first - available(), 2 * MIB);
    OK(cuMemFree_v2(a));
    // More than there is.
    IS(2, cuMemAlloc_v2(&a, first + 4 * MIB));
    IS(2, cuMemAlloc_v2(&a, (size_t)1 << 60));
    OK(cuMemAlloc_v2(&a, first / 2));
    IS(2, cuMemAlloc_v2(&b, first / 2 + 4 * MIB));
    OK(cuMemFree_v2(a));
    // Rows.
    OK(cuMemAllocPitch_v2(&a, &pitch, 1000, 10, 4));
    EQ(pitch, 1024);
    OK(cuMemGetAddressRange_v2(&base, &bytes, a));
    EQ(bytes, 10240);
    OK(cuMemFree_v2(a));
    IS(1, cuMemAllocPitch_v2(&a, &pitch, 1000, 10, 3));
    // Managed memory is the host's and the device's at the same address.
    OK(cuMemAllocManaged(&a, 5 * MIB, 1));
    EQ(first - available(), 6 * MIB);
    unsigned char *host = (unsigned char *)a;
    host[5 * MIB - 1] = 7;
    OK(cuMemsetD8_v2(a, 9, 100));
    OK(cuCtxSynchronize());
    TRUE(host[0] == 9 && host[99] == 9 && host[100] == 0 && host[5 * MIB - 1] == 7);
    unsigned managed;
    OK(cuPointerGetAttribute(&managed, 8, a + 5));
    EQ(managed, 1);
    OK(cuMemFree_v2(a));
    IS(1, cuMemAllocManaged(&a, 100, 9));
    EQ(available(), first);
    // Fragments: every second block back, then one that needs them all.
    CUdeviceptr many[64];
    size_t each = first / 64 / (2 * MIB) * (2 * MIB);
    for (int i = 0; i < 64; i++) OK(cuMemAlloc_v2(&many[i], each));
    for (int i = 0; i < 64; i += 2) OK(cuMemFree_v2(many[i]));
    OK(cuMemAlloc_v2(&a, 20 * each));
    unsigned char *data = pattern(3 * MIB, 1), *back = malloc(3 * MIB);
    // Across a seam between two pieces.
    OK(cuMemcpyHtoD_v2(a + each - MIB, data, 3 * MIB));
    OK(cuMemcpyDtoH_v2(back, a + each - MIB, 3 * MIB));
    TRUE(!memcmp(data, back, 3 * MIB));
    OK(cuMemFree_v2(a));
    for (int i = 1; i < 64; i += 2) OK(cuMemFree_v2(many[i]));
    EQ(available(), first);
    // A fresh allocation is as zero as the memory below it; freed memory does not come back with its contents.
    OK(cuMemAlloc_v2(&a, 4 * MIB));
    OK(cuMemcpyDtoH_v2(back, a + each % MIB, 2 * MIB));
    for (size_t i = 0; i < 2 * MIB; i++) TRUE(back[i] == 0);
}

static void copies(void) {
    start();
    enum { N = 300000 };
    unsigned char *data = pattern(N, 5), *back = malloc(N);
    CUdeviceptr a, b;
    OK(cuMemAlloc_v2(&a, N));
    OK(cuMemAlloc_v2(&b, N));
    OK(cuMemcpyHtoD_v2(a, data, N));
    OK(cuMemcpyDtoD_v2(b + 1, a, N - 1));
    OK(cuMemcpyDtoH_v2(back, b + 1, N - 1));
    TRUE(!memcmp(back, data, N - 1));
    memset(back, 0, N);
    OK(cuMemcpy((CUdeviceptr)back, a, N));
    TRUE(!memcmp(back, data, N));
    IS(1, cuMemcpyHtoD_v2(a, data, N + 1));
    IS(1, cuMemcpyDtoH_v2(back, a + 1, N));
    IS(1, cuMemcpyHtoD_v2(0x300000000000ull + 3 * GIB, data, 10)); // of the window, but nothing there
    IS(1, cuMemcpyHtoD_v2(0, data, 10));
    OK(cuMemcpyHtoD_v2(a, data, 0));
    // Fills of each width.
    uint16_t *half = (uint16_t *)back;
    uint32_t *word = (uint32_t *)back;
    OK(cuMemsetD16_v2(a, 0xbeef, 1000));
    OK(cuMemsetD32_v2(b, 0x12345678, 1000));
    OK(cuMemcpyDtoH_v2(back, a, 2002));
    TRUE(half[0] == 0xbeef && half[999] == 0xbeef && back[2000] == data[2000]);
    OK(cuMemcpyDtoH_v2(back, b, 4000));
    TRUE(word[0] == 0x12345678 && word[999] == 0x12345678);
    IS(1, cuMemsetD32_v2(b + 2, 0, 4));
    IS(1, cuMemsetD8_v2(b, 0, N + 1));
    OK(cuMemsetD2D8_v2(a, 1024, 0xab, 10, 3));
    OK(cuMemcpyDtoH_v2(back, a, 3000));
    TRUE(back[1024] == 0xab && back[1033] == 0xab && back[1034] != 0xab && back[2057] == 0xab);
    // Rectangles between host, device and array.
    CUarray array;
    ArrayDesc desc = {100, 20, 0x20, 1}; // floats
    OK(cuArrayCreate_v2(&array, &desc));
    OK(cuMemcpyHtoD_v2(a, data, N));
    Copy2D in = {.src_kind = 2, .src = a, .src_pitch = 1024, .dst_kind = 3, .dst_array = array, .dst_x = 8, .dst_y = 2,
                 .width = 300, .height = 10};
    OK(cuMemcpy2D_v2(&in));
    memset(back, 0, N);
    Copy2D out = {.src_kind = 3, .src_array = array, .src_x = 8, .src_y = 2, .dst_kind = 1, .dst_host = back,
                  .dst_pitch = 512, .width = 300, .height = 10};
    OK(cuMemcpy2D_v2(&out));
    for (int y = 0; y < 10; y++) TRUE(!memcmp(back + 512 * y, data + 1024 * y, 300));
    OK(cuArrayDestroy(array));
    IS(400, cuArrayDestroy(array));
    // A box.
    Array3Desc box = {16, 8, 4, 0x01, 4, 0}, found;
    OK(cuArray3DCreate_v2(&array, &box));
    OK(cuArray3DGetDescriptor_v2(&found, array));
    TRUE(!memcmp(&box, &found, sizeof box));
    Copy3D there = {.src_kind = 1, .src_host = data, .src_pitch = 64, .src_height = 8, .dst_kind = 3,
                    .dst_array = array, .width = 64, .height = 8, .depth = 4};
    OK(cuMemcpy3D_v2(&there));
    memset(back, 0, N);
    Copy3D back_again = {.src_kind = 3, .src_array = array, .src_z = 1, .dst_kind = 1, .dst_host = back,
                         .dst_pitch = 64, .dst_height = 8, .width = 64, .height = 8, .depth = 3};
    OK(cuMemcpy3D_v2(&back_again));
    TRUE(!memcmp(back, data + 512, 3 * 512));
    OK(cuArrayDestroy(array));
    box.channels = 3;
    IS(1, cuArray3DCreate_v2(&array, &box));
    box.channels = 4;
    CUmipmappedArray mips;
    size_t first = available();
    OK(cuMipmappedArrayCreate(&mips, &box, 99));
    OK(cuMipmappedArrayGetLevel(&array, mips, 2));
    OK(cuArray3DGetDescriptor_v2(&found, array));
    TRUE(found.width == 4 && found.height == 2 && found.depth == 1);
    IS(1, cuMipmappedArrayGetLevel(&array, mips, 5));
    OK(cuMipmappedArrayDestroy(mips));
    TRUE(available() >= first);
    // One that is to be mapped later has no memory.
    Array3Desc later = {1024, 1024, 64, 0x01, 1, 0x80};
    first = available();
    OK(cuArray3DCreate_v2(&array, &later));
    OK(cuMipmappedArrayCreate(&mips, &later, 3));
    TRUE(available() == first);
    Copy2D nowhere = {.src_kind = 1, .src_host = data, .src_pitch = 64, .dst_kind = 3, .dst_array = array, .width = 64, .height = 1};
    IS(1, cuMemcpy2D_v2(&nowhere));
    OK(cuArrayDestroy(array));
    OK(cuMipmappedArrayDestroy(mips));
}

static void host_call(void *data) { ++*(volatile int *)data; }

static void host(void) {
    start();
    enum { N = 1 << 20 };
    void *pinned, *mapped;
    CUdeviceptr a, seen;
    int type;
    OK(cuMemAllocHost_v2(&pinned, N));
    OK(cuMemHostAlloc(&mapped, N, 3));
    OK(cuMemAlloc_v2(&a, N));
    OK(cuMemHostGetDevicePointer_v2(&seen, mapped, 0));
    EQ(seen, (CUdeviceptr)mapped);
    OK(cuPointerGetAttribute(&type, 2, seen));
    EQ(type, 1);
    OK(cuPointerGetAttribute(&type, 2, a));
    EQ(type, 2);
    IS(1, cuPointerGetAttribute(&type, 2, (CUdeviceptr)&type));
    // Asynchronous copies of pinned memory happen in stream order, behind a kernel that is still running.
    CUstream stream;
    OK(cuStreamCreate(&stream, 1));
    memset(pinned, 1, N);
    spin(stream, 1, 32, 20000000);
    OK(cuMemcpyHtoDAsync_v2(a, pinned, N, stream));
    OK(cuMemcpyDtoHAsync_v2(mapped, a, N, stream));
    IS(600, cuStreamQuery(stream)); // CUDA_ERROR_NOT_READY
    memset(pinned, 2, N);          // seen, because the copy has not begun
    OK(cuStreamSynchronize(stream));
    TRUE(((char *)mapped)[0] == 2 && ((char *)mapped)[N - 1] == 2);
    // A kernel writes into mapped host memory.
    memset(mapped, 0, N);
    uint64_t bytes = 5000;
    void *params[] = {&seen, &a, &bytes};
    OK(cuLaunchKernel(function("partita_copy"), 4, 1, 1, 64, 1, 1, 0, stream, params, NULL));
    OK(cuStreamSynchronize(stream));
    TRUE(((char *)mapped)[4999] == 2 && ((char *)mapped)[5000] == 0);
    // Registered memory: the program's own.
    char *own = mmap(NULL, N, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    IS(1, cuMemHostRegister_v2(NULL, N, 0));
    OK(cuMemHostRegister_v2(own, N, 2));
    IS(712, cuMemHostRegister_v2(own + 4096, 4096, 2)); // CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
    OK(cuMemHostGetDevicePointer_v2(&seen, own, 0));
    OK(cuMemsetD8_v2(a, 5, N));
    OK(cuMemcpyDtoHAsync_v2(own, a, N, stream));
    OK(cuStreamSynchronize(stream));
    TRUE(own[0] == 5 && own[N - 1] == 5);
    OK(cuMemcpyHtoDAsync_v2(a, own, N, stream));
    OK(cuStreamSynchronize(stream));
    params[0] = &seen;
    bytes = 100;
    OK(cuMemsetD8_v2(a, 6, N));
    OK(cuCtxSynchronize());
    OK(cuLaunchKernel(function("partita_copy"), 1, 1, 1, 64, 1, 1, 0, stream, params, NULL));
    OK(cuStreamSynchronize(stream));
    TRUE(own[99] == 6 && own[100] == 5);
    OK(cuMemHostUnregister(own));
    IS(713, cuMemHostUnregister(own)); // CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
    // Memory freed in stream order behind a copy that has not begun.
    CUdeviceptr pool;
    int calls = 0;
    OK(cuMemAllocAsync(&pool, N, stream));
    spin(stream, 1, 32, 10000000);
    OK(cuMemcpyHtoDAsync_v2(pool, pinned, N, stream));
    OK(cuMemFreeAsync(pool, stream));
    OK(cuLaunchHostFunc(stream, host_call, &calls));
    OK(cuStreamSynchronize(stream));
    EQ(calls, 1);
    OK(cuMemFreeHost(pinned));
    OK(cuMemFreeHost(mapped));
    IS(1, cuMemFreeHost(mapped));
}

static uint64_t pool_value(CUmemoryPool pool, int attribute) {
    uint64_t value;
    OK(cuMemPoolGetAttribute(pool, attribute, &value));
    return value;
}

static void pools(void) {
    start();
    CUmemoryPool pool, own;
    CUdeviceptr a, b;
    CUstream stream;
    size_t first = available();
    uint64_t all = UINT64_MAX, none = 0;
    OK(cuStreamCreate(&stream, 0));
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    EQ(pool_value(pool, 4), 0);
    OK(cuMemAllocAsync(&a, 10 * MIB, stream));
    OK(cuMemcpyHtoD_v2(a, &first, sizeof first));
    EQ(pool_value(pool, 7), 10 * MIB);
    EQ(first - available(), 10 * MIB);
    // Freed after a kernel: in use until the kernel is done, then released, because the threshold is 0.
    spin(stream, 1, 32, 5000000);
    OK(cuMemFreeAsync(a, stream));
    EQ(pool_value(pool, 7), 10 * MIB);
    OK(cuStreamSynchronize(stream));
    EQ(pool_value(pool, 7), 0);
    EQ(available(), first);
    // With a threshold the memory stays with the pool and is used again.
    OK(cuMemPoolSetAttribute(pool, 4, &all));
    OK(cuMemAllocAsync(&a, 10 * MIB, stream));
    OK(cuMemFreeAsync(a, stream));
    OK(cuStreamSynchronize(stream));
    EQ(first - available(), 10 * MIB);
    EQ(pool_value(pool, 5), 10 * MIB);
    OK(cuMemAllocAsync(&b, 8 * MIB, stream));
    EQ(pool_value(pool, 5), 10 * MIB);
    OK(cuMemFree_v2(b)); // the ordinary free takes it as well
    EQ(pool_value(pool, 6), 10 * MIB);
    OK(cuMemPoolTrimTo(pool, 0));
    EQ(available(), first);
    OK(cuMemPoolSetAttribute(pool, 4, &none));
    // The program's own pool, destroyed before its memory.
    PoolProps props = {.kind = 1, .location = {1, 0}};
    OK(cuMemPoolCreate(&own, &props));
    OK(cuMemAllocFromPoolAsync(&a, 3000, own, stream));
    EQ(first - available(), 2 * MIB);
    OK(cuMemPoolDestroy(own));
    IS(1, cuMemPoolGetAttribute(own, 5, &all));
    OK(cuMemFreeAsync(a, stream));
    OK(cuStreamSynchronize(stream));
    EQ(available(), first);
    IS(1, cuMemPoolDestroy(pool));
    IS(1, cuMemFreeAsync(a, stream));
    IS(2, cuMemAllocAsync(&a, first + 4 * MIB, stream));
}

static void mapped(void) {
    start();
    MemProp prop = {.kind = 1, .handles = 1, .location = {1, 0}};
    AccessDesc access = {{1, 0}, 3};
    size_t unit, first = available();
    CUdeviceptr at;
    CUmem one, two, same;
    OK(cuMemGetAllocationGranularity(&unit, &prop, 0));
    EQ(unit, 2 * MIB);
    IS(1, cuMemCreate(&one, unit + 1, &prop, 0));
    OK(cuMemCreate(&one, 2 * unit, &prop, 0));
    OK(cuMemCreate(&two, unit, &prop, 0));
    EQ(first - available(), 3 * unit);
    OK(cuMemAddressReserve(&at, 4 * unit, 0, 0, 0));
    OK(cuMemMap(at, 2 * unit, 0, one, 0));
    OK(cuMemMap(at + 2 * unit, unit, 0, two, 0));
    IS(1, cuMemMap(at + 2 * unit, unit, 0, two, 0)); // taken
    IS(1, cuMemMap(at + 3 * unit, 2 * unit, 0, one, 0)); // beyond the reservation
    IS(1, cuMemAddressFree(at, 4 * unit));               // in use
    IS(1, cuMemFree_v2(at));
    // Without access the device faults, for good.
    OK(cuMemSetAccess(at, 3 * unit, &access, 1));
    unsigned char *data = pattern(3 * unit, 3), *back = malloc(3 * unit);
    OK(cuMemcpyHtoD_v2(at, data, 3 * unit));
    OK(cuMemcpyDtoH_v2(back, at, 3 * unit));
    TRUE(!memcmp(data, back, 3 * unit));
    OK(cuMemRetainAllocationHandle(&same, (void *)at));
    EQ(same, one);
    OK(cuMemRelease(same));
    OK(cuMemRelease(one));
    IS(1, cuMemRelease(one));
    EQ(first - available(), 3 * unit); // the map holds it
    IS(1, cuMemUnmap(at, unit));       // half a map
    OK(cuMemUnmap(at, 3 * unit));
    EQ(first - available(), unit);
    OK(cuMemMap(at + unit, unit, 0, two, 0));
    OK(cuMemSetAccess(at + unit, unit, &access, 1));
    OK(cuMemcpyDtoH_v2(back, at + unit, unit));
    TRUE(!memcmp(data + 2 * unit, back, unit));
    OK(cuMemUnmap(at + unit, unit));
    OK(cuMemRelease(two));
    OK(cuMemAddressFree(at, 4 * unit));
    EQ(available(), first);
}

// A single attribute of an address needs a context, of any device; several at once need none.
static void told(void) {
    start();
    CUcontext context, other;
    CUdeviceptr a;
    int type = 7;
    unsigned managed = 7;
    int attributes[] = {2, 8};
    void *data[] = {&type, &managed};
    OK(cuMemAlloc_v2(&a, 64));
    OK(cuCtxPopCurrent_v2(&context));
    IS(201, cuPointerGetAttribute(&type, 2, a)); // CUDA_ERROR_INVALID_CONTEXT
    IS(201, cuPointerGetAttribute(&type, 2, (CUdeviceptr)&type));
    EQ(type, 7);
    OK(cuPointerGetAttributes(2, attributes, data, a));
    EQ(type, 2);
    EQ(managed & 0xff, 0);
    type = managed = 7;
    OK(cuCtxCreate_v2(&other, 0, 0));
    OK(cuPointerGetAttributes(2, attributes, data, a));
    EQ(type, 2);
    EQ(managed & 0xff, 0);
    OK(cuCtxDestroy_v2(other));
    IS(201, cuPointerGetAttribute(&type, 2, a));
    OK(cuCtxPushCurrent_v2(context));
    OK(cuPointerGetAttribute(&type, 2, a));
    OK(cuMemFree_v2(a));
}

// A kernel that reaches memory which is not there ends the context's work for good.
static void illegal(void) {
    start();
    CUdeviceptr a, bad = 0x300000000000ull + 64 * GIB;
    uint64_t bytes = 64;
    OK(cuMemAlloc_v2(&a, 64));
    void *params[] = {&bad, &a, &bytes};
    OK(cuLaunchKernel(function("partita_copy"), 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    IS(700, cuCtxSynchronize()); // CUDA_ERROR_ILLEGAL_ADDRESS
    IS(700, cuCtxSynchronize());
    IS(700, cuMemAlloc_v2(&a, 64));
    IS(700, cuLaunchKernel(function("partita_copy"), 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
}

CASES({"routes", routes}, {"copies", copies}, {"host", host}, {"pools", pools}, {"mapped", mapped},
      {"told", told}, {"illegal", illegal})
