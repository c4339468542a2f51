/* Pools that are destroyed before their memory is back: while a free waits in its stream, and while memory is in use. At each step, what is
 * charged must be what the device has given, by the word of a process without the hook. Prints a line for each difference, and `done`. */
#include "observer.h"

#define MIB ((size_t)1 << 20)
#define PIECE (64 * MIB)

typedef struct { unsigned kind, handles, location_type; int location; void *win32; size_t most; unsigned short usage; unsigned char rest[54]; } pool_property;

static const pool_property wanted = {.kind = 1, .location_type = 1};
static int observer;
static size_t quota, device;
static int (*from)(address *, size_t, void *, void *);
static int (*give)(address, void *);
static int (*settle)(void *);
static address word; /* what a stream waits for */

static void check(const char *step, size_t expected) {
    size_t charged = quota - free_bytes(), given = device - ask(observer);
    if (charged != expected || given != expected) printf("%s: charged %zu, given %zu, expected %zu\n", step, charged, given, expected);
}

static void *new_pool(void) {
    void *pool;
    uint64_t everything = ~(uint64_t)0;
    OK("pool", CALL(int (*)(void **, const pool_property *), "cuMemPoolCreate")(&pool, &wanted));
    OK("threshold", CALL(int (*)(void *, int, void *), "cuMemPoolSetAttribute")(pool, 4, &everything));
    return pool;
}

/* Has a stream wait, until it is let go. */
static void hold(void *stream) {
    OK("word", CALL(int (*)(address, unsigned, size_t), "cuMemsetD32_v2")(word, 0, 1));
    OK("settle", settle(NULL));
    OK("wait", CALL(int (*)(void *, address, unsigned, unsigned), "cuStreamWaitValue32_v2")(stream, word, 1, 1));
}
static void let_go(void *other) {
    OK("write", CALL(int (*)(void *, address, unsigned, unsigned), "cuStreamWriteValue32_v2")(other, word, 1, 0));
    OK("settle", settle(other));
}
static void destroy(void *pool) { OK("destroy", CALL(fn_p, "cuMemPoolDestroy")(pool)); }

int main(int count, char **arguments) {
    if (count == 3) return observe(atoi(arguments[2]));
    void *stream, *other, *pool, *present;
    address p, q;
    observer = begin_observer(arguments[0]);
    start(0);
    from = CALL(int (*)(address *, size_t, void *, void *), "cuMemAllocFromPoolAsync");
    give = CALL(int (*)(address, void *), "cuMemFreeAsync");
    settle = CALL(int (*)(void *), "cuStreamSynchronize");
    int (*new_stream)(void **, unsigned) = CALL(int (*)(void **, unsigned), "cuStreamCreate");
    OK("stream", new_stream(&stream, 1));
    OK("stream", new_stream(&other, 1));
    OK("word", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&word, 4));
    quota = free_bytes();
    device = ask(observer);

    pool = new_pool();
    OK("alloc", from(&p, PIECE, pool, stream));
    OK("settle", settle(stream));
    hold(stream);
    OK("free", give(p, stream));
    destroy(pool);
    check("a free that waits, in a pool that is destroyed", PIECE);
    let_go(other);
    OK("settle", settle(stream));
    check("when it has come", 0);

    pool = new_pool();
    OK("alloc", from(&p, PIECE, pool, stream));
    OK("alloc", from(&q, PIECE, pool, stream));
    OK("free", give(p, stream));
    OK("settle", settle(stream));
    check("what a pool keeps", 2 * PIECE);
    destroy(pool);
    size_t charged = quota - free_bytes(), given = device - ask(observer);
    /* Whether the driver keeps what is unused until the last is freed is its own affair. */
    if (charged != given || charged < PIECE) printf("a pool that is destroyed while memory is in use: charged %zu, given %zu\n", charged, given);
    hold(stream);
    OK("free", give(q, stream));
    charged = quota - free_bytes(), given = device - ask(observer);
    if (charged != given || charged < PIECE) printf("while its last free waits: charged %zu, given %zu\n", charged, given);
    let_go(other);
    OK("settle", settle(stream));
    check("when the last is freed", 0);

    /* The device goes back to its first pool, whatever becomes of the destroyed one. */
    void *first;
    OK("first", CALL(fn_pi, "cuDeviceGetDefaultMemPool")(&first, 0));
    pool = new_pool();
    OK("set", CALL(int (*)(int, void *), "cuDeviceSetMemPool")(0, pool));
    OK("alloc", CALL(int (*)(address *, size_t, void *), "cuMemAllocAsync")(&p, PIECE, stream));
    destroy(pool);
    OK("present", CALL(fn_pi, "cuDeviceGetMemPool")(&present, 0));
    if (present != first) puts("the device's pool is still the one that was destroyed");
    if (CALL(fn_p, "cuMemPoolDestroy")(pool) != 1) puts("a pool was destroyed twice");
    OK("free", give(p, stream));
    OK("settle", settle(stream));
    check("the device's pool", 0);
    if (CALL(fn_p, "cuMemPoolDestroy")(first) != 1) puts("the device's first pool was destroyed");
    puts("done");
    return 0;
}
