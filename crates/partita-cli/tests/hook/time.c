/* Keeps the GPU busy by commands, a line of stdin at a time, and answers with what the GPU's own clock says:
 *   share FORM KERNEL_NS SKIP_MS MS   launches without a pause for SKIP_MS + MS; the share of the time in which a kernel ran, in
 *                                     thousandths, once SKIP_MS are over, and the microseconds of all kernels
 *   both KERNEL_NS SKIP_MS MS         the same with a second process of the tenant, of the time in which either ran
 *   killed KERNEL_NS SKIP_MS MS       the same, and the second process is killed when SKIP_MS are over
 *   stopped KERNEL_NS SKIP_MS MS      the same, and it is stopped, not killed
 *   burst COUNT KERNEL_NS IDLE_MS MS  COUNT kernels and a wait for them, then nothing for IDLE_MS, again and again: microseconds of kernels
 *   short KERNEL_NS COUNT             COUNT processes of the tenant one after the other, each of which ends by SIGKILL behind one kernel
 *   leave COUNT KERNEL_NS             COUNT kernels, and ends without a wait for them
 *   destroy COUNT KERNEL_NS           COUNT kernels, and ends their context without a wait for them, then itself
 *   crossed COUNT                     so often a kernel that spends the budget in one stream, and behind it a wait for a kernel of another
 *                                     stream, which waits for the budget
 *   captures COUNT                    so often some launches, and a captured one behind them before their unit of time has ended
 *   capture COUNT                     nodes of a graph into which COUNT launches were captured
 *   copies COUNT                      COUNT copies of megabytes each way, and a wait for them
 *   rate FORM BLOCKS BLOCK_NS SKIP_MS MS   kernels of BLOCKS blocks, two of which fill an SM for BLOCK_NS, launched without a pause (FORM kernel) or
 *                                     as graphs of four (graph): how many end in 1000 s, once SKIP_MS are over
 * FORM: kernel, ex, cooperative, legacy (the default stream), thread (that of the thread), graph (of four kernels), beside (kernels, while
 *   another thread makes events).
 * Argument: the file with the kernels. */
#include "cuda.h"
#include <pthread.h>
#include <signal.h>
#include <time.h>

#define RECORDS 65536

typedef struct { uint64_t smid, start, stop, block; } record;
typedef struct { uint64_t start, stop; } interval;
typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned count;
} config;
typedef int (*fn_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
typedef int (*fn_cooperative)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **);

static const char *file;
static uint64_t kernels_ns;
static void *spin, *census, *stream, *events[2];
static address records;
static fn_launch launch_kernel, launch_thread;
static record found[RECORDS];
static interval busy[2 * RECORDS];

static uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void prepare(void) {
    void *module;
    start(1);
    OK("cuModuleLoad", CALL(fn_pp, "cuModuleLoad")(&module, (void *)file));
    int (*function)(void *, void *, const char *) = CALL(int (*)(void *, void *, const char *), "cuModuleGetFunction");
    OK("cuModuleGetFunction", function(&spin, module, "partita_spin"));
    OK("cuModuleGetFunction", function(&census, module, "partita_census"));
    OK("cuStreamCreate", CALL(int (*)(void *, unsigned), "cuStreamCreate")(&stream, 1));
    for (int i = 0; i < 2; i++)
        OK("cuEventCreate", CALL(int (*)(void *, unsigned), "cuEventCreate")(&events[i], 0));
    OK("cuMemAlloc_v2", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&records, sizeof found));
    launch_kernel = CALL(fn_launch, "cuLaunchKernel");
    launch_thread = CALL(fn_launch, "cuLaunchKernel_ptsz");
}

static void *capture(int count, unsigned blocks, unsigned threads, uint64_t kernel_ns) {
    void *graph;
    void *parameters[1] = {&kernel_ns};
    OK("cuStreamBeginCapture_v2", CALL(fn_pi, "cuStreamBeginCapture_v2")(stream, 0));
    for (int i = 0; i < count; i++)
        OK("captured", launch_kernel(spin, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, NULL));
    OK("cuStreamEndCapture", CALL(fn_pp, "cuStreamEndCapture")(stream, &graph));
    return graph;
}

