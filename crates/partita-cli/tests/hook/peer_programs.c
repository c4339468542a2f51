/* What the test programs of HAMi-core and vgpu-manager do with the driver, a subcommand for each of theirs, and more asked of it: after each step the
 * tenant's account is what the program holds, to the byte, as CUDA and as NVML tell it. First argument: the subcommand; second: the memory limit in MiB;
 * third, of `graph` alone: the file with the kernels. Prints what was not as expected, and `ok` if everything was. */
#include "cuda.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define MIB ((size_t)1 << 20)
enum { INVALID = 1, NO_MEMORY = 2 };

struct nvml_memory { unsigned long long total, free, used; };
struct array { size_t width, height; unsigned format, channels; };
struct array3d { size_t width, height, depth; unsigned format, channels, flags; };
struct property { unsigned type, handle_types; unsigned location_type; int location; void *win32; unsigned char rest[8]; };
struct pool { unsigned kind, handles, location_type; int location; void *win32; size_t most; unsigned short usage; unsigned char rest[54]; };

typedef int (*fn_alloc)(address *, size_t);
typedef int (*fn_async)(address *, size_t, void *);
typedef int (*fn_from)(address *, size_t, void *, void *);

static size_t quota;
static int failures;

static void check(const char *what, size_t step, long long got, long long expected) {
    if (got == expected) return;
    printf("%s (%zu): got %lld, expected %lld\n", what, step, got, expected);
    failures++;
}

static int alloc(address *p, size_t bytes) { return CALL(fn_alloc, "cuMemAlloc_v2")(p, bytes); }
static int give(address p) { return CALL(int (*)(address), "cuMemFree_v2")(p); }
static int alloc_async(address *p, size_t bytes, void *stream) { return CALL(fn_async, "cuMemAllocAsync")(p, bytes, stream); }
static int give_async(address p, void *stream) { return CALL(int (*)(address, void *), "cuMemFreeAsync")(p, stream); }
static int settle(void) { return CALL(int (*)(void), "cuCtxSynchronize")(); }

/* The memory that NVML reports; initialised once, and never shut down. */
static struct nvml_memory told(void) {
    static void *library, *device;
    struct nvml_memory memory;
    if (!library) {
        library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
        if (!library) { fprintf(stderr, "%s\n", dlerror()); exit(1); }
        OK("nvmlInit_v2", ((int (*)(void))dlsym(library, "nvmlInit_v2"))());
        OK("nvmlDeviceGetHandleByIndex_v2", ((int (*)(unsigned, void **))dlsym(library, "nvmlDeviceGetHandleByIndex_v2"))(0, &device));
    }
    OK("nvmlDeviceGetMemoryInfo", ((fn_pp)dlsym(library, "nvmlDeviceGetMemoryInfo"))(device, &memory));
    return memory;
}

/* The account is `used` bytes of the limit, whomever one asks. */
static void account(const char *what, size_t step, size_t used) {
    struct nvml_memory memory = told();
    check(what, step, quota - free_bytes(), used);
    check("NVML's use", step, memory.used, used);
    check("NVML's rest", step, memory.free, quota - used);
    check("NVML's total", step, memory.total, quota);
}

/* Two to the power of 1 and more, one byte more than that, and one less. */
static size_t size_of(unsigned step) {
    size_t power = (size_t)2 << step / 3;
    return step % 3 == 0 ? power : step % 3 == 1 ? power + 1 : power - 1;
}

/* HAMi-core's test_alloc. */
static void plain(void) {
    for (unsigned step = 0; step < 90; step++) {
        size_t bytes = size_of(step), fits = bytes <= quota;
        address p = 0;
        check("cuMemAlloc", bytes, alloc(&p, bytes), fits ? 0 : NO_MEMORY);
        account("held", bytes, fits ? bytes : 0);
        if (fits) check("cuMemFree", bytes, give(p), 0);
        account("given back", bytes, 0);
    }
    /* Ten times what is more than a GiB. */
    size_t bytes = 1024 * MIB + 2, fit = quota / bytes, held = 0;
    address p[10] = {0};
    for (size_t i = 0; i < 10; i++) {
        check("too many", i, alloc(&p[i], bytes), i < fit ? 0 : NO_MEMORY);
        if (i < fit) held += bytes;
        account("too many", i, held);
    }
    for (size_t first = 0; first < 2; first++)
        for (size_t i = first; i < fit && i < 10; i += 2) {
            check("every other one", i, give(p[i]), 0);
            account("every other one", i, held -= bytes);
        }
    account("in the end", 0, 0);
}

