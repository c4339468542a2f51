/* Every pair of calls about the same object, made at the same moment by two threads. `make` makes an object, two threads make a call
 * each, and then stop: the memory in use on the device, by a process without the hook, must equal the tenant's charge, to the byte. Then
 * the object is destroyed, and both must have their first values. All sizes are whole pages of the device. The result of a call on an
 * object that the other thread has just destroyed is ignored.
 *
 * `pairs calls` prints the calls, `pairs kinds` the kinds of objects. `pairs RACES` prints a line for each failed pair, and one for the
 * sum; PAIRS_OF names one kind of object. */
#include "cuda.h"
#include <execinfo.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>

#define MIB ((size_t)1 << 20)
#define PAGE (2 * MIB)
#define BATCH 16 /* objects that are raced about before the accounts are looked at */
#define LEFT 8

typedef struct { unsigned type, handle_types, location_type; int location; void *win32; unsigned char rest[8]; } property;
typedef struct { unsigned type, handle_types, location_type; int location; void *win32; size_t max; unsigned char rest[56]; } pool_property;
typedef struct { size_t width, height; unsigned format, channels; } flat;
typedef struct { size_t width, height, depth; unsigned format, channels, flags; } deep;
typedef struct { pool_property pool; const void *access; size_t access_count, bytes; address at; } node_property;
typedef struct { unsigned kind, pad; uint64_t handle[2], bytes; unsigned flags, reserved[17]; } external;
typedef struct { char bytes[64]; } ipc;

#define CALLS(X) \
    X(cuMemAlloc_v2, (address *, size_t)) X(cuMemFree_v2, (address)) X(cuMemAllocManaged, (address *, size_t, unsigned)) \
    X(cuMemAllocPitch_v2, (address *, size_t *, size_t, size_t, unsigned)) X(cuIpcGetMemHandle, (ipc *, address)) \
    X(cuIpcOpenMemHandle_v2, (address *, ipc, unsigned)) X(cuIpcCloseMemHandle, (address)) \
    X(cuMemAllocAsync, (address *, size_t, void *)) X(cuMemFreeAsync, (address, void *)) \
    X(cuMemAllocFromPoolAsync, (address *, size_t, void *, void *)) X(cuMemPoolTrimTo, (void *, size_t)) \
    X(cuMemPoolCreate, (void **, const pool_property *)) X(cuMemPoolDestroy, (void *)) X(cuDeviceSetMemPool, (int, void *)) \
    X(cuDeviceGetDefaultMemPool, (void **, int)) X(cuCtxSynchronize, (void)) X(cuStreamSynchronize, (void *)) \
    X(cuArrayCreate_v2, (uint64_t *, const flat *)) X(cuArray3DCreate_v2, (uint64_t *, const deep *)) X(cuArrayDestroy, (uint64_t)) \
    X(cuMipmappedArrayCreate, (uint64_t *, const deep *, unsigned)) X(cuMipmappedArrayDestroy, (uint64_t)) \
    X(cuMemCreate, (uint64_t *, size_t, const property *, uint64_t)) X(cuMemRelease, (uint64_t)) \
    X(cuMemMap, (address, size_t, size_t, uint64_t, uint64_t)) X(cuMemUnmap, (address, size_t)) \
    X(cuMemRetainAllocationHandle, (uint64_t *, void *)) X(cuMemExportToShareableHandle, (void *, uint64_t, unsigned, uint64_t)) \
    X(cuMemImportFromShareableHandle, (uint64_t *, void *, unsigned)) X(cuMemAddressReserve, (address *, size_t, size_t, address, uint64_t)) \
    X(cuImportExternalMemory, (void **, const external *)) X(cuDestroyExternalMemory, (void *)) \
    X(cuCtxCreate_v2, (void **, unsigned, int)) X(cuCtxDestroy_v2, (void *)) X(cuCtxSetCurrent, (void *)) X(cuCtxSetLimit, (unsigned, size_t)) \
    X(cuDevicePrimaryCtxRetain, (void **, int)) X(cuDevicePrimaryCtxRelease_v2, (int)) X(cuDevicePrimaryCtxReset_v2, (int)) \
    X(cuDevicePrimaryCtxGetState, (int, unsigned *, int *)) \
    X(cuGraphCreate, (void **, unsigned)) X(cuGraphDestroy, (void *)) \
    X(cuGraphAddMemAllocNode, (void **, void *, void **, size_t, node_property *)) \
    X(cuGraphInstantiateWithFlags, (void **, void *, uint64_t)) X(cuGraphExecDestroy, (void *)) X(cuGraphLaunch, (void *, void *)) \
    X(cuDeviceGraphMemTrim, (int)) X(cuMemGetInfo_v2, (size_t *, size_t *))
