/* Launches on a stream by commands, a line of stdin at a time, and answers each with a line:
 *   launch   a short kernel in the stream
 *   graph    a graph of two short kernels in the stream
 *   capture  captures two launches into a graph and launches that
 *   query    `idle` or `busy`, by cuStreamQuery
 *   sync     waits for the stream
 *   event    records an event, and asks for it until it is done
 *   slice    the process's time slice in microseconds, where the driver is simulated
 *   copy     copies 64 bytes to the host, and waits for that, on the legacy stream
 * Argument: the file with the kernels. */
#include "cuda.h"

typedef int (*fn_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

static void *spin, *stream, *executable, *event;
static address device;
static char host[64];

static void launch(void) {
    uint64_t duration = 1000;
    void *parameters[1] = {&duration};
    OK("cuLaunchKernel", CALL(fn_launch, "cuLaunchKernel")(spin, 8, 1, 1, 64, 1, 1, 0, stream, parameters, NULL));
}

static void capture(void) {
    void *graph;
    OK("cuStreamBeginCapture_v2", CALL(fn_pi, "cuStreamBeginCapture_v2")(stream, 0));
    launch();
    launch();
    OK("cuStreamEndCapture", CALL(fn_pp, "cuStreamEndCapture")(stream, &graph));
    OK("cuGraphInstantiateWithFlags",
       CALL(int (*)(void *, void *, uint64_t), "cuGraphInstantiateWithFlags")(&executable, graph, 0));
}

int main(int count, char **arguments) {
    if (count < 2) return 2;
    void *module;
    start(1);
    OK("cuModuleLoad", CALL(fn_pp, "cuModuleLoad")(&module, arguments[1]));
    OK("cuModuleGetFunction",
       CALL(int (*)(void *, void *, const char *), "cuModuleGetFunction")(&spin, module, "partita_spin"));
    OK("cuStreamCreate", CALL(int (*)(void *, unsigned), "cuStreamCreate")(&stream, 1));
    OK("cuEventCreate", CALL(int (*)(void *, unsigned), "cuEventCreate")(&event, 2));
    OK("cuMemAlloc_v2", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&device, sizeof host));
    puts("ready");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        const char *answer = "ok";
        line[strcspn(line, "\n")] = 0;
        if (!strcmp(line, "launch")) launch();
        else if (!strcmp(line, "graph")) {
            if (!executable) capture();
            OK("cuGraphLaunch", CALL(fn_pp, "cuGraphLaunch")(executable, stream));
        } else if (!strcmp(line, "query")) {
            int code = CALL(fn_p, "cuStreamQuery")(stream);
            if (code && code != 600) die("cuStreamQuery", code);
            answer = code ? "busy" : "idle";
        } else if (!strcmp(line, "sync")) OK("cuStreamSynchronize", CALL(fn_p, "cuStreamSynchronize")(stream));
        else if (!strcmp(line, "event")) {
            OK("cuEventRecord", CALL(fn_pp, "cuEventRecord")(event, stream));
            int code;
            while ((code = CALL(fn_p, "cuEventQuery")(event)) == 600);
            OK("cuEventQuery", code);
        } else if (!strcmp(line, "slice")) {
            static char text[32];
            snprintf(text, sizeof text, "%llu", (unsigned long long)CALL(uint64_t (*)(void), "partita_sim_slice_us")());
            answer = text;
        } else if (!strcmp(line, "copy"))
            OK("cuMemcpyDtoH_v2", CALL(int (*)(void *, address, size_t), "cuMemcpyDtoH_v2")(host, device, sizeof host));
        else return 3;
        puts(answer);
        puts("done");
        fflush(stdout);
    }
    return 0;
}