static void *instantiate(void *graph) {
    void *executable;
    OK("cuGraphInstantiateWithFlags", CALL(int (*)(void *, void *, uint64_t), "cuGraphInstantiateWithFlags")(&executable, graph, 0));
    return executable;
}

/* A kernel that notes when it ran. */
static void launch(const char *form, int index, uint64_t kernel_ns) {
    address out = records + (address)index * sizeof(record);
    void *parameters[2] = {&out, &kernel_ns};
    int code;
    if (!strcmp(form, "ex")) {
        config wanted = {{1, 1, 1}, {32, 1, 1}, 0, stream, NULL, 0};
        code = CALL(int (*)(config *, void *, void **, void **), "cuLaunchKernelEx")(&wanted, census, parameters, NULL);
    } else if (!strcmp(form, "cooperative")) {
        code = CALL(fn_cooperative, "cuLaunchCooperativeKernel")(census, 1, 1, 1, 32, 1, 1, 0, stream, parameters);
    } else if (!strcmp(form, "thread")) {
        code = launch_thread(census, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL);
    } else {
        void *where = !strcmp(form, "legacy") ? NULL : stream;
        code = launch_kernel(census, 1, 1, 1, 32, 1, 1, 0, where, parameters, NULL);
    }
    OK(form, code);
}

static volatile int is_over;

/* While a launch waits for room in its channel, the driver makes no event, and delays other calls until the event is made. */
static void *make_events(void *context) {
    fn_p destroy = CALL(fn_p, "cuEventDestroy_v2");
    int (*create)(void *, unsigned) = CALL(int (*)(void *, unsigned), "cuEventCreate");
    OK("cuCtxSetCurrent", CALL(fn_p, "cuCtxSetCurrent")(context));
    while (!is_over) {
        void *event;
        OK("cuEventCreate", create(&event, 0));
        OK("cuEventDestroy_v2", destroy(event));
    }
    return NULL;
}

/* Launches without a pause, some 20 ms ahead of the GPU; how many intervals there are in `busy` then. */
static int saturate(const char *form, uint64_t kernel_ns, uint64_t ms) {
    int graphs = !strcmp(form, "graph"), thread = !strcmp(form, "thread"), legacy = !strcmp(form, "legacy");
    int beside = !strcmp(form, "beside");
    pthread_t other;
    if (beside) {
        void *context;
        OK("cuCtxGetCurrent", CALL(fn_p, "cuCtxGetCurrent")(&context));
        is_over = 0;
        if (pthread_create(&other, NULL, make_events, context)) die("pthread_create", 1);
    }
    uint64_t unit_ns = graphs ? 4 * kernel_ns : kernel_ns;
    int batch = unit_ns >= 20000000 ? 1 : 20000000 / unit_ns;
    void *executable = graphs ? instantiate(capture(4, 1, 32, kernel_ns)) : NULL;
    int (*record_event)(void *, void *) = by_name(thread ? "cuEventRecord_ptsz" : "cuEventRecord");
    fn_p wait = CALL(fn_p, "cuEventSynchronize");
    fn_pp launch_graph = CALL(fn_pp, "cuGraphLaunch");
    void *where = thread || legacy ? NULL : stream;
    int count = 0;
    uint64_t end = now_ms() + ms;
    for (int round = 0; now_ms() < end && count + batch <= RECORDS; round++) {
        if (round > 1) OK("cuEventSynchronize", wait(events[round % 2]));
        for (int i = 0; i < batch; i++, count++) {
            if (graphs) {
                OK("cuGraphLaunch", launch_graph(executable, stream));
                /* Notes when the graph had ended. */
                launch("kernel", count, 0);
            } else
                launch(form, count, kernel_ns);
        }
        OK("cuEventRecord", record_event(events[round % 2], where));
    }
    OK("cuCtxSynchronize", CALL(int (*)(void), "cuCtxSynchronize")());
    is_over = 1;
    if (beside && pthread_join(other, NULL)) die("pthread_join", 1);
    OK("cuMemcpyDtoH_v2", CALL(int (*)(void *, address, size_t), "cuMemcpyDtoH_v2")(found, records, count * sizeof(record)));
    for (int i = 0; i < count; i++)
        kernels_ns += unit_ns,
        busy[i] = graphs ? (interval){found[i].start - 4 * kernel_ns, found[i].start} : (interval){found[i].start, found[i].stop};
    return count;
}