#define X(name, types) static int(*name) types;
CALLS(X)
#undef X

static void look_up(void) {
#define X(name, types) name = (int(*) types)by_name(#name);
    CALLS(X)
#undef X
}

/* An object, and what the calls about it have left behind. */
struct thing {
    uint64_t handle, other;
    address at, second;
    void *graph, *executable, *pool, *context;
    int descriptor;
    ipc shared;
    struct { char kind; uint64_t handle; } left[LEFT];
    int left_count, was_ended;
};

static const property physical = {.type = 1, .handle_types = 1, .location_type = 1};
static const pool_property of_device = {.type = 1, .location_type = 1};
static const flat page = {8192, PAGE / 8192, 0x01, 1};
static const deep deep_page = {8192, PAGE / 8192, 0, 0x01, 1, 0};
static void *mine;                      /* the context of the program itself */
static address room;                    /* addresses to map at */
static int observer;                    /* a process without the hook */
static size_t context_bytes;            /* what the device gives for a context */

static void keep(struct thing *of, char kind, uint64_t handle) {
    int place = __sync_fetch_and_add(&of->left_count, 1);
    if (place >= LEFT) die("too much left", place);
    of->left[place].kind = kind;
    of->left[place].handle = handle;
}

/* ---- the calls ---- */
static void go_alloc(struct thing *t) { address p = 0; if (!cuMemAlloc_v2(&p, PAGE)) keep(t, 'p', p); }
static void go_managed(struct thing *t) { address p = 0; if (!cuMemAllocManaged(&p, PAGE, 1)) keep(t, 'p', p); }
static void go_pitch(struct thing *t) { address p = 0; size_t q; if (!cuMemAllocPitch_v2(&p, &q, 512, PAGE / 512, 4)) keep(t, 'p', p); }
static void go_array(struct thing *t) { uint64_t a; if (!cuArrayCreate_v2(&a, &page)) keep(t, 'a', a); }
static void go_deep(struct thing *t) { uint64_t a; if (!cuArray3DCreate_v2(&a, &deep_page)) keep(t, 'a', a); }
static void go_mipmapped(struct thing *t) { uint64_t a; if (!cuMipmappedArrayCreate(&a, &deep_page, 1)) keep(t, 'm', a); }
static void go_async(struct thing *t) { address p = 0; if (!cuMemAllocAsync(&p, PAGE, NULL)) keep(t, 'p', p); }
static void go_from_pool(struct thing *t) { address p = 0; if (!cuMemAllocFromPoolAsync(&p, PAGE, t->pool, NULL)) keep(t, 'p', p); }
static void go_free(struct thing *t) { cuMemFree_v2(t->at); }
static void go_free_async(struct thing *t) { cuMemFreeAsync(t->at, NULL); }
static void go_destroy_array(struct thing *t) { cuArrayDestroy(t->handle); }
static void go_destroy_mipmapped(struct thing *t) { cuMipmappedArrayDestroy(t->handle); }
static void go_export_ipc(struct thing *t) { ipc shared; cuIpcGetMemHandle(&shared, t->at); }
static void go_synchronize(struct thing *t) { (void)t; cuCtxSynchronize(); }
static void go_synchronize_stream(struct thing *t) { (void)t; cuStreamSynchronize(NULL); }
static void go_trim(struct thing *t) { cuMemPoolTrimTo(t->pool, 0); }
static void go_set_pool(struct thing *t) { cuDeviceSetMemPool(0, t->pool); }
static void go_destroy_pool(struct thing *t) { if (!cuMemPoolDestroy(t->pool)) t->was_ended = 1; }
static void go_create(struct thing *t) { uint64_t h; if (!cuMemCreate(&h, PAGE, &physical, 0)) keep(t, 'h', h); }
static void go_release(struct thing *t) { cuMemRelease(t->handle); }
static void go_map(struct thing *t) { cuMemMap(t->at, PAGE, 0, t->handle, 0); }
static void go_map_second(struct thing *t) { cuMemMap(t->second, PAGE, 0, t->handle, 0); }
static void go_unmap(struct thing *t) { cuMemUnmap(t->at, PAGE); }
static void go_retain(struct thing *t) { uint64_t h; if (!cuMemRetainAllocationHandle(&h, (void *)t->at)) keep(t, 'h', h); }
static void go_export(struct thing *t) { int fd; if (!cuMemExportToShareableHandle(&fd, t->handle, 1, 0)) close(fd); }
static void go_import(struct thing *t) { uint64_t h; if (!cuMemImportFromShareableHandle(&h, (void *)(long)t->descriptor, 1)) keep(t, 'h', h); }
static void go_import_external(struct thing *t) {
    external wanted = {.kind = 1, .handle = {(uint64_t)(unsigned)dup(t->descriptor)}, .bytes = PAGE};
    void *memory;
    if (!cuImportExternalMemory(&memory, &wanted)) keep(t, 'e', (uint64_t)memory);
    else close((int)wanted.handle[0]);
}
static void go_destroy_external(struct thing *t) { cuDestroyExternalMemory((void *)t->handle); }
static void go_open(struct thing *t) { address p; if (!cuIpcOpenMemHandle_v2(&p, t->shared, 1)) keep(t, 'o', p); }
static void go_close(struct thing *t) { cuIpcCloseMemHandle(t->at); }
static void go_heap(struct thing *t) { (void)t; cuCtxSetLimit(2, 8 * MIB + 10 * PAGE); }
static void go_small_heap(struct thing *t) { (void)t; cuCtxSetLimit(2, 8 * MIB + 2 * PAGE); }
static void go_first_heap(struct thing *t) { (void)t; cuCtxSetLimit(2, 8 * MIB); }
static void go_print(struct thing *t) { (void)t; cuCtxSetLimit(1, 7340032 + 3 * PAGE); }
static void go_destroy_context(struct thing *t) { if (!cuCtxDestroy_v2(t->context)) t->was_ended = 1; }
static void go_retain_primary(struct thing *t) { void *c; (void)t; cuDevicePrimaryCtxRetain(&c, 0); }
static void go_release_primary(struct thing *t) { (void)t; cuDevicePrimaryCtxRelease_v2(0); }
static void go_reset_primary(struct thing *t) { (void)t; cuDevicePrimaryCtxReset_v2(0); }
static void go_add_node(struct thing *t) {
    void *node;
    node_property wanted = {.pool = of_device, .bytes = PAGE};
    cuGraphAddMemAllocNode(&node, t->graph, NULL, 0, &wanted);
}
static void go_instantiate(struct thing *t) { void *e; if (!cuGraphInstantiateWithFlags(&e, t->graph, 0)) keep(t, 'x', (uint64_t)e); }
static void go_launch(struct thing *t) { cuGraphLaunch(t->executable, NULL); }
static void go_destroy_executable(struct thing *t) { cuGraphExecDestroy(t->executable); }
static void go_destroy_graph(struct thing *t) { if (!cuGraphDestroy(t->graph)) t->was_ended = 1; }
static void go_trim_graphs(struct thing *t) { (void)t; cuDeviceGraphMemTrim(0); }