/* HAMi-core's test_alloc_managed: nothing is freed until all of it is had. */
static void managed(void) {
    address p[84] = {0};
    size_t held = 0;
    for (unsigned step = 0; step < 84; step++) {
        size_t bytes = size_of(step), fits = held + bytes <= quota;
        check("cuMemAllocManaged", bytes, CALL(int (*)(address *, size_t, unsigned), "cuMemAllocManaged")(&p[step], bytes, 1), fits ? 0 : NO_MEMORY);
        if (fits) held += bytes;
        else p[step] = 0;
        account("managed", bytes, held);
    }
    for (unsigned step = 0; step < 84; step++) {
        if (!p[step]) continue;
        check("cuMemFree", step, give(p[step]), 0);
        account("managed, freed", step, held -= size_of(step));
    }
    check("all of it", 0, held, 0);
}

/* HAMi-core's test_alloc_pitch. */
static void pitch(void) {
    static const struct { size_t width; unsigned element; } rows[] = {{4088, 16}, {4092, 8}, {4095, 4}};
    int (*pitched)(address *, size_t *, size_t, size_t, unsigned) =
        CALL(int (*)(address *, size_t *, size_t, size_t, unsigned), "cuMemAllocPitch_v2");
    for (size_t i = 0; i < 3; i++) {
        address p;
        size_t bytes = 0;
        check("cuMemAllocPitch", i, pitched(&p, &bytes, rows[i].width, 10, rows[i].element), 0);
        check("a pitch of whole elements that is wide enough", i, bytes >= rows[i].width && bytes % rows[i].element == 0, 1);
        account("pitched", i, 10 * bytes);
        check("cuMemFree", i, give(p), 0);
        account("pitched, freed", i, 0);
        check("as many rows as there are bytes", i, pitched(&p, &bytes, rows[i].width, quota / rows[i].width + 1, rows[i].element), NO_MEMORY);
        account("refused", i, 0);
    }
}

/* HAMi-core's test_create_array and test_create_3d_array: two numbers of 32 bits in each of 2048 by 2048, until there is no more room. */
static void arrays(int deep) {
    struct array flat = {2048, 2048, 0x03, 2};
    struct array3d without_depth = {2048, 2048, 0, 0x03, 2, 0};
    int (*create)(void **, const void *) = CALL(int (*)(void **, const void *), deep ? "cuArray3DCreate_v2" : "cuArrayCreate_v2");
    const void *shape = deep ? (const void *)&without_depth : &flat;
    size_t bytes = 32 * MIB, fit = quota / bytes;
    void *made[256], *one_more;
    if (fit > 256) die("the limit is larger than this expects", 1);
    for (size_t i = 0; i < fit; i++) {
        check("create", i, create(&made[i], shape), 0);
        account("arrays", i, (i + 1) * bytes);
    }
    check("one more", fit, create(&one_more, shape), NO_MEMORY);
    account("one more", fit, fit * bytes);
    for (size_t i = 0; i < fit; i++) {
        check("cuArrayDestroy", i, CALL(fn_p, "cuArrayDestroy")(made[i]), 0);
        account("arrays destroyed", i, (fit - 1 - i) * bytes);
    }
}

