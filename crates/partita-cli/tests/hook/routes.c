/* Every route by which a program obtains device memory: charged to the byte,
 * credited to the byte, refused beyond the quota with nothing changed.
 * Prints a line a route: its name, `ok` or what was wrong. */
#include "cuda.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static int failures;

static void check(const char *route, const char *what, long long got, long long expected) {
    if (got == expected) return;
    printf("%s: %s: got %lld, expected %lld\n", route, what, got, expected);
    failures++;
}

struct array { size_t width, height; unsigned format, channels; };
struct array3d { size_t width, height, depth; unsigned format, channels, flags; };
struct property { unsigned type, handle_types; unsigned location_type; int location; void *win32; unsigned char rest[8]; };

typedef int (*fn_alloc)(address *, size_t);
typedef int (*fn_free)(address);
typedef int (*fn_alloc_async)(address *, size_t, void *);
typedef int (*fn_alloc_pool)(address *, size_t, void *, void *);
typedef int (*fn_free_async)(address, void *);
typedef int (*fn_pitch)(address *, size_t *, size_t, size_t, unsigned);
typedef int (*fn_managed)(address *, size_t, unsigned);
typedef int (*fn_array)(void **, const void *);
typedef int (*fn_mipmap)(void **, const void *, unsigned);
typedef int (*fn_create)(uint64_t *, size_t, const struct property *, uint64_t);
typedef int (*fn_map)(address, size_t, size_t, uint64_t, uint64_t);
typedef int (*fn_reserve)(address *, size_t, size_t, address, uint64_t);
typedef int (*fn_unmap)(address, size_t);
typedef int (*fn_handle)(uint64_t);
typedef int (*fn_retain)(uint64_t *, void *);

static size_t quota;

static void plain(const char *route, fn_alloc alloc, fn_free release) {
    size_t before = free_bytes();
    address a, b;
    check(route, "first", alloc(&a, 1000003), 0);
    check(route, "charged", before - free_bytes(), 1000003);
    check(route, "second", alloc(&b, 1), 0);
    check(route, "charged twice", before - free_bytes(), 1000004);
    check(route, "over the quota", alloc(&b, quota), 2);
    check(route, "unchanged", before - free_bytes(), 1000004);
    check(route, "zero bytes", alloc(&b, 0), 1);
    check(route, "a bad pointer", release(0x1234), 1);
    check(route, "an inner pointer", release(a + 256), 1);
    check(route, "still unchanged", before - free_bytes(), 1000004);
    check(route, "free", release(a), 0);
    check(route, "credited", before - free_bytes(), 1);
    check(route, "freed twice", release(a), 1);
    check(route, "credited once", before - free_bytes(), 1);
    check(route, "null", release(0), 0);
}