/* ---- the objects ---- */
static size_t ask(char what) {
    size_t left;
    if (write(observer, &what, 1) != 1 || read(observer, &left, sizeof left) != sizeof left) die("the observer", -1);
    return left;
}

static int descriptor_of_another(void) {
    char byte, room[CMSG_SPACE(sizeof(int))];
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    int got;
    if (write(observer, "d", 1) != 1 || recvmsg(observer, &message, 0) != 1 || !CMSG_FIRSTHDR(&message)) die("no descriptor", -1);
    memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
    return got;
}

static void make_pointer(struct thing *t) { OK("alloc", cuMemAlloc_v2(&t->at, PAGE)); keep(t, 'p', t->at); }
static void make_stream(struct thing *t) {
    OK("pool", cuDeviceGetDefaultMemPool(&t->pool, 0));
    OK("alloc async", cuMemAllocAsync(&t->at, PAGE, NULL));
    keep(t, 'p', t->at);
}
static void make_pool(struct thing *t) {
    OK("pool create", cuMemPoolCreate(&t->pool, &of_device));
    OK("alloc from pool", cuMemAllocFromPoolAsync(&t->at, PAGE, t->pool, NULL));
    keep(t, 'p', t->at);
}
static void make_array(struct thing *t) { OK("array", cuArrayCreate_v2(&t->handle, &page)); keep(t, 'a', t->handle); }
static void make_mipmapped(struct thing *t) { OK("mipmapped", cuMipmappedArrayCreate(&t->handle, &deep_page, 1)); keep(t, 'm', t->handle); }
static void make_physical(struct thing *t) {
    OK("create", cuMemCreate(&t->handle, PAGE, &physical, 0));
    OK("export", cuMemExportToShareableHandle(&t->descriptor, t->handle, 1, 0));
    keep(t, 'h', t->handle);
}
static void make_mapped(struct thing *t) { make_physical(t); OK("map", cuMemMap(t->at, PAGE, 0, t->handle, 0)); }
static void make_sole(struct thing *t) { make_mapped(t); OK("release", cuMemRelease(t->handle)); }
static void make_external(struct thing *t) {
    external wanted = {.kind = 1, .bytes = PAGE};
    t->descriptor = descriptor_of_another();
    wanted.handle[0] = (uint64_t)(unsigned)dup(t->descriptor);
    OK("import external", cuImportExternalMemory((void **)&t->handle, &wanted));
    keep(t, 'e', t->handle);
}
static void make_opened(struct thing *t) {
    if (write(observer, "i", 1) != 1 || read(observer, &t->shared, sizeof t->shared) != sizeof t->shared) die("no handle", -1);
    OK("open", cuIpcOpenMemHandle_v2(&t->at, t->shared, 1));
    keep(t, 'o', t->at);
}
static void make_context(struct thing *t) {
    OK("context", cuCtxCreate_v2(&t->context, 0, 0));
    OK("alloc", cuMemAlloc_v2(&t->at, PAGE));
    OK("array", cuArrayCreate_v2(&t->handle, &page));
    keep(t, 'p', t->at);
    keep(t, 'a', t->handle);
    OK("current", cuCtxSetCurrent(mine));
}
static void make_primary(struct thing *t) {
    OK("primary", cuDevicePrimaryCtxRetain(&t->context, 0));
    OK("current", cuCtxSetCurrent(t->context));
    OK("alloc", cuMemAlloc_v2(&t->at, PAGE));
    keep(t, 'p', t->at);
    OK("current", cuCtxSetCurrent(mine));
}
static void make_none(struct thing *t) { t->context = mine; }
static void make_graph(struct thing *t) {
    void *node;
    node_property wanted = {.pool = of_device, .bytes = PAGE};
    OK("graph", cuGraphCreate(&t->graph, 0));
    OK("node", cuGraphAddMemAllocNode(&node, t->graph, NULL, 0, &wanted));
    t->at = wanted.at;
}
static void make_executable(struct thing *t) {
    make_graph(t);
    OK("instantiate", cuGraphInstantiateWithFlags(&t->executable, t->graph, 0));
    keep(t, 'x', (uint64_t)t->executable);
    keep(t, 'p', t->at);
}