/* HAMi-core's test_host_alloc, test_host_register and test_alloc_host: the host's memory is none of the limit's. */
static void host(const char *how) {
    for (unsigned step = 0; step < 84; step++) {
        size_t bytes = size_of(step);
        void *p = NULL;
        address there = 0;
        if (!strcmp(how, "host-register")) {
            p = malloc(bytes);
            check("cuMemHostRegister", bytes, CALL(int (*)(void *, size_t, unsigned), "cuMemHostRegister_v2")(p, bytes, 2), 0);
        } else if (!strcmp(how, "host-alloc")) {
            check("cuMemHostAlloc", bytes, CALL(int (*)(void **, size_t, unsigned), "cuMemHostAlloc")(&p, bytes, 2), 0);
        } else {
            check("cuMemAllocHost", bytes, CALL(int (*)(void **, size_t), "cuMemAllocHost_v2")(&p, bytes), 0);
        }
        account("host memory", bytes, 0);
        check("cuMemHostGetDevicePointer", bytes, CALL(int (*)(address *, void *, unsigned), "cuMemHostGetDevicePointer_v2")(&there, p, 0), 0);
        check("it is mapped", bytes, there != 0, 1);
        ((volatile char *)p)[0] = 1;
        ((volatile char *)p)[bytes - 1] = 2;
        if (!strcmp(how, "host-register")) {
            check("cuMemHostUnregister", bytes, CALL(fn_p, "cuMemHostUnregister")(p), 0);
            free(p);
        } else {
            check("cuMemFreeHost", bytes, CALL(fn_p, "cuMemFreeHost")(p), 0);
        }
        account("host memory, freed", bytes, 0);
    }
}

struct race { volatile int round, ready, done, code[2]; volatile size_t rest[2]; };

static pid_t child_of(void (*run)(struct race *, int, size_t), struct race *race, int who, size_t bytes) {
    pid_t child = fork();
    if (child < 0) die("fork", -1);
    if (child) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    run(race, who, bytes);
    exit(0);
}

static void await(volatile int *what, int least) { while (*what < least) usleep(100); }

/* Round after round: gives back what it has, and asks again when the other does. */
static void racer(struct race *race, int who, size_t bytes) {
    address p = 0;
    start(0);
    __sync_fetch_and_add(&race->ready, 1);
    for (int round = 1;; round++) {
        await(&race->round, round);
        if (p) OK("cuMemFree_v2", give(p));
        p = 0;
        race->code[who] = alloc(&p, bytes);
        if (race->code[who]) p = 0;
        __sync_fetch_and_add(&race->done, 1);
        await(&race->done, 4 * round - 2);
        race->rest[who] = free_bytes();
        __sync_fetch_and_add(&race->done, 1);
        await(&race->done, 4 * round);
    }
}

static void alone(struct race *race, int who, size_t bytes) {
    address p;
    start(0);
    race->code[who] = alloc(&p, bytes);
    race->rest[who] = free_bytes();
}

static void holder(struct race *race, int who, size_t bytes) {
    alone(race, who, bytes);
    __sync_fetch_and_add(&race->ready, 1);
    for (;;) pause();
}

