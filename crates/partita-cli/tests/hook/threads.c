/* Memory by every kind of call, allocated and freed by any thread, in any order. After each round all threads
 * stop, and three accounts must agree to the byte: the program's own, the tenant's, and the device's, which a
 * process without the hook queries. All sizes are whole pages of the device, or whole chunks of its pool. Prints
 * the disagreements, or that there are none. */
#include "observer.h"
#include <pthread.h>

#define MIB ((size_t)1 << 20)
#define PAGE (2 * MIB)
#define CHUNK (32 * MIB) /* what a pool takes from an H200 at a time */
#define THREADS 8
#define PLACES 48
#define ROUNDS 4
#define STEPS 80

enum { PLAIN, MANAGED, PITCH, STREAM, ARRAY, PHYSICAL, KINDS };
struct place { int taken, kind; size_t bytes; uint64_t handle; };
struct property { unsigned type, handle_types; unsigned location_type; int location; void *win32; unsigned char rest[8]; };
struct array { size_t width, height; unsigned format, channels; };

static struct place places[PLACES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t quota;
static int refused, wrong, forks;

static int obtain(struct place *place) {
    static const struct property property = {.type = 1, .location_type = 1};
    size_t pitch;
    struct array shape = {8192, place->bytes / 8192, 0x01, 1};
    switch (place->kind) {
    case PLAIN: return CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&place->handle, place->bytes);
    case MANAGED: return CALL(int (*)(address *, size_t, unsigned), "cuMemAllocManaged")(&place->handle, place->bytes, 1);
    case PITCH: return CALL(int (*)(address *, size_t *, size_t, size_t, unsigned), "cuMemAllocPitch_v2")(&place->handle, &pitch, 512, place->bytes / 512, 4);
    case STREAM: return CALL(int (*)(address *, size_t, void *), "cuMemAllocAsync")(&place->handle, place->bytes, NULL);
    case ARRAY: return CALL(int (*)(uint64_t *, struct array *), "cuArrayCreate_v2")(&place->handle, &shape);
    default: return CALL(int (*)(uint64_t *, size_t, const struct property *, uint64_t), "cuMemCreate")(&place->handle, place->bytes, &property, 0);
    }
}

static int give_up(struct place *place, int in_stream) {
    switch (place->kind) {
    case STREAM: if (in_stream) return CALL(int (*)(address, void *), "cuMemFreeAsync")(place->handle, NULL); /* or else: */
    case PLAIN: case MANAGED: case PITCH: return CALL(int (*)(address), "cuMemFree_v2")(place->handle);
    case ARRAY: return CALL(int (*)(uint64_t), "cuArrayDestroy")(place->handle);
    default: return CALL(int (*)(uint64_t), "cuMemRelease")(place->handle);
    }
}

static void *work(void *seed) {
    unsigned random = (unsigned)(uintptr_t)seed;
    OK("cuCtxSetCurrent", CALL(fn_p, "cuCtxSetCurrent")(context));
    for (int step = 0; step < STEPS; step++) {
        struct place *place = &places[rand_r(&random) % PLACES];
        pthread_mutex_lock(&lock);
        int was = place->taken;
        if (was >= 0) place->taken = -1; /* mine for now */
        pthread_mutex_unlock(&lock);
        int now = was;
        if (was == 0) {
            place->kind = rand_r(&random) % KINDS;
            place->bytes = (1 + rand_r(&random) % 24) * PAGE;
            if (place->kind == STREAM) place->bytes = (place->bytes + CHUNK - 1) / CHUNK * CHUNK;
            int code = obtain(place);
            if (code && code != 2) { printf("kind %d: code %d\n", place->kind, code); wrong++; }
            if (code) __sync_fetch_and_add(&refused, 1);
            now = code == 0;
        } else if (was == 1) {
            int code = give_up(place, rand_r(&random) % 2);
            if (code) { printf("freeing kind %d: code %d\n", place->kind, code); wrong++; }
            now = 0;
        }
        if (was >= 0) {
            pthread_mutex_lock(&lock);
            place->taken = now;
            pthread_mutex_unlock(&lock);
        }
        /* A child that uses no CUDA, or frees what is not its own, changes nothing. */
        if (step == STEPS / 2 && __sync_fetch_and_add(&forks, 1) % THREADS == 0) {
            int pid = fork();
            if (pid == 0) _exit(0);
            waitpid(pid, NULL, 0);
        }
    }
    return NULL;
}

/* What the device's pool keeps for later: taken from the device, and not in use. The pool's own count of what is used
 * (attribute 7) is of no use: on an H200 (driver 580.159.04) it keeps what cuMemFree has given up. */
static size_t idle(void) {
    void *pool;
    uint64_t reserved, used = 0;
    OK("cuDeviceGetDefaultMemPool", CALL(int (*)(void **, int), "cuDeviceGetDefaultMemPool")(&pool, 0));
    OK("cuMemPoolGetAttribute", CALL(int (*)(void *, int, void *), "cuMemPoolGetAttribute")(pool, 5, &reserved));
    for (int i = 0; i < PLACES; i++) used += places[i].taken == 1 && places[i].kind == STREAM ? places[i].bytes : 0;
    return reserved - used;
}

int main(int count, char **arguments) {
    alarm(100);
    if (count == 3) return observe(atoi(arguments[2]));
    int observer = begin_observer(arguments[0]);
    start(0);
    quota = free_bytes();
    OK("cuCtxSynchronize", CALL(int (*)(void), "cuCtxSynchronize")());
    size_t device = ask(observer);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t threads[THREADS];
        for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)(i + 1 + (unsigned)round * THREADS));
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
        OK("cuCtxSynchronize", CALL(int (*)(void), "cuCtxSynchronize")());
        size_t held = 0;
        for (int i = 0; i < PLACES; i++) held += places[i].taken == 1 ? places[i].bytes : 0;
        size_t charged = quota - free_bytes() - idle(), taken = device - ask(observer);
        /* A real device has other clients, and a driver that keeps some for itself. */
        const char *gpu = getenv("PARTITA_GPU");
        if (!gpu || strncmp(gpu, "sim", 3)) taken = held;
        if (charged != held || taken != held) {
            printf("round %d: the program holds %zu, charged are %zu, the device has given %zu\n", round, held, charged, taken);
            wrong++;
        }
    }
    for (int i = PLACES; i-- > 0;) {
        if (places[i].taken == 1 && give_up(&places[i], i % 2)) { printf("the last of kind %d\n", places[i].kind); wrong++; }
    }
    OK("cuCtxSynchronize", CALL(int (*)(void), "cuCtxSynchronize")());
    const char *gpu = getenv("PARTITA_GPU");
    int simulated = gpu && !strncmp(gpu, "sim", 3);
    if (free_bytes() != quota || (simulated && ask(observer) != device)) { printf("not all came back\n"); wrong++; }
    if (!refused) { printf("the quota was never reached\n"); wrong++; }
    if (!wrong) printf("every account agrees\n");
    return wrong != 0;
}