struct kind {
    const char *name;
    void (*make)(struct thing *);
    enum { EQUAL, AT_LEAST } account; /* what is charged against what the device has given, before the object is ended */
    struct { const char *call; void (*go)(struct thing *); } calls[16];
};

static const struct kind kinds[] = {
    {"pointer", make_pointer, EQUAL,
     {{"cuMemFree_v2", go_free}, {"cuMemFreeAsync", go_free_async}, {"cuIpcGetMemHandle", go_export_ipc}, {"cuMemAlloc_v2", go_alloc}, {"cuCtxSynchronize", go_synchronize}}},
    {"stream-ordered memory", make_stream, EQUAL,
     {{"cuMemFreeAsync", go_free_async}, {"cuMemFree_v2", go_free}, {"cuMemAllocAsync", go_async}, {"cuMemPoolTrimTo", go_trim}, {"cuDeviceSetMemPool", go_set_pool}, {"cuCtxSynchronize", go_synchronize}, {"cuStreamSynchronize", go_synchronize_stream}}},
    {"pool", make_pool, EQUAL,
     {{"cuMemAllocFromPoolAsync", go_from_pool}, {"cuMemFreeAsync", go_free_async}, {"cuMemFree_v2", go_free}, {"cuMemPoolTrimTo", go_trim}, {"cuMemPoolDestroy", go_destroy_pool}, {"cuDeviceSetMemPool", go_set_pool}, {"cuMemAllocAsync", go_async}, {"cuCtxSynchronize", go_synchronize}}},
    {"array", make_array, EQUAL, {{"cuArrayDestroy", go_destroy_array}, {"cuArrayCreate_v2", go_array}, {"cuArray3DCreate_v2", go_deep}}},
    {"mip-mapped array", make_mipmapped, EQUAL, {{"cuMipmappedArrayDestroy", go_destroy_mipmapped}, {"cuMipmappedArrayCreate", go_mipmapped}}},
    {"physical memory", make_physical, EQUAL,
     {{"cuMemRelease", go_release}, {"cuMemMap", go_map}, {"cuMemMap", go_map_second}, {"cuMemUnmap", go_unmap}, {"cuMemRetainAllocationHandle", go_retain}, {"cuMemExportToShareableHandle", go_export}, {"cuMemImportFromShareableHandle", go_import}, {"cuMemCreate", go_create}}},
    {"mapped memory", make_mapped, EQUAL,
     {{"cuMemRelease", go_release}, {"cuMemMap", go_map_second}, {"cuMemUnmap", go_unmap}, {"cuMemRetainAllocationHandle", go_retain}, {"cuMemExportToShareableHandle", go_export}, {"cuMemImportFromShareableHandle", go_import}}},
    {"memory that only its mapping holds", make_sole, EQUAL,
     {{"cuMemUnmap", go_unmap}, {"cuMemRetainAllocationHandle", go_retain}, {"cuMemImportFromShareableHandle", go_import}, {"cuMemCreate", go_create}}},
    {"external memory", make_external, AT_LEAST, {{"cuImportExternalMemory", go_import_external}, {"cuDestroyExternalMemory", go_destroy_external}}},
    {"another's memory", make_opened, AT_LEAST, {{"cuIpcOpenMemHandle_v2", go_open}, {"cuIpcCloseMemHandle", go_close}}},
    {"limits of a context", make_none, EQUAL, {{"cuCtxSetLimit", go_heap}, {"cuCtxSetLimit", go_small_heap}, {"cuCtxSetLimit", go_first_heap}, {"cuCtxSetLimit", go_print}}},
    {"context", make_context, EQUAL,
     {{"cuCtxDestroy_v2", go_destroy_context}, {"cuMemAlloc_v2", go_alloc}, {"cuMemAllocManaged", go_managed}, {"cuMemAllocPitch_v2", go_pitch}, {"cuArrayCreate_v2", go_array}, {"cuMipmappedArrayCreate", go_mipmapped}, {"cuMemFree_v2", go_free}, {"cuArrayDestroy", go_destroy_array}, {"cuCtxSetLimit", go_heap}, {"cuCtxSetLimit", go_first_heap}}},
    {"primary context", make_primary, EQUAL,
     {{"cuDevicePrimaryCtxRelease_v2", go_release_primary}, {"cuDevicePrimaryCtxReset_v2", go_reset_primary}, {"cuDevicePrimaryCtxRetain", go_retain_primary}, {"cuMemAlloc_v2", go_alloc}, {"cuMemFree_v2", go_free}, {"cuCtxSetLimit", go_heap}}},
    {"graph", make_graph, AT_LEAST, {{"cuGraphAddMemAllocNode", go_add_node}, {"cuGraphInstantiateWithFlags", go_instantiate}, {"cuGraphDestroy", go_destroy_graph}, {"cuDeviceGraphMemTrim", go_trim_graphs}}},
    {"executable graph", make_executable, AT_LEAST,
     {{"cuGraphLaunch", go_launch}, {"cuGraphExecDestroy", go_destroy_executable}, {"cuGraphDestroy", go_destroy_graph}, {"cuMemFree_v2", go_free}, {"cuMemFreeAsync", go_free_async}, {"cuDeviceGraphMemTrim", go_trim_graphs}, {"cuCtxSynchronize", go_synchronize}}},
};
#define KINDS (sizeof kinds / sizeof *kinds)