static void killed(pid_t child) {
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* HAMi-core's test_concurrent_oom_race. The parent uses no CUDA until its children are dead. */
static void race(void) {
    size_t bytes = 600 * MIB;
    struct race *race = mmap(NULL, sizeof *race, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (race == MAP_FAILED) die("mmap", -1);
    race->code[0] = race->code[1] = -1;
    /* One alone, then one while another holds what it asked for. */
    waitpid(child_of(alone, race, 0, bytes), NULL, 0);
    check("alone", 0, race->code[0], 0);
    check("alone, the rest", 0, race->rest[0], quota - bytes);
    pid_t first = child_of(holder, race, 0, bytes);
    await(&race->ready, 1);
    check("the first", 0, race->code[0], 0);
    waitpid(child_of(alone, race, 1, bytes), NULL, 0);
    check("the second", 0, race->code[1], NO_MEMORY);
    check("the second, the rest", 0, race->rest[1], quota - bytes);
    killed(first);
    waitpid(child_of(alone, race, 1, bytes), NULL, 0);
    check("after the first was killed", 0, race->code[1], 0);

    race->ready = 0;
    pid_t racers[2] = {child_of(racer, race, 0, bytes), child_of(racer, race, 1, bytes)};
    await(&race->ready, 2);
    for (int round = 1; round <= 30; round++) {
        race->round = round;
        await(&race->done, 4 * round);
        check("how many of two had it", round, !race->code[0] + !race->code[1], 1);
        check("the other's code", round, race->code[0] + race->code[1], NO_MEMORY);
        check("the rest, to one", round, race->rest[0], quota - bytes);
        check("the rest, to the other", round, race->rest[1], quota - bytes);
    }
    for (int who = 0; who < 2; who++) killed(racers[who]);
    start(0);
    address p;
    check("all of it, once they are dead", 0, alloc(&p, quota), 0);
}

/* HAMi-core's test_alloc_concurrent: four processes that hold a MiB at most; none is refused, even where there are four. */
static void little(struct race *race, int who, size_t bytes) {
    (void)who;
    address p;
    start(1);
    __sync_fetch_and_add(&race->ready, 1);
    await(&race->ready, 4);
    for (int i = 0; i < 10; i++) {
        if (alloc(&p, bytes) || give(p)) { __sync_fetch_and_add(&race->code[0], 1); continue; }
        __sync_fetch_and_add(&race->done, 1);
    }
}

static void together(void) {
    struct race *race = mmap(NULL, sizeof *race, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (race == MAP_FAILED) die("mmap", -1);
    pid_t children[4];
    for (int i = 0; i < 4; i++) children[i] = child_of(little, race, i, MIB);
    for (int i = 0, status; i < 4; i++) {
        waitpid(children[i], &status, 0);
        check("how it ended", i, status, 0);
    }
    check("refused", 0, race->code[0], 0);
    check("had", 0, race->done, 40);
}

static pthread_barrier_t everyone;
static size_t piece;

static void *creates(void *told_to_hold) {
    static const struct property wanted = {.type = 1, .location_type = 1};
    uint64_t handle;
    size_t grain = 0;
    OK("cuMemGetAllocationGranularity",
       CALL(int (*)(size_t *, const struct property *, int), "cuMemGetAllocationGranularity")(&grain, &wanted, 0));
    if (!grain || 64 * MIB % grain) die("the granularity", (int)grain);
    piece = 64 * MIB;
    int code = CALL(int (*)(uint64_t *, size_t, const struct property *, uint64_t), "cuMemCreate")(&handle, piece, &wanted, 0);
    if (told_to_hold) {
        pthread_barrier_wait(&everyone);
        pthread_barrier_wait(&everyone);
    }
    if (!code) OK("cuMemRelease", CALL(int (*)(uint64_t), "cuMemRelease")(handle));
    return (void *)(intptr_t)code;
}

/* HAMi-core's test_mem_create, without its end: that shuts down an NVML that it never began. Four threads without a context, once each for itself
 * and once all at the same time. */
static void physical(void) {
    pthread_t threads[4];
    size_t fit = quota / (64 * MIB) < 4 ? quota / (64 * MIB) : 4;
    for (int hold = 0; hold < 2; hold++) {
        size_t had = 0;
        pthread_barrier_init(&everyone, NULL, 5);
        for (int i = 0; i < 4; i++) {
            if (pthread_create(&threads[i], NULL, creates, hold ? &everyone : NULL)) die("pthread_create", i);
        }
        if (hold) {
            pthread_barrier_wait(&everyone);
            account("held by four", fit, fit * piece);
            pthread_barrier_wait(&everyone);
        }
        for (int i = 0; i < 4; i++) {
            void *code;
            pthread_join(threads[i], &code);
            if (code) check("refused", i, (intptr_t)code, NO_MEMORY);
            had += !code;
        }
        if (hold || fit == 4) check("had", hold, had, fit);
        account("released", hold, 0);
        pthread_barrier_destroy(&everyone);
    }
}

/* HAMi-core's test_pointer_attribute_managed. */
static void attributes(void) {
    int (*one)(void *, int, address) = CALL(int (*)(void *, int, address), "cuPointerGetAttribute");
    int (*many)(unsigned, int *, void **, address) = CALL(int (*)(unsigned, int *, void **, address), "cuPointerGetAttributes");
    address p, plain;
    OK("cuMemAllocManaged", CALL(int (*)(address *, size_t, unsigned), "cuMemAllocManaged")(&p, MIB, 1));
    OK("cuMemAlloc_v2", alloc(&plain, MIB));
    for (int is_managed = 0; is_managed < 2; is_managed++) {
        int first = -1, second = -1, which = 8 /* IS_MANAGED */;
        void *data = &second;
        check("cuPointerGetAttribute", is_managed, one(&first, which, is_managed ? p : plain), 0);
        check("cuPointerGetAttributes", is_managed, many(1, &which, &data, is_managed ? p : plain), 0);
        check("managed, asked for one", is_managed, first, is_managed);
        check("managed, asked for many", is_managed, second, is_managed);
    }
    void *popped;
    int kind = -1, which = 2 /* MEMORY_TYPE */;
    void *data = &kind;
    OK("cuCtxPopCurrent_v2", CALL(fn_p, "cuCtxPopCurrent_v2")(&popped));
    check("without a context", 0, many(1, &which, &data, p), 0);
    check("memory of the device", 0, kind, 2);
    kind = -1;
    OK("cuCtxPushCurrent_v2", CALL(fn_p, "cuCtxPushCurrent_v2")(popped));
    check("with it again", 0, many(1, &which, &data, p), 0);
    check("memory of the device", 1, kind, 2);
    account("two", 0, 2 * MIB);
    check("cuMemFree", 0, give(p), 0);
    check("cuMemFree", 1, give(plain), 0);
    account("freed", 0, 0);
}

static void trim(void) { OK("cuDeviceGraphMemTrim", CALL(int (*)(int), "cuDeviceGraphMemTrim")(0)); }

/* Captures allocations of `bytes` until one is refused or there are `most`, counts them, and destroys the graph. */
static size_t captured(void *stream, size_t bytes, size_t most) {
    address p[64];
    void *graph = NULL;
    size_t count = 0, nodes = 0;
    int code = 0;
    OK("cuStreamBeginCapture_v2", CALL(fn_pi, "cuStreamBeginCapture_v2")(stream, 2));
    while (count < most && !(code = alloc_async(&p[count], bytes, stream))) count++;
    if (count < most) check("refused in a capture", count, code, NO_MEMORY);
    check("cuStreamEndCapture", count, CALL(fn_pp, "cuStreamEndCapture")(stream, &graph), 0);
    check("cuGraphGetNodes", count, CALL(int (*)(void *, void **, size_t *), "cuGraphGetNodes")(graph, NULL, &nodes), 0);
    check("a refusal leaves the capture what it was", count, nodes, count);
    check("captured", count, quota - free_bytes(), count * bytes);
    check("cuGraphDestroy", count, CALL(fn_p, "cuGraphDestroy")(graph), 0);
    return count;
}

/* vgpu-manager's test_alloc_async_accounting. */
static void ordered(void) {
    void *stream;
    address p[64];
    size_t count = 0;
    int code = 0;
    OK("cuStreamCreate", CALL(int (*)(void **, unsigned), "cuStreamCreate")(&stream, 1));
    while (count < 64 && !(code = alloc_async(&p[count], quota / 8, stream))) count++;
    check("in a stream", 0, count, 8);
    check("refused in a stream", 0, code, NO_MEMORY);
    account("in a stream", 0, quota);
    for (size_t i = 0; i < count; i++) check("cuMemFreeAsync", i, give_async(p[i], stream), 0);
    OK("cuStreamSynchronize", CALL(fn_p, "cuStreamSynchronize")(stream));
    account("freed in a stream", 0, 0);
    check("in a capture", 0, captured(stream, quota / 8, 64), 8);
    trim();
    account("the graph is gone", 0, 0);
    /* Without a trim, what the driver keeps of one graph is paid for by it and had by the next. */
    for (size_t i = 0; i < 12; i++) check("in a capture of many", i, captured(stream, quota / 4, 1), 1);
    /* Neither too little is credited nor too much. */
    check("after them", 0, alloc(&p[0], quota / 4), 0);
    check("too much", 0, alloc(&p[1], quota + quota / 4), NO_MEMORY);
    check("a byte too much", 0, alloc(&p[1], quota - quota / 4 + 1), NO_MEMORY);
    check("the rest", 0, alloc(&p[1], quota - quota / 4), 0);
    account("all of it", 0, quota);
    check("cuMemFree", 0, give(p[0]), 0);
    check("cuMemFree", 1, give(p[1]), 0);
    account("nothing", 0, 0);
    OK("cuStreamDestroy_v2", CALL(fn_p, "cuStreamDestroy_v2")(stream));
}

/* vgpu-manager's test_alloc_pool_async, but what is of its own memory beyond the device's. */
static void pools(void) {
    struct pool wanted;
    void *stream, *pool = NULL;
    address p;
    memset(&wanted, 0, sizeof wanted);
    wanted.kind = 1;
    wanted.location_type = 1;
    OK("cuStreamCreate", CALL(int (*)(void **, unsigned), "cuStreamCreate")(&stream, 1));
    OK("cuMemPoolCreate", CALL(int (*)(void **, void *), "cuMemPoolCreate")(&pool, &wanted));
    fn_from from = CALL(fn_from, "cuMemAllocFromPoolAsync");
    for (int own = 0; own < 2; own++) {
        check("alloc", own, own ? from(&p, 32 * MIB, pool, stream) : alloc_async(&p, 32 * MIB, stream), 0);
        account("had", own, 32 * MIB);
        check("free", own, give_async(p, stream), 0);
        OK("cuStreamSynchronize", CALL(fn_p, "cuStreamSynchronize")(stream));
        account("freed", own, 0);
    }
    check("more than is free", 0, from(&p, free_bytes() + 1024 * MIB, pool, stream), NO_MEMORY);
    check("a byte more than is free", 0, from(&p, free_bytes() + 1, pool, stream), NO_MEMORY);
    account("refused", 0, 0);
    check("cuMemPoolDestroy", 0, CALL(fn_p, "cuMemPoolDestroy")(pool), 0);
    OK("cuStreamDestroy_v2", CALL(fn_p, "cuStreamDestroy_v2")(stream));
}

/* Whether it is in the library that holds the limits. */
static int is_ours(void *found) {
    Dl_info info;
    return found && dladdr(found, &info) && info.dli_fname && strstr(info.dli_fname, "libpartita.so") != NULL;
}

/* vgpu-manager's test_getproc_routing and the test_dlsym_rtld_next of both. HAMi-core's asks for the contrary in one place: what is found in libcuda's
 * own handle must be libcuda's; here that is held as well. */
static void routing(void) {
    int version = 0;
    address p;
    OK("cuDriverGetVersion", CALL(fn_p, "cuDriverGetVersion")(&version));
    static const struct { const char *name; int of_stream; } held[] = {{"cuMemAlloc", 0}, {"cuMemGetInfo", 0}, {"cuMemAllocAsync", 1},
                                                                       {"cuMemFreeAsync", 1}, {"cuLaunchKernel", 1}, {"cuGraphLaunch", 1}};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) {
        void *legacy = by_version(held[i].name, version, 0), *threaded = by_version(held[i].name, version, 2);
        check(held[i].name, 1, is_ours(legacy), 1);
        check(held[i].name, 2, is_ours(threaded), 1);
        /* Those of a stream are others where null is the thread's own. */
        check(held[i].name, 3, legacy != threaded, held[i].of_stream);
    }
    check("cuMemAlloc does what it is to", 0, ((fn_alloc)by_version("cuMemAlloc", version, 0))(&p, quota + 1), NO_MEMORY);
    for (uint64_t flags = 0; flags < 3; flags++)
        check("cuMemAllocAsync does what it is to", flags, ((fn_async)by_version("cuMemAllocAsync", version, flags))(&p, quota + 1, NULL), NO_MEMORY);
    by_version("cuCtxCreate", version, 0);
    check("in libcuda's handle", 0, is_ours(by_name("cuMemAlloc_v2")), 1);

    void *first = dlsym(RTLD_NEXT, "open"), *second = dlsym(RTLD_NEXT, "open");
    check("the next open", 0, first && first == second && !is_ours(first), 1);
    /* A program that is not linked to libcuda has none behind it, but ours. */
    void *next = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    check("the next cuMemAlloc", 0, is_ours(next), 1);
    if (next) check("the next cuMemAlloc does what it is to", 0, ((fn_alloc)next)(&p, quota + 1), NO_MEMORY);
    account("none of that", 0, 0);
}

/* HAMi-core's test_meminfo_null_out and test_cuda_null_guards: what libraries of NVIDIA pass, in their first steps. */
static void nulls(void) {
    fn_sizes info = CALL(fn_sizes, "cuMemGetInfo_v2");
    size_t left = 0, total = 0, bytes = 0;
    address p = 0;
    check("the total alone", 0, info(NULL, &total), 0);
    check("the total", 0, total, quota);
    check("the rest alone", 0, info(&left, NULL), 0);
    check("the rest", 0, left, quota);
    check("neither", 0, info(NULL, NULL), 0);
    check("cuMemAlloc", 0, alloc(NULL, 4096), INVALID);
    check("cuMemAlloc of nothing", 0, alloc(&p, 0), INVALID);
    check("cuMemAllocHost", 0, CALL(int (*)(void **, size_t), "cuMemAllocHost_v2")(NULL, 4096), INVALID);
    check("cuMemAllocManaged", 0, CALL(int (*)(address *, size_t, unsigned), "cuMemAllocManaged")(NULL, 4096, 1), INVALID);
    int (*pitched)(address *, size_t *, size_t, size_t, unsigned) =
        CALL(int (*)(address *, size_t *, size_t, size_t, unsigned), "cuMemAllocPitch_v2");
    check("cuMemAllocPitch to nowhere", 0, pitched(NULL, &bytes, 1024, 1024, 4), INVALID);
    check("cuMemAllocPitch with no pitch", 0, pitched(&p, NULL, 1024, 1024, 4), INVALID);
    account("none of that", 0, 0);
}

/* vgpu-manager's test_fork_inherit: a child of a process that uses CUDA cannot use it and takes nothing with it; replaced by another program, it is
 * of the tenant. And HAMi-core's test_fork_child_exit_cleanup, with `quietly`: a child made in a way that no library notices. */
static void forks(const char *program, int quietly) {
    address p, q;
    OK("cuMemAlloc_v2", alloc(&p, 64 * MIB));
    for (int step = 0; step < 2; step++) {
        int status = -1;
        fflush(stdout);
        pid_t child = quietly ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
        if (child < 0) die("fork", step);
        if (child == 0) {
            if (step == 1) { execl(program, program, "beside", "64", NULL); _exit(4); }
            if (quietly) exit(0);
            exit(alloc(&q, MIB) ? 0 : 3);
        }
        waitpid(child, &status, 0);
        check("how the child ended", step, status, 0);
        account("what the parent holds", step, 64 * MIB);
        check("the parent goes on", step, alloc(&q, 64 * MIB), 0);
        account("and holds more", step, 128 * MIB);
        check("cuMemFree", step, give(q), 0);
    }
    check("a byte too much", 0, alloc(&q, quota - 64 * MIB + 1), NO_MEMORY);
    check("cuMemFree", 2, give(p), 0);
    account("freed", 2, 0);
}

/* vgpu-manager's test_runtime_graph_launch: 64 launches of a graph of four captured kernels; each block counts once. */
static void graph(const char *kernels) {
    enum { SMS = 1024, BLOCKS = 24, KERNELS = 4, LAUNCHES = 64 };
    static uint32_t counts[SMS + 1];
    void *module, *kernel, *stream, *made = NULL, *executable = NULL;
    address at;
    uint32_t sms = SMS;
    void *parameters[] = {&at, &sms};
    OK("cuModuleLoad", CALL(fn_pp, "cuModuleLoad")(&module, (void *)kernels));
    OK("cuModuleGetFunction", CALL(int (*)(void *, void *, const char *), "cuModuleGetFunction")(&kernel, module, "partita_count"));
    OK("cuMemAlloc_v2", alloc(&at, sizeof counts));
    OK("cuMemsetD32_v2", CALL(int (*)(address, unsigned, size_t), "cuMemsetD32_v2")(at, 0, SMS + 1));
    OK("cuStreamCreate", CALL(int (*)(void **, unsigned), "cuStreamCreate")(&stream, 0));
    OK("cuStreamBeginCapture_v2", CALL(fn_pi, "cuStreamBeginCapture_v2")(stream, 0));
    for (int i = 0; i < KERNELS; i++)
        OK("cuLaunchKernel",
           CALL(int (*)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
                "cuLaunchKernel")(kernel, BLOCKS, 1, 1, 64, 1, 1, 0, stream, parameters, NULL));
    OK("cuStreamEndCapture", CALL(fn_pp, "cuStreamEndCapture")(stream, &made));
    OK("cuGraphInstantiateWithFlags", CALL(int (*)(void *, void *, uint64_t), "cuGraphInstantiateWithFlags")(&executable, made, 0));
    for (int i = 0; i < LAUNCHES; i++) check("cuGraphLaunch", i, CALL(fn_pp, "cuGraphLaunch")(executable, stream), 0);
    OK("cuStreamSynchronize", CALL(fn_p, "cuStreamSynchronize")(stream));
    OK("cuMemcpyDtoH_v2", CALL(int (*)(void *, address, size_t), "cuMemcpyDtoH_v2")(counts, at, sizeof counts));
    size_t blocks = 0;
    for (int i = 0; i <= SMS; i++) blocks += counts[i];
    check("blocks", 0, blocks, BLOCKS * KERNELS * LAUNCHES);
    check("blocks that ran nowhere", 0, counts[SMS], 0);
    OK("cuGraphExecDestroy", CALL(fn_p, "cuGraphExecDestroy")(executable));
    OK("cuGraphDestroy", CALL(fn_p, "cuGraphDestroy")(made));
    OK("cuStreamDestroy_v2", CALL(fn_p, "cuStreamDestroy_v2")(stream));
    OK("cuMemFree_v2", give(at));
    account("freed", 0, 0);
}

/* HAMi-core's test_alloc_async_free_wrong_device: what is freed in the one device's stream while the other's context is current is the one's. */
static void two(void) {
    void *contexts[2], *stream;
    address p;
    contexts[0] = context;
    OK("cuCtxCreate_v2", CALL(fn_pui, "cuCtxCreate_v2")(&contexts[1], 0, 1));
    size_t of_other = total_bytes();
    fn_p current = CALL(fn_p, "cuCtxSetCurrent");
    OK("cuCtxSetCurrent", current(contexts[0]));
    OK("cuStreamCreate", CALL(int (*)(void **, unsigned), "cuStreamCreate")(&stream, 1));
    check("cuMemAllocAsync", 0, alloc_async(&p, 32 * MIB, stream), 0);
    account("the first one's", 0, 32 * MIB);
    OK("cuCtxSetCurrent", current(contexts[1]));
    check("the other's", 0, of_other - free_bytes(), 0);
    check("cuMemFreeAsync", 0, give_async(p, stream), 0);
    OK("cuCtxSetCurrent", current(contexts[0]));
    OK("cuStreamSynchronize", CALL(fn_p, "cuStreamSynchronize")(stream));
    account("freed", 0, 0);
    OK("cuCtxSetCurrent", current(contexts[1]));
    check("still the other's", 0, of_other - free_bytes(), 0);
    check("cuMemAllocAsync", 1, alloc_async(&p, 32 * MIB, NULL), 0);
    check("the other's", 1, of_other - free_bytes(), 32 * MIB);
    check("cuMemFreeAsync", 1, give_async(p, NULL), 0);
    OK("cuCtxSynchronize", settle());
    check("the other's", 2, of_other - free_bytes(), 0);
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    const char *what = arguments[1];
    /* A process that waits for a dead child. */
    alarm(100);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(what, "beside")) {
        /* What `forks` starts: it sees what its parent holds. */
        start(1);
        return total_bytes() - free_bytes() == strtoull(arguments[2], NULL, 10) * MIB ? 0 : 5;
    }
    quota = strtoull(arguments[2], NULL, 10) * MIB;
    if (!strcmp(what, "race")) race();
    else if (!strcmp(what, "together")) together();
    else {
        start(0);
        account("at first", 0, 0);
        check("the total", 0, total_bytes(), quota);
        if (!strcmp(what, "plain")) plain();
        else if (!strcmp(what, "managed")) managed();
        else if (!strcmp(what, "pitch")) pitch();
        else if (!strcmp(what, "array")) arrays(0);
        else if (!strcmp(what, "array-3d")) arrays(1);
        else if (!strncmp(what, "host-", 5)) host(what);
        else if (!strcmp(what, "physical")) physical();
        else if (!strcmp(what, "attributes")) attributes();
        else if (!strcmp(what, "ordered")) ordered();
        else if (!strcmp(what, "pools")) pools();
        else if (!strcmp(what, "routing")) routing();
        else if (!strcmp(what, "nulls")) nulls();
        else if (!strcmp(what, "forks")) forks(arguments[0], 0);
        else if (!strcmp(what, "clones")) forks(arguments[0], 1);
        else if (!strcmp(what, "graph") && count > 3) graph(arguments[3]);
        else if (!strcmp(what, "two")) two();
        else return 2;
        check("cuCtxDestroy", 0, CALL(fn_p, "cuCtxDestroy_v2")(context), 0);
    }
    if (!failures) printf("ok\n");
    return failures != 0;
}