/* Kernels that end in 1000 s, counted from the end of one batch to the end of another. */
static uint64_t rate(const char *form, unsigned blocks, uint64_t block_ns, uint64_t skip_ms, uint64_t ms) {
    int graphs = !strcmp(form, "graph"), each = graphs ? 4 : 1;
    void *executable = graphs ? instantiate(capture(each, blocks, 1024, block_ns)) : NULL;
    void *parameters[1] = {&block_ns};
    fn_pp launch_graph = CALL(fn_pp, "cuGraphLaunch"), record_event = CALL(fn_pp, "cuEventRecord");
    fn_p wait = CALL(fn_p, "cuEventSynchronize");
    /* What a whole GPU of 132 SMs does in some 5 ms. */
    uint64_t launch_ns = (blocks / 264 + 1) * block_ns * each;
    int batch = launch_ns >= 5000000 ? 1 : 5000000 / launch_ns;
    uint64_t begin = now_ms(), count = 0, from_ns = 0, from_count = 0, at_ns = 0;
    for (int round = 0; now_ms() < begin + skip_ms + ms; round++) {
        for (int i = 0; i < batch; i++) {
            if (graphs) OK("cuGraphLaunch", launch_graph(executable, stream));
            else OK("cuLaunchKernel", launch_kernel(spin, blocks, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
        }
        OK("cuEventRecord", record_event(events[round % 2], stream));
        if (round == 0) continue;
        OK("cuEventSynchronize", wait(events[(round + 1) % 2]));
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        at_ns = now.tv_sec * 1000000000ull + now.tv_nsec;
        count += batch * each;
        if (!from_ns && now_ms() >= begin + skip_ms) from_ns = at_ns, from_count = count;
    }
    OK("cuCtxSynchronize", CALL(int (*)(void), "cuCtxSynchronize")());
    return at_ns > from_ns ? (uint64_t)((count - from_count) * 1e12 / (at_ns - from_ns)) : 0;
}

/* Waits for the stream, and not for ever. */
static void must_end(const char *what, int round) {
    fn_p query = CALL(fn_p, "cuStreamQuery");
    uint64_t end = now_ms() + 60000;
    while (query(stream)) {
        if (now_ms() > end) die(what, round);
        usleep(1000);
    }
}

static void crossed(unsigned long rounds) {
    void *other;
    fn_p finish = CALL(fn_p, "cuStreamSynchronize");
    int (*wait)(void *, void *, unsigned) = CALL(int (*)(void *, void *, unsigned), "cuStreamWaitEvent");
    OK("cuStreamCreate", CALL(int (*)(void *, unsigned), "cuStreamCreate")(&other, 1));
    uint64_t short_ns = 1000, long_ns = 200000000;
    void *briefly[1] = {&short_ns}, *for_long[1] = {&long_ns};
    for (unsigned long round = 0; round < rounds; round++) {
        /* Many short kernels, so that the next unit is to take several launches, and has no end after the first. */
        for (int burst = 0; burst < 8; burst++, usleep(6000)) {
            for (int i = 0; i < 64; i++)
                OK("cuLaunchKernel", launch_kernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, briefly, NULL));
            OK("cuStreamSynchronize", finish(stream));
        }
        OK("cuLaunchKernel", launch_kernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, for_long, NULL));
        usleep(150000);
        OK("cuLaunchKernel", launch_kernel(spin, 1, 1, 1, 32, 1, 1, 0, other, briefly, NULL));
        OK("cuEventRecord", CALL(fn_pp, "cuEventRecord")(events[0], other));
        OK("cuStreamWaitEvent", wait(stream, events[0], 0));
        must_end("what waits for the budget", (int)round);
    }
}