/* Ends what there may be of an object. Most of it is gone: the driver says so. */
static void end(struct thing *t) {
    void *default_pool;
    for (int i = t->left_count; i-- > 0;) {
        uint64_t handle = t->left[i].handle;
        switch (t->left[i].kind) {
        case 'p': cuMemFree_v2(handle); break;
        case 'a': cuArrayDestroy(handle); break;
        case 'm': cuMipmappedArrayDestroy(handle); break;
        case 'h': cuMemRelease(handle); break;
        case 'e': cuDestroyExternalMemory((void *)handle); break;
        case 'o': cuIpcCloseMemHandle(handle); break;
        case 'x': cuGraphExecDestroy((void *)handle); break;
        }
    }
    if (t->handle && t->descriptor) {
        cuMemUnmap(t->at, PAGE);
        cuMemUnmap(t->second, PAGE);
    }
    if (t->graph && !t->was_ended) cuGraphDestroy(t->graph);
    if (t->pool) {
        OK("pool", cuDeviceGetDefaultMemPool(&default_pool, 0));
        cuDeviceSetMemPool(0, default_pool);
        if (t->pool != default_pool) cuMemPoolDestroy(t->pool);
    }
    if (t->context == mine) {
        OK("limit", cuCtxSetLimit(2, 8 * MIB));
        OK("limit", cuCtxSetLimit(1, 7340032));
    } else if (t->context) {
        cuCtxDestroy_v2(t->context);
    }
}