int main(void) {
    start(0);
    quota = total_bytes();
    size_t device_total = 0;
    OK("cuDeviceTotalMem_v2", CALL(fn_pi, "cuDeviceTotalMem_v2")(&device_total, 0));
    check("totals", "cuDeviceTotalMem against cuMemGetInfo", device_total, quota);
    check("totals", "free at the start", free_bytes(), quota);

    fn_free release = CALL(fn_free, "cuMemFree_v2");
    address p;

    /* The last byte of the quota can be had, and not one more. */
    fn_alloc alloc = CALL(fn_alloc, "cuMemAlloc_v2");
    check("exact", "all of it", alloc(&p, quota), 0);
    address q;
    check("exact", "one byte more", alloc(&q, 1), 2);
    check("exact", "free", free_bytes(), 0);
    check("exact", "given back", release(p), 0);
    check("exact", "one byte too many", alloc(&p, quota + 1), 2);

    plain("cuMemAlloc by dlsym", alloc, release);
    check("left over", "one byte", quota - free_bytes(), 1);
    plain("cuMemAlloc by cuGetProcAddress", (fn_alloc)by_version("cuMemAlloc", 12000, 1),
          (fn_free)by_version("cuMemFree", 12000, 1));
    /* What plain() leaves is freed with its context at the end. */
    size_t base = free_bytes();

    {
        fn_pitch pitch = CALL(fn_pitch, "cuMemAllocPitch_v2");
        size_t bytes = 0;
        check("cuMemAllocPitch", "alloc", pitch(&p, &bytes, 1000, 10, 4), 0);
        check("cuMemAllocPitch", "charged with its pitch", base - free_bytes(), 10 * bytes);
        check("cuMemAllocPitch", "free", release(p), 0);
        check("cuMemAllocPitch", "credited", base - free_bytes(), 0);
        check("cuMemAllocPitch", "over the quota", pitch(&p, &bytes, MIB, quota / MIB + 1, 4), 2);
        check("cuMemAllocPitch", "unchanged", base - free_bytes(), 0);
    }
    {
        fn_managed managed = CALL(fn_managed, "cuMemAllocManaged");
        check("cuMemAllocManaged", "alloc", managed(&p, 5000, 1), 0);
        check("cuMemAllocManaged", "charged", base - free_bytes(), 5000);
        check("cuMemAllocManaged", "free", release(p), 0);
        check("cuMemAllocManaged", "over the quota", managed(&p, quota, 1), 2);
        check("cuMemAllocManaged", "unchanged", base - free_bytes(), 0);
    }
    for (int threaded = 0; threaded < 2; threaded++) {
        const char *route = threaded ? "cuMemAllocAsync, per-thread stream" : "cuMemAllocAsync";
        fn_alloc_async async = (fn_alloc_async)by_version("cuMemAllocAsync", 12000, 1 + threaded);
        fn_free_async free_async = (fn_free_async)by_version("cuMemFreeAsync", 12000, 1 + threaded);
        check(route, "alloc", async(&p, 70001, NULL), 0);
        check(route, "charged", base - free_bytes(), 70001);
        check(route, "free", free_async(p, NULL), 0);
        check(route, "credited", base - free_bytes(), 0);
        check(route, "alloc again", async(&p, 70001, NULL), 0);
        OK("cuCtxSynchronize", CALL(int (*)(void), "cuCtxSynchronize")());
        check(route, "plain free", release(p), 0);
        check(route, "credited by plain free", base - free_bytes(), 0);
        check(route, "over the quota", async(&p, quota, NULL), 2);
        check(route, "unchanged", base - free_bytes(), 0);
    }
    {
        void *pool = NULL;
        OK("cuDeviceGetDefaultMemPool", CALL(fn_pi, "cuDeviceGetDefaultMemPool")(&pool, 0));
        fn_alloc_pool from = CALL(fn_alloc_pool, "cuMemAllocFromPoolAsync");
        check("cuMemAllocFromPoolAsync", "alloc", from(&p, 12345, pool, NULL), 0);
        check("cuMemAllocFromPoolAsync", "charged", base - free_bytes(), 12345);
        check("cuMemAllocFromPoolAsync", "free", CALL(fn_free_async, "cuMemFreeAsync")(p, NULL), 0);
        check("cuMemAllocFromPoolAsync", "credited", base - free_bytes(), 0);
        check("cuMemAllocFromPoolAsync", "over the quota", from(&p, quota, pool, NULL), 2);
    }
    {
        void *array = NULL;
        struct array flat = {1024, 64, 0x20 /* float */, 4};
        fn_array create = CALL(fn_array, "cuArrayCreate_v2");
        fn_p destroy = CALL(fn_p, "cuArrayDestroy");
        check("cuArrayCreate", "create", create(&array, &flat), 0);
        check("cuArrayCreate", "charged in bytes, not bits", base - free_bytes(), 1024 * 64 * 16);
        check("cuArrayCreate", "destroy", destroy(array), 0);
        check("cuArrayCreate", "credited", base - free_bytes(), 0);
        struct array line = {1000, 0, 0x01 /* u8 */, 1};
        check("cuArrayCreate, one row", "create", create(&array, &line), 0);
        check("cuArrayCreate, one row", "charged", base - free_bytes(), 1000);
        check("cuArrayCreate, one row", "destroy", destroy(array), 0);
        struct array3d deep = {64, 32, 16, 0x10 /* half */, 2, 0};
        check("cuArray3DCreate", "create", CALL(fn_array, "cuArray3DCreate_v2")(&array, &deep), 0);
        check("cuArray3DCreate", "charged", base - free_bytes(), 64 * 32 * 16 * 4);
        check("cuArray3DCreate", "destroy", destroy(array), 0);
        struct array3d mip = {64, 64, 0, 0x01, 1, 0};
        check("cuMipmappedArrayCreate", "create", CALL(fn_mipmap, "cuMipmappedArrayCreate")(&array, &mip, 3), 0);
        check("cuMipmappedArrayCreate", "charged with its levels", base - free_bytes(), 64 * 64 + 32 * 32 + 16 * 16);
        check("cuMipmappedArrayCreate", "destroy", CALL(fn_p, "cuMipmappedArrayDestroy")(array), 0);
        check("cuMipmappedArrayCreate", "credited", base - free_bytes(), 0);
    }
    {
        const char *route = "cuMemCreate";
        struct property wanted;
        memset(&wanted, 0, sizeof wanted);
        wanted.type = 1;
        wanted.location_type = 1;
        size_t grain = 2 * MIB;
        uint64_t handle, again;
        fn_create create = CALL(fn_create, "cuMemCreate");
        fn_handle drop = CALL(fn_handle, "cuMemRelease");
        check(route, "create", create(&handle, 2 * grain, &wanted, 0), 0);
        check(route, "charged", base - free_bytes(), 2 * grain);
        address va = 0;
        OK("cuMemAddressReserve", CALL(fn_reserve, "cuMemAddressReserve")(&va, 2 * grain, 0, 0, 0));
        check(route, "map", CALL(fn_map, "cuMemMap")(va, 2 * grain, 0, handle, 0), 0);
        check(route, "retain", CALL(fn_retain, "cuMemRetainAllocationHandle")(&again, (void *)va), 0);
        check(route, "release", drop(handle), 0);
        check(route, "held by the other reference", base - free_bytes(), 2 * grain);
        check(route, "release the other", drop(again), 0);
        check(route, "held by the mapping", base - free_bytes(), 2 * grain);
        check(route, "unmap", CALL(fn_unmap, "cuMemUnmap")(va, 2 * grain), 0);
        check(route, "credited", base - free_bytes(), 0);
        check(route, "released once too often", drop(handle), 1);
        check(route, "credited once", base - free_bytes(), 0);
        check(route, "over the quota", create(&handle, (quota / grain + 1) * grain, &wanted, 0), 2);
        check(route, "unchanged", base - free_bytes(), 0);
    }
    {
        void *graph = NULL, *node = NULL;
        unsigned char parameters[256] = {0};
        OK("cuGraphCreate", CALL(int (*)(void **, unsigned), "cuGraphCreate")(&graph, 0));
        int code = CALL(int (*)(void **, void *, void *, size_t, void *), "cuGraphAddMemAllocNode")(&node, graph, NULL, 0, parameters);
        check("graph memory nodes", "refused", code, 801);
    }
    {
        size_t before = free_bytes();
        void *other = NULL;
        OK("cuCtxCreate_v2", CALL(fn_pui, "cuCtxCreate_v2")(&other, 0, 0));
        check("cuCtxDestroy", "alloc", alloc(&p, 9 * MIB), 0);
        check("cuCtxDestroy", "charged", before - free_bytes(), 9 * MIB);
        OK("cuCtxDestroy_v2", CALL(fn_p, "cuCtxDestroy_v2")(other));
        OK("cuCtxSetCurrent", CALL(fn_p, "cuCtxSetCurrent")(context));
        check("cuCtxDestroy", "credited", before - free_bytes(), 0);
    }
    {
        size_t before = free_bytes();
        void *primary = NULL;
        OK("cuDevicePrimaryCtxRetain", CALL(fn_pi, "cuDevicePrimaryCtxRetain")(&primary, 0));
        OK("cuCtxSetCurrent", CALL(fn_p, "cuCtxSetCurrent")(primary));
        check("cuDevicePrimaryCtxReset", "alloc", alloc(&p, 3 * MIB), 0);
        check("cuDevicePrimaryCtxReset", "charged", before - free_bytes(), 3 * MIB);
        OK("cuCtxSetCurrent", CALL(fn_p, "cuCtxSetCurrent")(context));
        OK("cuDevicePrimaryCtxRelease", CALL(int (*)(int), "cuDevicePrimaryCtxRelease_v2")(0));
        check("cuDevicePrimaryCtxRelease", "credited", before - free_bytes(), 0);
    }
    if (!failures) printf("every route ok\n");
    return failures != 0;
}
