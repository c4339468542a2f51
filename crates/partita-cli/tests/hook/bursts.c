/* Bursts of work by commands, a line of stdin at a time:
 *   burst END COUNT NS   COUNT kernels of NS nanoseconds in one stream, and a wait for them: END is stream, context, event, copy,
 *                        ask-stream, ask-event, graph (launched as a graph, then stream) or thread (the stream of the thread);
 *                        and the nanoseconds of all that
 *   again END            another wait, and the nanoseconds since the last burst began
 *   spread COUNT NS      a kernel in each of COUNT of 40 streams, and a wait for one after the other
 *   both NS              a kernel in each of two streams, and a wait for one, then for the other
 *   leave NS             a kernel without a wait
 *   wait                 a wait for everything
 *   capture              a captured kernel that never runs
 *   refused              a launch that fails
 *   step COUNT           COUNT calls of partita_step, and the nanoseconds of one
 *   contexts             another context beside the first
 *   pid                  this process's number
 * Argument: the file with the kernels. */
#include <time.h>
#include "cuda.h"
#include "census.h"

static void *spin, *stream, *other, *event, *many[40];
static address word;
static fn_launch launch_kernel;
static const char *kernels;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void prepare(void) {
    void *module;
    start(1);
    OK("cuModuleLoadData", CALL(int (*)(void **, const void *), "cuModuleLoadData")(&module, kernels));
    OK("cuModuleGetFunction", CALL(int (*)(void *, void *, const char *), "cuModuleGetFunction")(&spin, module, "partita_spin"));
    stream = new_stream(1);
    other = new_stream(1);
    OK("cuEventCreate", CALL(int (*)(void **, unsigned), "cuEventCreate")(&event, 0));
    OK("cuMemAlloc_v2", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&word, 64));
    launch_kernel = CALL(fn_launch, "cuLaunchKernel");
}

static void launch(void *in, uint64_t ns) {
    void *parameters[1] = {&ns};
    OK("cuLaunchKernel", launch_kernel(spin, 1, 1, 1, 32, 1, 1, 0, in, parameters, NULL));
}

static void ask(const char *name, void *what) {
    int code;
    while ((code = CALL(fn_p, name)(what)) == 600) usleep(200);
    OK(name, code);
}

static void end(const char *how) {
    uint64_t value;
    if (!strcmp(how, "stream") || !strcmp(how, "graph")) OK(how, CALL(fn_p, "cuStreamSynchronize")(stream));
    else if (!strcmp(how, "thread")) OK(how, CALL(fn_p, "cuStreamSynchronize")((void *)2));
    else if (!strcmp(how, "context")) wait_all();
    else if (!strcmp(how, "ask-stream")) ask("cuStreamQuery", stream);
    else if (!strcmp(how, "copy"))
        OK(how, CALL(int (*)(void *, address, size_t), "cuMemcpyDtoH_v2")(&value, word, sizeof value));
    else {
        OK("cuEventRecord", CALL(fn_pp, "cuEventRecord")(event, stream));
        /* Again, as programs do that wait for several: the event may be done a moment before its stream. */
        for (int i = 0; i < 7; i++) {
            if (!strcmp(how, "event")) OK(how, CALL(fn_p, "cuEventSynchronize")(event));
            else ask("cuEventQuery", event);
            usleep(1000 << i);
        }
    }
}

static void *captured(int count, uint64_t ns) {
    void *graph, *executable;
    OK("cuStreamBeginCapture_v2", CALL(fn_pi, "cuStreamBeginCapture_v2")(stream, 0));
    for (int i = 0; i < count; i++) launch(stream, ns);
    OK("cuStreamEndCapture", CALL(fn_pp, "cuStreamEndCapture")(stream, &graph));
    OK("instantiate", CALL(int (*)(void *, void *, uint64_t), "cuGraphInstantiateWithFlags")(&executable, graph, 0));
    return executable;
}

static void burst(const char *how, int count, uint64_t ns) {
    /* A copy waits for the default stream alone. */
    void *in = !strcmp(how, "copy") ? NULL : !strcmp(how, "thread") ? (void *)2 : stream;
    if (!strcmp(how, "graph")) OK("cuGraphLaunch", CALL(fn_pp, "cuGraphLaunch")(captured(count, ns), stream));
    else
        for (int i = 0; i < count; i++) launch(in, ns);
    end(how);
}

static void spread(int count, uint64_t ns) {
    for (int i = 0; i < 40 && !many[39]; i++) many[i] = new_stream(1);
    for (int i = 0; i < count; i++) launch(many[i], ns);
    for (int i = 0; i < count; i++) OK("one of many", CALL(fn_p, "cuStreamSynchronize")(many[i]));
}

int main(int count, char **arguments) {
    if (count < 2) return 2;
    kernels = kernels_in(arguments[1]);
    prepare();
    void (*step)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "partita_step");
    puts("ready");
    fflush(stdout);
    char line[64], how[16];
    unsigned long long ns;
    uint64_t began = 0;
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "burst %15s %d %llu", how, &count, &ns) == 3) {
            began = now_ns();
            burst(how, count, ns);
            printf("%llu\n", (unsigned long long)(now_ns() - began));
        } else if (sscanf(line, "again %15s", how) == 1) {
            end(how);
            printf("%llu\n", (unsigned long long)(now_ns() - began));
        }
        else if (sscanf(line, "both %llu", &ns) == 1) {
            launch(stream, ns / 4);
            launch(other, ns);
            end("stream");
            OK("the other", CALL(fn_p, "cuStreamSynchronize")(other));
        } else if (sscanf(line, "spread %d %llu", &count, &ns) == 2) spread(count, ns);
        else if (sscanf(line, "leave %llu", &ns) == 1) launch(stream, ns);
        else if (!strcmp(line, "wait")) wait_all();
        else if (!strcmp(line, "capture")) captured(1, 1000);
        else if (!strcmp(line, "pid")) printf("%d\n", getpid());
        else if (!strcmp(line, "refused")) {
            void *parameters[1] = {&ns};
            if (!launch_kernel(spin, 1, 1, 1, 1 << 20, 1, 1, 0, stream, parameters, NULL)) die("no refusal", 0);
        } else if (sscanf(line, "step %d", &count) == 1) {
            if (!step) die("no partita_step", 0);
            uint64_t begin = now_ns();
            for (int i = 0; i < count; i++) step();
            printf("%llu\n", (unsigned long long)(now_ns() - begin) / count);
        } else if (!strcmp(line, "contexts")) {
            void *second;
            OK("cuCtxCreate_v2", CALL(fn_pui, "cuCtxCreate_v2")(&second, 0, 0));
            OK("cuCtxSetCurrent", CALL(fn_p, "cuCtxSetCurrent")(context));
        } else return 3;
        puts("done");
        fflush(stdout);
    }
    return 0;
}