/* ---- two threads ---- */
/* One turn for each object of a batch. The second thread sleeps between batches: it would take a processor from the driver, which makes
 * and ends the objects meanwhile. All times are nanoseconds. */
static struct {
    struct thing *thing;
    void (*first)(struct thing *), (*second)(struct thing *);
    uint64_t delays[2], begin[2], end[2];
} turns[BATCH];
static int turn_count;
static unsigned batch, met;
static int64_t usual = 1 << 14;         /* what a call takes */
static long overlapped;                 /* races whose calls were made at the same time for a while */

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Both threads go on from here, when both have come. */
static void meet(void) {
    unsigned all = (__atomic_add_fetch(&met, 1, __ATOMIC_ACQ_REL) + 1) / 2 * 2;
    for (int i = 0; (int)(__atomic_load_n(&met, __ATOMIC_ACQUIRE) - all) < 0; i++) if (i > 200) sched_yield();
}

/* From none to what a call of the driver takes, each length as often. */
static uint64_t some_delay(unsigned *random) {
    int lengths = 64 - __builtin_clzll((uint64_t)usual);
    return (uint64_t)rand_r(random) % (1ull << rand_r(random) % lengths);
}

static void take_turns(int is_second) {
    for (int at = 0; at < turn_count; at++) {
        struct thing *thing = turns[at].thing;
        OK("current", cuCtxSetCurrent(thing->context ? thing->context : mine));
        meet();
        for (uint64_t until = now() + turns[at].delays[is_second]; (turns[at].begin[is_second] = now()) < until;) {}
        (is_second ? turns[at].second : turns[at].first)(thing);
        turns[at].end[is_second] = now();
        cuCtxSetCurrent(mine);
    }
    meet();
}

/* What the clocks say of a batch. A call that waited for a processor counts as 100 us. */
static void look_at_clocks(void) {
    for (int at = 0; at < turn_count; at++) {
        uint64_t *begin = turns[at].begin, *end = turns[at].end;
        overlapped += begin[0] < end[1] && begin[1] < end[0];
        for (int thread = 0; thread < 2; thread++) {
            int64_t took = (int64_t)(end[thread] - begin[thread]);
            usual += ((took < 100000 ? took : 100000) - usual) / 64;
        }
    }
}