/* Captures that begin where a unit of launches has begun and not ended. */
static void captures(unsigned long rounds) {
    fn_p destroy = CALL(fn_p, "cuGraphDestroy");
    uint64_t kernel_ns = 400000;
    void *parameters[1] = {&kernel_ns};
    for (unsigned long round = 0; round < rounds; round++) {
        /* Units are to take two launches, and for this their kernels are measured. */
        for (int i = 0; i < 8; i++)
            OK("cuLaunchKernel", launch_kernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
        must_end("a burst", (int)round);
        usleep(10000);
        for (unsigned long i = 0; i <= round % 2; i++)
            OK("cuLaunchKernel", launch_kernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
        OK("cuGraphDestroy", destroy(capture(1, 1, 32, kernel_ns)));
        must_end("what came before a capture", (int)round);
    }
}

static int earlier(const void *a, const void *b) {
    const interval *x = a, *y = b;
    return x->start < y->start ? -1 : x->start > y->start;
}

/* Thousandths of the time in which any interval lay: from the first that begins `skip_ns` after all others to where the last one begins. */
static int permille(int count, uint64_t skip_ns) {
    qsort(busy, count, sizeof *busy, earlier);
    int first = 0;
    while (first < count && busy[first].start < busy[0].start + skip_ns) first++;
    if (count - first < 2) return -1;
    uint64_t from = busy[first].start, to = busy[count - 1].start, at = from, sum = 0;
    for (int i = first; i < count; i++) {
        uint64_t start = busy[i].start > at ? busy[i].start : at, stop = busy[i].stop < to ? busy[i].stop : to;
        if (stop <= start) continue;
        sum += stop - start;
        at = stop;
    }
    return to > from ? (int)(sum * 1000 / (to - from)) : -1;
}

/* With a second process, which executes the program again because a forked one cannot use CUDA. */
static int with_another(const char *self, uint64_t kernel_ns, uint64_t skip_ms, uint64_t ms, int signal) {
    int pipes[2];
    char nanoseconds[32], milliseconds[32];
    snprintf(nanoseconds, sizeof nanoseconds, "%lu", (unsigned long)kernel_ns);
    snprintf(milliseconds, sizeof milliseconds, "%lu", (unsigned long)(skip_ms + ms));
    if (pipe(pipes)) die("pipe", 0);
    pid_t child = fork();
    if (!child) {
        dup2(pipes[1], 1);
        close(pipes[0]);
        execl(self, self, file, nanoseconds, milliseconds, NULL);
        _exit(127);
    }
    close(pipes[1]);
    char go;
    if (read(pipes[0], &go, 1) != 1) die("the other process", 0);
    int count;
    if (signal) {
        /* While both run, and the other one may be the one that has just looked at the budget. */
        count = saturate("kernel", kernel_ns, skip_ms);
        kill(child, signal);
        if (signal == SIGKILL) waitpid(child, NULL, 0);
        count = saturate("kernel", kernel_ns, ms);
        if (signal != SIGKILL) {
            kill(child, SIGKILL);
            waitpid(child, NULL, 0);
        }
        close(pipes[0]);
        return permille(count, 400000000);
    }
    count = saturate("kernel", kernel_ns, skip_ms + ms);
    for (ssize_t got; (got = read(pipes[0], (char *)&busy[count], sizeof *busy)) > 0; count++)
        while (got < (ssize_t)sizeof *busy) {
            ssize_t more = read(pipes[0], (char *)&busy[count] + got, sizeof *busy - got);
            if (more <= 0) die("the other process", 1);
            got += more;
        }
    waitpid(child, NULL, 0);
    close(pipes[0]);
    return permille(count, skip_ms * 1000000);
}

int main(int count, char **arguments) {
    char line[128], form[32];
    unsigned long first, second, third, fourth;
    if (count < 2) return 2;
    file = arguments[1];
    prepare();
    if (count == 3) {
        /* Before anybody can have seen the kernel's end. */
        launch("kernel", 0, strtoul(arguments[2], NULL, 10));
        OK("cuStreamSynchronize", CALL(fn_p, "cuStreamSynchronize")(stream));
        kill(getpid(), SIGKILL);
    }
    if (count == 5) {
        /* It exits while its kernel runs, or before anybody has looked at it. */
        launch("kernel", 0, strtoul(arguments[2], NULL, 10));
        return 0;
    }
    if (count == 4) {
        if (write(1, "g", 1) != 1) return 4;
        int intervals = saturate("kernel", strtoul(arguments[2], NULL, 10), strtoul(arguments[3], NULL, 10));
        return fwrite(busy, sizeof *busy, intervals, stdout) != (size_t)intervals;
    }
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        int exits = 0;
        kernels_ns = 0;
        if (sscanf(line, "share %31s %lu %lu %lu", form, &first, &second, &third) == 4) {
            int achieved = permille(saturate(form, first, second + third), second * 1000000);
            printf("%d %lu\n", achieved, (unsigned long)(kernels_ns / 1000));
        } else if (sscanf(line, "both %lu %lu %lu", &first, &second, &third) == 3)
            printf("%d\n", with_another(arguments[0], first, second, third, 0));
        else if (sscanf(line, "killed %lu %lu %lu", &first, &second, &third) == 3)
            printf("%d\n", with_another(arguments[0], first, second, third, SIGKILL));
        else if (sscanf(line, "stopped %lu %lu %lu", &first, &second, &third) == 3)
            printf("%d\n", with_another(arguments[0], first, second, third, SIGSTOP));
        else if (sscanf(line, "burst %lu %lu %lu %lu", &first, &second, &third, &fourth) == 4) {
            unsigned long launches = 0;
            for (uint64_t end = now_ms() + fourth; now_ms() < end; usleep(third * 1000)) {
                for (unsigned long i = 0; i < first; i++, launches++) launch("kernel", 0, second);
                OK("cuStreamSynchronize", CALL(fn_p, "cuStreamSynchronize")(stream));
            }
            printf("%lu\n", launches * second / 1000);
        } else if (sscanf(line, "short %lu %lu", &first, &second) == 2 || (exits = sscanf(line, "exits %lu %lu", &first, &second) == 2)) {
            for (unsigned long i = 0; i < second; i++) {
                char nanoseconds[32];
                snprintf(nanoseconds, sizeof nanoseconds, "%lu", first);
                pid_t child = fork();
                if (!child) {
                    execl(arguments[0], arguments[0], file, nanoseconds, exits ? "and" : NULL, "exit", NULL);
                    _exit(127);
                }
                int status;
                if (waitpid(child, &status, 0) != child || (exits ? status != 0 : !WIFSIGNALED(status))) die("a short process", status);
            }
            puts("0");
        } else if (sscanf(line, "leave %lu %lu", &first, &second) == 2) {
            for (unsigned long i = 0; i < first; i++) launch("kernel", i, second);
            return 0;
        } else if (sscanf(line, "destroy %lu %lu", &first, &second) == 2) {
            for (unsigned long i = 0; i < first; i++) launch("kernel", i, second);
            OK("cuDevicePrimaryCtxReset_v2", CALL(int (*)(int), "cuDevicePrimaryCtxReset_v2")(0));
            return 0;
        } else if (sscanf(line, "rate %31s %lu %lu %lu %lu", form, &first, &second, &third, &fourth) == 5) {
            printf("%lu\n", (unsigned long)rate(form, first, second, third, fourth));
        } else if (sscanf(line, "copies %lu", &first) == 1) {
            for (unsigned long i = 0; i < first; i++) {
                OK("cuMemcpyHtoDAsync_v2",
                   CALL(int (*)(address, const void *, size_t, void *), "cuMemcpyHtoDAsync_v2")(records, found, sizeof found, stream));
                OK("cuMemcpyDtoHAsync_v2",
                   CALL(int (*)(void *, address, size_t, void *), "cuMemcpyDtoHAsync_v2")(found, records, sizeof found, stream));
            }
            OK("cuStreamSynchronize", CALL(fn_p, "cuStreamSynchronize")(stream));
            puts("0");
        } else if (sscanf(line, "crossed %lu", &first) == 1) {
            crossed(first);
            puts("0");
        } else if (sscanf(line, "captures %lu", &first) == 1) {
            captures(first);
            puts("0");
        } else if (sscanf(line, "capture %lu", &first) == 1) {
            size_t nodes = 0;
            OK("cuGraphGetNodes", CALL(int (*)(void *, void *, size_t *), "cuGraphGetNodes")(capture(first, 1, 32, 1000), NULL, &nodes));
            printf("%zu\n", nodes);
        } else
            return 3;
        puts("done");
        fflush(stdout);
    }
    return 0;
}
