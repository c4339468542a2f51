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

/* What is freed into a pool that keeps it stays charged until the pool gives it up, and pays for what comes next. */
static void kept_by_pools(size_t base) {
    const char *route = "cuMemPool";
    struct { unsigned kind, handles, location_type; int location; void *win32; size_t most; unsigned short usage; unsigned char rest[54]; } wanted;
    memset(&wanted, 0, sizeof wanted);
    wanted.kind = 1;
    wanted.location_type = 1;
    void *pool = NULL;
    uint64_t everything = ~(uint64_t)0;
    address p, q;
    fn_alloc_pool from = CALL(fn_alloc_pool, "cuMemAllocFromPoolAsync");
    fn_free_async give = CALL(fn_free_async, "cuMemFreeAsync");
    int (*settle)(void) = CALL(int (*)(void), "cuCtxSynchronize");
    int (*trim)(void *, size_t) = CALL(int (*)(void *, size_t), "cuMemPoolTrimTo");
    OK("cuMemPoolCreate", CALL(int (*)(void **, void *), "cuMemPoolCreate")(&pool, &wanted));
    OK("cuMemPoolSetAttribute", CALL(int (*)(void *, int, void *), "cuMemPoolSetAttribute")(pool, 4, &everything));
    check(route, "alloc", from(&p, 64 * MIB, pool, NULL), 0);
    check(route, "free", give(p, NULL), 0);
    OK("cuCtxSynchronize", settle());
    check(route, "kept, so charged", base - free_bytes(), 64 * MIB);
    check(route, "alloc again", from(&p, 32 * MIB, pool, NULL), 0);
    check(route, "paid by what was kept", base - free_bytes(), 64 * MIB);
    check(route, "alloc more", from(&q, 48 * MIB, pool, NULL), 0);
    size_t both = base - free_bytes();
    if (both < 80 * MIB || both > 112 * MIB) check(route, "the driver's choice of reuse", both, 80 * MIB);
    check(route, "free", give(p, NULL), 0);
    check(route, "free", give(q, NULL), 0);
    OK("cuCtxSynchronize", settle());
    check(route, "trim", trim(pool, 0), 0);
    check(route, "credited", base - free_bytes(), 0);
    /* What is kept makes room for other memory before that is refused. */
    check(route, "alloc half", from(&p, quota / 2, pool, NULL), 0);
    check(route, "free", give(p, NULL), 0);
    OK("cuCtxSynchronize", settle());
    check(route, "more than the rest", CALL(fn_alloc, "cuMemAlloc_v2")(&p, quota / 2 + 16 * MIB), 0);
    check(route, "charged", base - free_bytes(), quota / 2 + 16 * MIB);
    check(route, "too much for a pool", from(&q, quota / 2, pool, NULL), 2);
    check(route, "free", CALL(fn_free, "cuMemFree_v2")(p), 0);
    check(route, "credited", base - free_bytes(), 0);
    /* A pool that is destroyed gives up what it keeps, and what is in use when that is freed. */
    check(route, "alloc", from(&p, 8 * MIB, pool, NULL), 0);
    check(route, "alloc", from(&q, 8 * MIB, pool, NULL), 0);
    check(route, "free", give(p, NULL), 0);
    OK("cuCtxSynchronize", settle());
    check(route, "destroy", CALL(fn_p, "cuMemPoolDestroy")(pool), 0);
    /* The driver may keep what is unused until the last is freed. */
    size_t used = base - free_bytes();
    if (used != 16 * MIB) check(route, "what is in use", used, 8 * MIB);
    check(route, "free the last", give(q, NULL), 0);
    OK("cuCtxSynchronize", settle());
    check(route, "credited", base - free_bytes(), 0);
}

