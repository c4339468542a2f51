/* A program on every GPU that it sees: kernels by every route on each, while its limits change. Reads commands:
 *   round          where blocks run now, a line a GPU and route
 *   alloc D N      allocates N bytes on GPU D by cuMemAlloc; `free D` frees the last of them
 *   async D N      the same by cuMemAllocAsync in a stream of D
 *   create D N     the same by cuMemCreate, and gives it back
 *   info D         free and total bytes of D, and the total without a context
 *   cooperative D N  the code of a cooperative launch of N blocks in a stream of D, another GPU's context being current
 *   mixed          the code of instantiating a graph that was captured on the first two GPUs
 *   again          the same as round with new contexts and streams
 * and ends each answer with `done`. Begins with the GPUs' UUIDs, then `ready`. Arguments: the file with the
 * kernels, blocks. */
#include "census.h"
#include <pthread.h>

struct location { int kind, id; };
struct allocation { int kind, handles; struct location location; void *windows; unsigned char flags[8]; };

#define GPUS_MAX 32
/* A context of a GPU with what lies in it. */
struct place { void *context, *stream, *census; address records; };
struct gpu { struct place primary, other; void *added, *captured; address held; } gpus[GPUS_MAX];
static int count;
static unsigned blocks;
static uint64_t duration = 30000;
static const char *kernels;
static fn_launch launch, launch_ptsz;
static fn_ex launch_ex;

static void use(void *context) { OK("cuCtxSetCurrent", CALL(fn_p, "cuCtxSetCurrent")(context)); }
static int next_to(int gpu) { return (gpu + 1) % count; }

static void furnish(struct place *place) {
    use(place->context);
    place->census = load_census(kernels);
    place->stream = new_stream(1);
    place->records = new_records(blocks);
}

static void clear(struct place *place) {
    use(place->context);
    clear_records(place->records, blocks);
}

/* The SMs on which the blocks of the last launch in a context ran. */
static void report(int gpu, const char *route, struct place *place, int code) {
    if (code) { printf("%d %s error %d\n", gpu, route, code); return; }
    use(place->context);
    printf("%d %s", gpu, route);
    print_sms(place->records, blocks);
    clear(place);
}

static int by(fn_launch with, struct place *place, void *stream) {
    void *parameters[2] = {&place->records, &duration};
    return with(place->census, blocks, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL);
}

static int by_config(struct place *place) {
    void *parameters[2] = {&place->records, &duration};
    struct config config = {{blocks, 1, 1}, {1024, 1, 1}, 0, place->stream, NULL, 0};
    return launch_ex(&config, place->census, parameters, NULL);
}

static void *added_graph(struct place *place) {
    void *parameters[2] = {&place->records, &duration}, *graph = new_graph();
    add_node(graph, NULL, place->census, blocks, 1024, parameters);
    return graph;
}

static void *captured_graph(struct place *place) {
    void *graph;
    OK("cuStreamBeginCapture_v2", CALL(int (*)(void *, int), "cuStreamBeginCapture_v2")(place->stream, 2));
    OK("captured launch", by(launch, place, place->stream));
    OK("cuStreamEndCapture", CALL(int (*)(void *, void **), "cuStreamEndCapture")(place->stream, &graph));
    return graph;
}

static int mixed(void) {
    struct place *one = &gpus[0].primary, *two = &gpus[1].primary;
    void *fork, *join, *graph, *executable;
    int (*record)(void *, void *) = CALL(fn_pp, "cuEventRecord");
    int (*wait)(void *, void *, unsigned) = CALL(int (*)(void *, void *, unsigned), "cuStreamWaitEvent");
    use(two->context);
    OK("cuEventCreate", CALL(int (*)(void **, unsigned), "cuEventCreate")(&join, 2));
    use(one->context);
    OK("cuEventCreate", CALL(int (*)(void **, unsigned), "cuEventCreate")(&fork, 2));
    OK("cuStreamBeginCapture_v2", CALL(int (*)(void *, int), "cuStreamBeginCapture_v2")(one->stream, 2));
    OK("captured on the first", by(launch, one, one->stream));
    OK("cuEventRecord", record(fork, one->stream));
    use(two->context);
    OK("cuStreamWaitEvent", wait(two->stream, fork, 0));
    OK("captured on the second", by(launch, two, two->stream));
    OK("cuEventRecord", record(join, two->stream));
    use(one->context);
    OK("cuStreamWaitEvent", wait(one->stream, join, 0));
    OK("cuStreamEndCapture", CALL(int (*)(void *, void **), "cuStreamEndCapture")(one->stream, &graph));
    int code = CALL(int (*)(void **, void *, uint64_t), "cuGraphInstantiateWithFlags")(&executable, graph, 0);
    OK("cuGraphDestroy", CALL(fn_p, "cuGraphDestroy")(graph));
    return code;
}

static void *in_thread(void *gpu) {
    struct place *place = &((struct gpu *)gpu)->primary;
    use(place->context);
    return (void *)(intptr_t)by(launch, place, place->stream);
}