static void *second(void *unused) {
    for (unsigned seen = 0;; seen++) {
        while (__atomic_load_n(&batch, __ATOMIC_ACQUIRE) == seen) syscall(SYS_futex, &batch, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
        if (!turn_count) return unused;
        take_turns(1);
    }
}

static void wake_second(void) {
    __atomic_add_fetch(&batch, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &batch, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void race(struct thing *things, int count, void (*one)(struct thing *), void (*other)(struct thing *), unsigned *random) {
    for (int at = 0; at < count; at++) {
        int is_swapped = rand_r(random) % 2;
        turns[at].thing = &things[at];
        turns[at].first = is_swapped ? other : one;
        turns[at].second = is_swapped ? one : other;
        for (int thread = 0; thread < 2; thread++) turns[at].delays[thread] = some_delay(random);
    }
    turn_count = count;
    wake_second();
    take_turns(0);
    look_at_clocks();
}

/* Gives each thread a processor of its own, if there are two: otherwise the system may keep both on one, while the driver has the
 * other, and they make their calls one after the other. */
static void part(pthread_t second_thread) {
    cpu_set_t usable, own;
    int first = sched_getcpu(), next = first;
    if (first < 0 || sched_getaffinity(0, sizeof usable, &usable) || CPU_COUNT(&usable) < 2) return;
    do next = (next + 1) % CPU_SETSIZE; while (!CPU_ISSET(next, &usable));
    for (int thread = 0; thread < 2; thread++) {
        CPU_ZERO(&own);
        CPU_SET(thread ? next : first, &own);
        if (pthread_setaffinity_np(thread ? second_thread : pthread_self(), sizeof own, &own)) die("a processor", -1);
    }
}

/* The pair that is raced about, for the message of a hang. */
static const char *racing[3] = {"", "", ""};

static void hang(int signal) {
    (void)signal;
    dprintf(2, "%s, %s and %s: a hang\n", racing[0], racing[1], racing[2]);
    _exit(1);
}

/* Whose code it was, for the message of a fault: a driver need not survive every pair. */
static void fault(int signal) {
    void *frames[32];
    dprintf(2, "%s, %s and %s: signal %d\n", racing[0], racing[1], racing[2], signal);
    backtrace_symbols_fd(frames, backtrace(frames, 32), 2);
    _exit(128 + signal);
}

/* ---- the observer ---- */
static int observe(int socket) {
    char what;
    address shared;
    ipc handle;
    uint64_t memory;
    int descriptor;
    start(0);
    look_up();
    OK("shared", cuMemAlloc_v2(&shared, PAGE));
    OK("share", cuIpcGetMemHandle(&handle, shared));
    OK("create", cuMemCreate(&memory, PAGE, &physical, 0));
    while (read(socket, &what, 1) == 1) {
        size_t left = free_bytes();
        if (what == 'i') {
            if (write(socket, &handle, sizeof handle) != sizeof handle) return 1;
        } else if (what == 'd') {
            char room[CMSG_SPACE(sizeof(int))] = {0};
            struct iovec data = {"d", 1};
            struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
            OK("export", cuMemExportToShareableHandle(&descriptor, memory, 1, 0));
            CMSG_FIRSTHDR(&message)->cmsg_level = SOL_SOCKET;
            CMSG_FIRSTHDR(&message)->cmsg_type = SCM_RIGHTS;
            CMSG_FIRSTHDR(&message)->cmsg_len = CMSG_LEN(sizeof(int));
            memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &descriptor, sizeof descriptor);
            if (sendmsg(socket, &message, 0) != 1) return 1;
            close(descriptor);
        } else if (write(socket, &left, sizeof left) != sizeof left) {
            return 1;
        }
    }
    return 0;
}

static void begin_observer(const char *program) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) die("socketpair", -1);
    if (fork() == 0) {
        char number[16];
        close(ends[0]);
        snprintf(number, sizeof number, "%d", ends[1]);
        unsetenv("LD_PRELOAD");
        unsetenv("PARTITA_LEDGER");
        execl(program, program, "observe", number, NULL);
        _exit(1);
    }
    close(ends[1]);
    observer = ends[0];
}