/* Nodes that allocate, and allocations that are captured. */
static void of_graphs(size_t base) {
    const char *route = "cuGraphAddMemAllocNode";
    struct { unsigned kind, handles, location_type; int location; void *win32; size_t most; unsigned short usage; unsigned char rest[54];
             void *access; size_t count, bytes; address at; } wanted;
    memset(&wanted, 0, sizeof wanted);
    wanted.kind = 1;
    wanted.location_type = 1;
    wanted.bytes = 24 * MIB;
    void *graph = NULL, *node = NULL, *release = NULL, *executable = NULL, *stream = NULL;
    int (*make)(void **, unsigned) = CALL(int (*)(void **, unsigned), "cuGraphCreate");
    int (*add)(void **, void *, void **, size_t, void *) = CALL(int (*)(void **, void *, void **, size_t, void *), "cuGraphAddMemAllocNode");
    int (*instantiate)(void **, void *, uint64_t) = CALL(int (*)(void **, void *, uint64_t), "cuGraphInstantiateWithFlags");
    fn_pp launch = CALL(fn_pp, "cuGraphLaunch");
    fn_p end = CALL(fn_p, "cuGraphDestroy"), end_executable = CALL(fn_p, "cuGraphExecDestroy");
    int (*settle)(void) = CALL(int (*)(void), "cuCtxSynchronize");
    int (*trim)(int) = CALL(int (*)(int), "cuDeviceGraphMemTrim");
    OK("cuGraphCreate", make(&graph, 0));
    check(route, "add", add(&node, graph, NULL, 0, &wanted), 0);
    check(route, "charged", base - free_bytes(), 24 * MIB);
    OK("cuGraphAddMemFreeNode", CALL(int (*)(void **, void *, void **, size_t, address), "cuGraphAddMemFreeNode")(&release, graph, &node, 1, wanted.at));
    address kept = wanted.at;
    wanted.bytes = quota;
    check(route, "over the quota", add(&node, graph, NULL, 0, &wanted), 2);
    check(route, "unchanged", base - free_bytes(), 24 * MIB);
    OK("cuGraphInstantiateWithFlags", instantiate(&executable, graph, 0));
    for (int i = 0; i < 3; i++) OK("cuGraphLaunch", launch(executable, NULL));
    OK("cuCtxSynchronize", settle());
    check(route, "charged once", base - free_bytes(), 24 * MIB);
    check(route, "destroy the graph", end(graph), 0);
    check(route, "held by the executable", base - free_bytes(), 24 * MIB);
    check(route, "destroy the executable", end_executable(executable), 0);
    OK("cuDeviceGraphMemTrim", trim(0));
    check(route, "credited", base - free_bytes(), 0);
    (void)kept;

    route = "captured cuMemAllocAsync";
    address p;
    OK("cuStreamCreate", CALL(int (*)(void **, unsigned), "cuStreamCreate")(&stream, 1));
    OK("cuStreamBeginCapture_v2", CALL(int (*)(void *, int), "cuStreamBeginCapture_v2")(stream, 2));
    check(route, "alloc", CALL(fn_alloc_async, "cuMemAllocAsync")(&p, 12 * MIB, stream), 0);
    check(route, "over the quota", CALL(fn_alloc_async, "cuMemAllocAsync")(&p, quota, stream), 2);
    check(route, "free", CALL(fn_free_async, "cuMemFreeAsync")(p, stream), 0);
    OK("cuStreamEndCapture", CALL(fn_pp, "cuStreamEndCapture")(stream, &graph));
    check(route, "charged", base - free_bytes(), 12 * MIB);
    OK("cuGraphInstantiateWithFlags", instantiate(&executable, graph, 0));
    OK("cuGraphLaunch", launch(executable, stream));
    OK("cuCtxSynchronize", settle());
    check(route, "charged once", base - free_bytes(), 12 * MIB);
    check(route, "destroy the executable", end_executable(executable), 0);
    check(route, "destroy the graph", end(graph), 0);
    OK("cuDeviceGraphMemTrim", trim(0));
    check(route, "credited", base - free_bytes(), 0);
    OK("cuStreamDestroy_v2", CALL(fn_p, "cuStreamDestroy_v2")(stream));

    /* To calls of the per-thread variant, null is a stream that can be captured. */
    route = "captured cuMemAllocAsync_ptsz";
    OK("cuStreamBeginCapture_v2_ptsz", CALL(int (*)(void *, int), "cuStreamBeginCapture_v2_ptsz")(NULL, 2));
    check(route, "alloc", CALL(fn_alloc_async, "cuMemAllocAsync_ptsz")(&p, 12 * MIB, NULL), 0);
    check(route, "free", CALL(fn_free_async, "cuMemFreeAsync_ptsz")(p, NULL), 0);
    OK("cuStreamEndCapture_ptsz", CALL(fn_pp, "cuStreamEndCapture_ptsz")(NULL, &graph));
    check(route, "charged", base - free_bytes(), 12 * MIB);
    check(route, "destroy the graph", end(graph), 0);
    OK("cuDeviceGraphMemTrim", trim(0));
    check(route, "credited", base - free_bytes(), 0);
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
        OK("cuStreamSynchronize", CALL(fn_p, "cuStreamSynchronize")(NULL));
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
        OK("cuCtxSynchronize", CALL(int (*)(void), "cuCtxSynchronize")());
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
    kept_by_pools(base);
    of_graphs(base);
    {
        const char *route = "cuCtxSetLimit";
        int (*set)(unsigned, size_t) = CALL(int (*)(unsigned, size_t), "cuCtxSetLimit");
        size_t first = 0;
        OK("cuCtxGetLimit", CALL(int (*)(size_t *, unsigned), "cuCtxGetLimit")(&first, 2 /* heap */));
        check(route, "heap", set(2, first + 64 * MIB), 0);
        check(route, "charged", base - free_bytes(), 64 * MIB);
        check(route, "smaller", set(2, first + 16 * MIB), 0);
        check(route, "credited", base - free_bytes(), 16 * MIB);
        check(route, "over the quota", set(2, quota + first), 2);
        check(route, "unchanged", base - free_bytes(), 16 * MIB);
        check(route, "below the first", set(2, first / 2), 0);
        check(route, "as first", set(2, first), 0);
        check(route, "credited", base - free_bytes(), 0);
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