static void round_of(int gpu) {
    struct place *place = &gpus[gpu].primary, *other = &gpus[gpu].other;
    void *elsewhere = gpus[next_to(gpu)].primary.context;
    use(place->context);
    report(gpu, "default", place, by(launch, place, NULL));
    report(gpu, "stream", place, by(launch, place, place->stream));
    report(gpu, "per-thread", place, by(launch_ptsz, place, NULL));
    report(gpu, "ex", place, by_config(place));
    use(elsewhere);
    report(gpu, "foreign", place, by(launch, place, place->stream));
    use(elsewhere);
    report(gpu, "added", place, CALL(fn_pp, "cuGraphLaunch")(gpus[gpu].added, place->stream));
    use(elsewhere);
    report(gpu, "captured", place, CALL(fn_pp, "cuGraphLaunch")(gpus[gpu].captured, place->stream));
    use(other->context);
    report(gpu, "context", other, by(launch, other, NULL));
    use(other->context);
    report(gpu, "context-stream", other, by(launch, other, other->stream));
    pthread_t thread;
    void *code;
    pthread_create(&thread, NULL, in_thread, &gpus[gpu]);
    pthread_join(thread, &code);
    report(gpu, "thread", place, (int)(intptr_t)code);
}

static void make_other(int gpu) {
    OK("cuCtxCreate_v2", CALL(fn_pui, "cuCtxCreate_v2")(&gpus[gpu].other.context, 0, gpu));
    furnish(&gpus[gpu].other);
    clear(&gpus[gpu].other);
}

/* Handles come back for another GPU than before: the GPUs in the opposite order. */
static void make_anew(void) {
    for (int gpu = 0; gpu < count; gpu++) {
        OK("cuCtxDestroy_v2", CALL(fn_p, "cuCtxDestroy_v2")(gpus[gpu].other.context));
        use(gpus[gpu].primary.context);
        OK("cuStreamDestroy_v2", CALL(fn_p, "cuStreamDestroy_v2")(gpus[gpu].primary.stream));
    }
    for (int gpu = count - 1; gpu >= 0; gpu--) {
        use(gpus[gpu].primary.context);
        OK("cuStreamCreate", CALL(int (*)(void **, unsigned), "cuStreamCreate")(&gpus[gpu].primary.stream, 1));
        make_other(gpu);
    }
}

int main(int arguments_count, char **arguments) {
    if (arguments_count < 3) return 2;
    kernels = kernels_in(arguments[1]);
    blocks = (unsigned)atoi(arguments[2]);

    OK("cuInit", CALL(fn_u, "cuInit")(0));
    OK("cuDeviceGetCount", CALL(int (*)(int *), "cuDeviceGetCount")(&count));
    launch = CALL(fn_launch, "cuLaunchKernel");
    launch_ptsz = (fn_launch)by_version("cuLaunchKernel", 12000, 2);
    launch_ex = (fn_ex)by_version("cuLaunchKernelEx", 12000, 1);
    for (int gpu = 0; gpu < count; gpu++) {
        unsigned char uuid[16];
        OK("cuDeviceGetUuid_v2", CALL(int (*)(void *, int), "cuDeviceGetUuid_v2")(uuid, gpu));
        printf("uuid GPU-");
        for (int i = 0; i < 16; i++) printf(i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
        printf("\n");
        struct place *place = &gpus[gpu].primary;
        OK("cuDevicePrimaryCtxRetain", CALL(fn_pi, "cuDevicePrimaryCtxRetain")(&place->context, gpu));
        furnish(place);
        clear(place);
        gpus[gpu].added = instantiate_and_drop(added_graph(place));
        gpus[gpu].captured = instantiate_and_drop(captured_graph(place));
        make_other(gpu);
    }
    printf("ready\n");
    fflush(stdout);

    char line[96];
    while (fgets(line, sizeof line, stdin)) {
        char what[32];
        int gpu = 0;
        unsigned long long bytes = 0;
        if (sscanf(line, "%31s %d %llu", what, &gpu, &bytes) < 1) continue;
        struct gpu *here = &gpus[gpu];
        use(here->primary.context);
        if (!strcmp(what, "round") || !strcmp(what, "again")) {
            if (!strcmp(what, "again")) make_anew();
            for (gpu = 0; gpu < count; gpu++) round_of(gpu);
        } else if (!strcmp(what, "alloc")) {
            printf("alloc %d\n", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&here->held, bytes));
        } else if (!strcmp(what, "free")) {
            /* Memory is freed from anywhere. */
            use(gpus[next_to(gpu)].primary.context);
            printf("free %d\n", CALL(int (*)(address), "cuMemFree_v2")(here->held));
        } else if (!strcmp(what, "async")) {
            printf("async %d\n", CALL(int (*)(address *, size_t, void *), "cuMemAllocAsync")(&here->held, bytes, here->primary.stream));
        } else if (!strcmp(what, "create")) {
            struct allocation wanted = {1, 0, {1, gpu}, NULL, {0}};
            address handle;
            int code = CALL(int (*)(address *, size_t, void *, uint64_t), "cuMemCreate")(&handle, bytes, &wanted, 0);
            if (!code) OK("cuMemRelease", CALL(int (*)(address), "cuMemRelease")(handle));
            printf("create %d\n", code);
        } else if (!strcmp(what, "info")) {
            size_t left = free_bytes(), total = total_bytes(), told;
            OK("cuDeviceTotalMem_v2", CALL(int (*)(size_t *, int), "cuDeviceTotalMem_v2")(&told, gpu));
            printf("info %zu %zu %zu\n", left, total, told);
        } else if (!strcmp(what, "cooperative")) {
            void *parameters[2] = {&here->primary.records, &duration};
            use(gpus[next_to(gpu)].primary.context);
            int code = CALL(fn_cooperative, "cuLaunchCooperativeKernel")(here->primary.census, (unsigned)bytes, 1, 1, 1024, 1, 1, 0, here->primary.stream, parameters);
            use(here->primary.context);
            if (!code) wait_all();
            printf("cooperative %d\n", code);
            clear(&here->primary);
        } else if (!strcmp(what, "mixed")) {
            printf("mixed %d\n", mixed());
        }
        printf("done\n");
        fflush(stdout);
    }
    return 0;
}