int main(int count, char **arguments) {
    if (count == 3) return observe(atoi(arguments[2]));
    if (count == 2 && !strcmp(arguments[1], "calls")) {
        for (size_t k = 0; k < KINDS; k++) for (int i = 0; kinds[k].calls[i].call; i++) puts(kinds[k].calls[i].call);
        return 0;
    }
    if (count == 2 && !strcmp(arguments[1], "kinds")) {
        for (size_t k = 0; k < KINDS; k++) puts(kinds[k].name);
        return 0;
    }
    long races = atol(arguments[1]), all = 0;
    int pairs = 0, wrong = 0;
    long long worst = 0;
    unsigned random = (unsigned)getpid();
    const char *only = getenv("PAIRS_OF");
    pthread_t thread;
    signal(SIGALRM, hang);
    signal(SIGSEGV, fault);
    alarm(120);
    begin_observer(arguments[0]);
    start(0);
    look_up();
    mine = context;
    OK("addresses", cuMemAddressReserve(&room, 2 * BATCH * PAGE, 0, 0, 0));
    size_t before = ask('?');
    void *another;
    OK("context", cuCtxCreate_v2(&another, 0, 0));
    context_bytes = before - ask('?');
    OK("context", cuCtxDestroy_v2(another));
    OK("current", cuCtxSetCurrent(mine));
    size_t quota = free_bytes(), device = ask('?');
    pthread_create(&thread, NULL, second, NULL);
    part(thread);
    for (size_t k = 0; k < KINDS; k++) for (int one = 0; kinds[k].calls[one].call; one++) for (int other = one; kinds[k].calls[other].call; other++) {
        const struct kind *kind = &kinds[k];
        if (only && *only && strcmp(only, kind->name)) continue;
        long bad = 0;
        long long least = 0, most = 0, lost = 0; /* bytes */
        pairs++;
        racing[0] = kind->name; racing[1] = kind->calls[one].call; racing[2] = kind->calls[other].call;
        /* There is one primary context, and one heap. */
        int size = kind->make == make_primary || kind->make == make_none ? 1 : BATCH;
        for (long done = 0; done < races; done += size) {
            struct thing things[BATCH];
            size_t contexts = 0;
            alarm(120); /* a hang, whatever else the machine does */
            memset(things, 0, sizeof things);
            for (int i = 0; i < size; i++) {
                things[i].at = room + 2 * i * PAGE;
                things[i].second = things[i].at + PAGE;
                kind->make(&things[i]);
            }
            race(things, size, kind->calls[one].go, kind->calls[other].go, &random);
            all += size;
            if (kind->make == make_primary) {
                unsigned flags; int active;
                long long charged, given;
                cuCtxSynchronize();
                OK("state", cuDevicePrimaryCtxGetState(0, &flags, &active));
                charged = quota - free_bytes();
                given = device - ask('?') - (active ? context_bytes : 0);
                if (given != charged) bad++;
                if (given > charged && given - charged > least) least = given - charged;
                if (charged > given && charged - given > most) most = charged - given;
                cuDevicePrimaryCtxReset_v2(0);
                things[0].context = NULL;
                things[0].left_count = 0;
            }
            for (int i = 0; i < size; i++) contexts += things[i].context && things[i].context != mine && !things[i].was_ended;
            OK("synchronize", cuCtxSynchronize());
            /* An open descriptor keeps memory that no handle names any more. */
            for (int i = 0; i < size; i++) if (things[i].descriptor) close(things[i].descriptor);
            long long charged = quota - free_bytes(), given = device - ask('?') - contexts * context_bytes;
            if (given > charged || (kind->account == EQUAL && given != charged)) bad++;
            if (given > charged && given - charged > least) least = given - charged;
            if (kind->account == EQUAL && charged > given && charged - given > most) most = charged - given;
            for (int i = 0; i < size; i++) if (things[i].context || things[i].left_count || things[i].graph || things[i].pool) end(&things[i]);
            cuDeviceGraphMemTrim(0);
            OK("synchronize", cuCtxSynchronize());
            long long charged_after = quota - free_bytes(), given_after = device - ask('?');
            if (charged_after || given_after) {
                bad++;
                if (given_after > charged_after && given_after - charged_after > least) least = given_after - charged_after;
                if (charged_after > given_after && charged_after - given_after > lost) lost = charged_after - given_after;
                /* From here on what is lost already counts for nothing. */
                quota -= charged_after;
                device -= given_after;
            }
        }
        if (bad) {
            wrong++;
            printf("%s, %s and %s: %ld times the accounts disagreed, by %lld bytes too few and %lld too many; %lld lost\n", kind->name, kind->calls[one].call, kind->calls[other].call, bad, least, most, lost);
            fflush(stdout);
        }
        if (least > worst) worst = least;
    }
    turn_count = 0;
    wake_second();
    pthread_join(thread, NULL);
    printf("%d pairs, %ld races, %ld of them at the same time, %d wrong, %lld bytes over\n", pairs, all, overlapped, wrong, worst);
    return wrong != 0;
}
