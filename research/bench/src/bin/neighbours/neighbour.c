/* A program that shares a GPU: a victim that times its own kernels, or a neighbour of one kind.
 *   neighbour KERNELS.ptx FLOODS.ptx victim KERNEL_NS BLOCKS KERNELS
 *   neighbour KERNELS.ptx FLOODS.ptx KIND
 * Both print `ready`. The victim runs KERNELS kernels in a row, waits for them, and begins again. It
 * answers each line `MS` with p50 and p99, in nanoseconds, of: the whole, the time before the first
 * block, the time in the kernels, the time after the last block. Of the times before and after,
 * which cross two clocks, the least one is subtracted. Or it answers `error CODE` and ends.
 * A neighbour works until its input ends. */
#include "cuda.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <time.h>

#define STREAMS_MAX 1000
#define CHILDREN_MAX 48

typedef int (*fn_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

static const char *kernels_file, *floods_file;
static void *kernels, *floods;
static fn_launch launch_kernel;
static int (*synchronize)(void);
static int (*synchronize_stream)(void *);
static pid_t children[CHILDREN_MAX];
static int child_count;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void sleep_ms(unsigned ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000l};
    while (nanosleep(&time, &time) && errno == EINTR)
        ;
}

static void prepare(void) {
    start(1);
    OK("cuModuleLoad", CALL(fn_pp, "cuModuleLoad")(&kernels, (void *)kernels_file));
    OK("cuModuleLoad", CALL(fn_pp, "cuModuleLoad")(&floods, (void *)floods_file));
    launch_kernel = CALL(fn_launch, "cuLaunchKernel");
    synchronize = CALL(int (*)(void), "cuCtxSynchronize");
    synchronize_stream = CALL(fn_p, "cuStreamSynchronize");
}

static void *function_of(void *module, const char *name) {
    void *function;
    OK(name, CALL(int (*)(void *, void *, const char *), "cuModuleGetFunction")(&function, module, name));
    return function;
}

static void *make_stream(int is_high) {
    static int least, greatest, is_known;
    void *stream;
    if (!is_known) {
        OK("cuCtxGetStreamPriorityRange", CALL(int (*)(int *, int *), "cuCtxGetStreamPriorityRange")(&least, &greatest));
        is_known = 1;
    }
    OK("cuStreamCreateWithPriority",
       CALL(int (*)(void **, unsigned, int), "cuStreamCreateWithPriority")(&stream, 1, is_high ? greatest : least));
    return stream;
}

static address allocate(size_t bytes) {
    address found;
    OK("cuMemAlloc_v2", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&found, bytes));
    OK("cuMemsetD8_v2", CALL(int (*)(address, unsigned char, size_t), "cuMemsetD8_v2")(found, 0, bytes));
    return found;
}

static void ready(void) {
    puts("ready");
    fflush(stdout);
}

/* Whether the input has ended, without waiting. */
static int is_over(void) {
    struct pollfd input = {0, POLLIN, 0};
    char byte;
    return poll(&input, 1, 0) > 0 && read(0, &byte, 1) <= 0;
}

static void wait_for_end(void) {
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
}

static int later(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

#define TIMES_MAX (1 << 18)
/* What `partita_census` writes for each block. */
struct block {
    uint64_t sm, begin, end, mark;
};

static void answer_with(int64_t *times, size_t count, int is_relative, char end) {
    qsort(times, count, sizeof *times, later);
    int64_t least = is_relative ? times[0] : 0;
    printf("%lld %lld%c", (long long)(times[count / 2] - least), (long long)(times[count * 99 / 100] - least), end);
}

static int victim(uint64_t kernel_ns, unsigned blocks, unsigned kernels_in_a_row) {
    static int64_t whole[TIMES_MAX], before[TIMES_MAX], inside[TIMES_MAX], after[TIMES_MAX];
    char line[32];
    struct block *written;
    size_t all = (size_t)blocks * kernels_in_a_row;
    prepare();
    OK("cuMemHostAlloc",
       CALL(int (*)(void **, size_t, unsigned), "cuMemHostAlloc")((void **)&written, all * sizeof *written, 2));
    void *census = function_of(kernels, "partita_census"), *stream = make_stream(0);
    ready();
    while (fgets(line, sizeof line, stdin)) {
        uint64_t end = now_ns() + strtoull(line, NULL, 10) * 1000000;
        size_t count = 0;
        while (now_ns() < end && count < TIMES_MAX) {
            uint64_t begin = now_ns();
            int code = 0;
            for (unsigned i = 0; i < kernels_in_a_row && !code; i++) {
                struct block *out = written + (size_t)blocks * i;
                void *parameters[] = {&out, &kernel_ns};
                code = launch_kernel(census, blocks, 1, 1, 64, 1, 1, 0, stream, parameters, NULL);
            }
            if (!code) code = synchronize_stream(stream);
            if (code) {
                printf("error %d\n", code);
                return 1;
            }
            uint64_t over = now_ns(), first = UINT64_MAX, last = 0;
            for (size_t i = 0; i < all; i++) {
                if (written[i].begin < first) first = written[i].begin;
                if (written[i].end > last) last = written[i].end;
            }
            whole[count] = over - begin;
            before[count] = first - begin;
            inside[count] = last - first;
            after[count++] = over - last;
        }
        if (count) {
            answer_with(whole, count, 0, ' ');
            answer_with(before, count, 1, ' ');
            answer_with(inside, count, 0, ' ');
            answer_with(after, count, 1, '\n');
        } else
            puts("error 0");
        fflush(stdout);
    }
    return 0;
}

/* Launches without a pause, with at most a few kernels in flight. */
static void flood(void *function, unsigned blocks, unsigned threads, void **parameters) {
    ready();
    for (int launched = 0; !is_over(); launched++) {
        OK("launch", launch_kernel(function, blocks, 1, 1, threads, 1, 1, 0, NULL, parameters, NULL));
        if (launched % 4 == 3) OK("wait", synchronize());
    }
}

static void compute(void) {
    uint64_t ns = 5000000;
    void *parameters[] = {&ns};
    prepare();
    flood(function_of(kernels, "partita_spin"), 2048, 1024, parameters);
}

/* Reads and writes `bytes`, `stride` words apart. */
static void memory(size_t bytes, uint64_t stride) {
    prepare();
    address base = allocate(bytes);
    uint64_t words = bytes / 4, rounds = 256;
    void *parameters[] = {&base, &words, &stride, &rounds};
    flood(function_of(floods, "flood_memory"), 1024, 256, parameters);
}

static void bandwidth(void) { memory((size_t)1 << 30, 1024 * 256); }
static void second_level_cache(void) { memory((size_t)24 << 20, 1024 * 256); }
static void translations(void) { memory((size_t)8 << 30, (2 << 20) / 4 + 32); }

static void copies(int is_to_device) {
    size_t bytes = 64 << 20;
    void *host;
    prepare();
    address device = allocate(bytes);
    OK("cuMemHostAlloc", CALL(int (*)(void **, size_t, unsigned), "cuMemHostAlloc")(&host, bytes, 0));
    int (*up)(address, const void *, size_t) = CALL(int (*)(address, const void *, size_t), "cuMemcpyHtoD_v2");
    int (*down)(void *, address, size_t) = CALL(int (*)(void *, address, size_t), "cuMemcpyDtoH_v2");
    ready();
    while (!is_over()) OK("copy", is_to_device ? up(device, host, bytes) : down(host, device, bytes));
}

static void to_device(void) { copies(1); }
static void from_device(void) { copies(0); }

static void atomics(void) {
    uint64_t rounds = 256;
    prepare();
    address word = allocate(4);
    void *parameters[] = {&word, &rounds};
    flood(function_of(floods, "flood_atomics"), 1024, 256, parameters);
}

static void constants(void) {
    uint64_t rounds = 4096;
    prepare();
    address word = allocate(4);
    void *parameters[] = {&word, &rounds};
    flood(function_of(floods, "flood_constants"), 1024, 256, parameters);
}

/* `count` streams, each with two kernels of one block and 20 ms in flight. */
static void busy_streams(int count, int is_high) {
    static void *streams[STREAMS_MAX], *events[STREAMS_MAX][2];
    uint64_t ns = 20000000;
    void *parameters[] = {&ns};
    prepare();
    void *spin = function_of(kernels, "partita_spin");
    fn_pp record = CALL(fn_pp, "cuEventRecord");
    fn_p wait = CALL(fn_p, "cuEventSynchronize");
    for (int i = 0; i < count; i++) {
        streams[i] = make_stream(is_high);
        for (int k = 0; k < 2; k++)
            OK("cuEventCreate", CALL(int (*)(void *, unsigned), "cuEventCreate")(&events[i][k], 2));
    }
    for (int round = 0;; round++) {
        for (int i = 0; i < count; i++) {
            if (round >= 2) OK("wait", wait(events[i][round % 2]));
            OK("launch", launch_kernel(spin, 1, 1, 1, 32, 1, 1, 0, streams[i], parameters, NULL));
            OK("record", record(events[i][round % 2], streams[i]));
            if (i % 32 == 0 && is_over()) return;
        }
        if (round == 0) ready();
    }
}

static void streams_16(void) { busy_streams(16, 0); }
static void streams_128(void) { busy_streams(128, 0); }
static void streams_256(void) { busy_streams(256, 0); }
static void streams_1000(void) { busy_streams(1000, 0); }
static void streams_high_128(void) { busy_streams(128, 1); }
static void streams_high_1000(void) { busy_streams(1000, 1); }

/* A graph of `nodes` kernels of 20 us, in `wide` branches. */
static void graph_of(int nodes, int wide) {
    uint64_t ns = 20000;
    void *parameters[] = {&ns}, *graph, *executable, *joined, *branches[256], *event;
    prepare();
    void *spin = function_of(kernels, "partita_spin"), *stream = make_stream(0);
    fn_pp record = CALL(fn_pp, "cuEventRecord");
    int (*wait)(void *, void *, unsigned) = CALL(int (*)(void *, void *, unsigned), "cuStreamWaitEvent");
    OK("cuEventCreate", CALL(int (*)(void *, unsigned), "cuEventCreate")(&event, 2));
    OK("cuEventCreate", CALL(int (*)(void *, unsigned), "cuEventCreate")(&joined, 2));
    OK("capture", CALL(fn_pi, "cuStreamBeginCapture_v2")(stream, 2));
    OK("record", record(event, stream));
    for (int b = 0; b < wide; b++) {
        branches[b] = b ? make_stream(0) : stream;
        if (b) OK("fork", wait(branches[b], event, 0));
    }
    for (int i = 0; i < nodes; i++)
        OK("captured", launch_kernel(spin, 1, 1, 1, 32, 1, 1, 0, branches[i % wide], parameters, NULL));
    for (int b = 1; b < wide; b++) {
        OK("record", record(joined, branches[b]));
        OK("join", wait(stream, joined, 0));
    }
    OK("capture", CALL(fn_pp, "cuStreamEndCapture")(stream, &graph));
    OK("instantiate", CALL(int (*)(void *, void *, uint64_t), "cuGraphInstantiateWithFlags")(&executable, graph, 0));
    fn_pp launch = CALL(fn_pp, "cuGraphLaunch");
    ready();
    while (!is_over()) {
        OK("graph", launch(executable, stream));
        OK("wait", synchronize_stream(stream));
    }
}

static void graph_10000(void) { graph_of(10000, 1); }
static void graph_wide(void) { graph_of(10000, 256); }

static void launches(void) {
    uint64_t ns = 1;
    void *parameters[] = {&ns};
    prepare();
    void *spin = function_of(kernels, "partita_spin");
    ready();
    for (unsigned i = 0; i % 1000 || !is_over(); i++)
        OK("launch", launch_kernel(spin, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
}

static void allocations(void) {
    address found;
    prepare();
    int (*take)(address *, size_t) = CALL(int (*)(address *, size_t), "cuMemAlloc_v2");
    int (*release)(address) = CALL(int (*)(address), "cuMemFree_v2");
    ready();
    for (unsigned i = 0; i % 100 || !is_over(); i++) {
        OK("allocate", take(&found, (size_t)1 << (12 + i % 15)));
        OK("release", release(found));
    }
}

static void events(void) {
    void *event;
    prepare();
    int (*make)(void **, unsigned) = CALL(int (*)(void **, unsigned), "cuEventCreate");
    fn_pp record = CALL(fn_pp, "cuEventRecord");
    fn_p wait = CALL(fn_p, "cuEventSynchronize"), end = CALL(fn_p, "cuEventDestroy_v2");
    ready();
    for (unsigned i = 0; i % 100 || !is_over(); i++) {
        OK("event", make(&event, 0));
        OK("record", record(event, NULL));
        OK("wait", wait(event));
        OK("destroy", end(event));
    }
}

static void stream_storm(void) {
    prepare();
    fn_p end = CALL(fn_p, "cuStreamDestroy_v2");
    ready();
    while (!is_over()) OK("destroy", end(make_stream(0)));
}

static void contexts(void) {
    void *one;
    start(1);
    fn_pui make = CALL(fn_pui, "cuCtxCreate_v2");
    fn_p end = CALL(fn_p, "cuCtxDestroy_v2");
    ready();
    while (!is_over()) {
        OK("context", make(&one, 0, 0));
        OK("destroy", end(one));
    }
}

static void pinned(void) {
    static void *blocks[64];
    size_t bytes = 64 << 20;
    prepare();
    int (*take)(void **, size_t, unsigned) = CALL(int (*)(void **, size_t, unsigned), "cuMemHostAlloc");
    fn_p release = CALL(fn_p, "cuMemFreeHost");
    ready();
    while (!is_over()) {
        int held = 0;
        while (held < 64 && !take(&blocks[held], bytes, 0)) held++;
        while (held) OK("release", release(blocks[--held]));
    }
}

/* Managed memory that the GPU fills, where its pages are not there yet, are the host's, or have been
 * brought before. */
static void managed(int host_writes, int is_prefetched) {
    address found;
    size_t bytes = 32 << 20;
    prepare();
    int (*take)(address *, size_t, unsigned) = CALL(int (*)(address *, size_t, unsigned), "cuMemAllocManaged");
    int (*fill)(address, unsigned char, size_t) = CALL(int (*)(address, unsigned char, size_t), "cuMemsetD8_v2");
    int (*bring)(address, size_t, int, void *) = CALL(int (*)(address, size_t, int, void *), "cuMemPrefetchAsync");
    int (*release)(address) = CALL(int (*)(address), "cuMemFree_v2");
    ready();
    while (!is_over()) {
        OK("managed", take(&found, bytes, 1));
        if (host_writes) memset((void *)found, 1, bytes);
        if (is_prefetched) OK("prefetch", bring(found, bytes, 0, NULL));
        OK("fill", fill(found, 2, bytes));
        OK("wait", synchronize());
        OK("release", release(found));
    }
}

static void managed_of_host(void) { managed(1, 0); }
static void managed_new(void) { managed(0, 0); }
static void managed_prefetched(void) { managed(1, 1); }

/* Kernels of `blocks` blocks whose threads print four lines each. */
static void print(unsigned blocks, unsigned threads) {
    uint64_t rounds = 4;
    void *parameters[] = {&rounds};
    prepare();
    ready();
    /* The kernels' lines would stand among this program's own. */
    if (!freopen("/dev/null", "w", stdout)) exit(1);
    void *function = function_of(floods, "flood_prints");
    while (!is_over()) {
        OK("launch", launch_kernel(function, blocks, 1, 1, threads, 1, 1, 0, NULL, parameters, NULL));
        OK("wait", synchronize());
    }
}

static void prints(void) { print(64, 128); }
static void one_thread_prints(void) { print(1, 1); }

static void sleeper(void *unused) {
    (void)unused;
    sleep_ms(100);
}

static void callbacks(void) {
    prepare();
    void *stream = make_stream(0);
    int (*call)(void *, void (*)(void *), void *) = CALL(int (*)(void *, void (*)(void *), void *), "cuLaunchHostFunc");
    uint64_t ns = 1000000;
    void *parameters[] = {&ns}, *spin = function_of(kernels, "partita_spin");
    ready();
    while (!is_over()) {
        OK("launch", launch_kernel(spin, 64, 1, 1, 64, 1, 1, 0, stream, parameters, NULL));
        OK("callback", call(stream, sleeper, NULL));
        OK("wait", synchronize_stream(stream));
    }
}

static void out_of_memory(void) {
    static address held[4096];
    prepare();
    int (*take)(address *, size_t) = CALL(int (*)(address *, size_t), "cuMemAlloc_v2");
    int (*release)(address) = CALL(int (*)(address), "cuMemFree_v2");
    ready();
    while (!is_over()) {
        int count = 0;
        while (count < 4096 && !take(&held[count], (size_t)256 << 20)) count++;
        for (int i = 0; i < 100; i++)
            if (count < 4096 && !take(&held[count], (size_t)256 << 20)) count++;
        while (count) OK("release", release(held[--count]));
    }
}

/* A module with 1 GB of data, loaded and unloaded. */
static void big_module(void) {
    const char *text = ".version 6.4\n.target sm_70\n.address_size 64\n.global .align 16 .b8 flood_data[1000000000];\n"
                       ".visible .entry flood_module()\n{\n\t.reg .u64 %place;\n\tmov.u64 %place, flood_data;\n"
                       "\tst.volatile.global.u32 [%place], 1;\n\tret;\n}\n";
    void *module;
    start(1);
    fn_pp load = CALL(fn_pp, "cuModuleLoadData");
    fn_p unload = CALL(fn_p, "cuModuleUnload");
    ready();
    while (!is_over()) {
        OK("module", load(&module, (void *)text));
        OK("unload", unload(module));
    }
}

/* Work that a child has in flight when it ends. */
static void at_work(uint64_t ns) {
    void *parameters[] = {&ns};
    prepare();
    void *spin = function_of(kernels, "partita_spin");
    for (int i = 0; i < 20; i++) OK("launch", launch_kernel(spin, 64, 1, 1, 64, 1, 1, 0, NULL, parameters, NULL));
}

static void fault(const char *name) {
    prepare();
    launch_kernel(function_of(floods, name), 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    synchronize();
}

static void trap(void) { fault("flood_trap"); }
static void illegal_address(void) { fault("flood_illegal"); }
static void assertion(void) { fault("flood_assert"); }

static void killed(void) {
    at_work(2000000);
    raise(SIGKILL);
}

static void crashed(void) {
    at_work(2000000);
    raise(SIGSEGV);
}

static void endless(void) {
    prepare();
    address word = allocate(4);
    void *parameters[] = {&word};
    OK("launch", launch_kernel(function_of(floods, "flood_endless"), 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
    sleep_ms(200);
    raise(SIGKILL);
}

static void end_children(void) {
    for (int i = 0; i < child_count; i++) kill(children[i], SIGKILL);
    for (int i = 0; i < child_count; i++) waitpid(children[i], NULL, 0);
    child_count = 0;
}

static pid_t child(void (*work)(void)) {
    pid_t pid = fork();
    if (pid < 0) die("fork", errno);
    if (pid == 0) {
        /* Only the parent speaks and listens. */
        if (!freopen("/dev/null", "r", stdin) || !freopen("/dev/null", "w", stdout)) _exit(1);
        work();
        _exit(0);
    }
    return children[child_count++] = pid;
}

/* One child after another that ends badly, one every half second. */
static void again(void (*work)(void)) {
    ready();
    while (!is_over()) {
        pid_t pid = child(work);
        uint64_t end = now_ns() + 500000000;
        int status, is_gone = 0;
        while (now_ns() < end && !is_over()) {
            if (!is_gone) is_gone = waitpid(pid, &status, WNOHANG) == pid;
            sleep_ms(10);
        }
        if (is_gone) child_count--;
        end_children();
    }
}

static void traps(void) { again(trap); }
static void illegal_addresses(void) { again(illegal_address); }
static void assertions(void) { again(assertion); }
static void kills(void) { again(killed); }
static void crashes(void) { again(crashed); }
static void endless_kernels(void) { again(endless); }

static void one_client(void) {
    uint64_t ns = 1000000;
    void *parameters[] = {&ns};
    prepare();
    void *spin = function_of(kernels, "partita_spin");
    for (;;) {
        OK("launch", launch_kernel(spin, 8, 1, 1, 64, 1, 1, 0, NULL, parameters, NULL));
        OK("wait", synchronize());
    }
}

static void clients_48(void) {
    for (int i = 0; i < CHILDREN_MAX; i++) child(one_client);
    sleep_ms(3000);
    ready();
    wait_for_end();
    end_children();
}

/* A process at work that is stopped and continued, 100 ms each. */
static void stopped(void) {
    pid_t pid = child(one_client);
    sleep_ms(1000);
    ready();
    while (!is_over()) {
        kill(pid, SIGSTOP);
        sleep_ms(100);
        kill(pid, SIGCONT);
        sleep_ms(100);
    }
    end_children();
}

static const struct {
    const char *name;
    void (*work)(void);
} KINDS[] = {
    {"compute", compute}, {"memory", bandwidth}, {"l2-cache", second_level_cache}, {"tlb", translations},
    {"to-device", to_device}, {"from-device", from_device}, {"atomics", atomics}, {"constants", constants},
    {"streams-16", streams_16}, {"streams-128", streams_128}, {"streams-256", streams_256},
    {"streams-1000", streams_1000}, {"streams-high-128", streams_high_128}, {"streams-high-1000", streams_high_1000},
    {"graph-10000", graph_10000}, {"graph-wide", graph_wide}, {"launches", launches}, {"allocations", allocations},
    {"events", events}, {"streams", stream_storm}, {"contexts", contexts}, {"clients-48", clients_48},
    {"managed", managed_of_host}, {"managed-new", managed_new},
    {"managed-prefetched", managed_prefetched}, {"pinned", pinned}, {"printf", prints}, {"printf-one", one_thread_prints},
    {"callbacks", callbacks},
    {"out-of-memory", out_of_memory}, {"module-1gb", big_module}, {"stopped", stopped}, {"trap", traps},
    {"illegal-address", illegal_addresses}, {"assert", assertions}, {"kill", kills}, {"segfault", crashes},
    {"endless", endless_kernels},
};

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "kinds")) {
        for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) puts(KINDS[i].name);
        return 0;
    }
    if (argc < 4) return 2;
    signal(SIGPIPE, SIG_DFL);
    kernels_file = argv[1];
    floods_file = argv[2];
    if (!strcmp(argv[3], "victim") && argc == 7)
        return victim(strtoull(argv[4], NULL, 10), strtoul(argv[5], NULL, 10), strtoul(argv[6], NULL, 10));
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        if (!strcmp(KINDS[i].name, argv[3])) {
            KINDS[i].work();
            return 0;
        }
    fprintf(stderr, "no such kind: %s\n", argv[3]);
    return 2;
}
