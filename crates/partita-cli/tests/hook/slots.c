/* Keeps many kernels in flight, by commands, a line of stdin at a time, each answered by lines and `done`. Kernels are of one
 * block and record when they ran, so an answer says how many were made, how many left a record, and how many ran at once.
 *   streams N ROUNDS US   ROUNDS kernels of US microseconds in each of N streams
 *   graphs N WIDTH US     a graph of WIDTH such kernels beside each other, launched in each of N streams
 *   words N               kernels in N streams behind a wait for a word, which a kernel's stream behind all of them writes
 *   random SEED           streams that wait for each other's events, the legacy stream among them
 *   capture N             captures a launch in a stream while N others are busy; also says how many nodes the graph has
 *   fork N ROUNDS US      `streams` in a child of fork that has not used CUDA, and here at the same time
 * Argument: the file with the kernels. */
#include "census.h"

enum { STREAMS_MAX = 1024, KERNELS_MAX = 8192 };

static const char *kernels;
static void *census, *streams[STREAMS_MAX];
static address records, word;
static unsigned used;

static void begin(void) {
    start(1);
    census = load_census(kernels);
    records = new_records(KERNELS_MAX);
    OK("cuMemAlloc_v2", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&word, 64));
}

static void *stream(unsigned number) {
    if (!streams[number]) streams[number] = new_stream(1);
    return streams[number];
}

static void launch(void *stream, uint64_t us) {
    if (used == KERNELS_MAX) die("kernels", -1);
    address out = records + used++ * sizeof(record);
    uint64_t duration = us * 1000;
    void *parameters[2] = {&out, &duration};
    static fn_launch call;
    if (!call) call = CALL(fn_launch, "cuLaunchKernel");
    OK("cuLaunchKernel", call(census, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
}

struct change { uint64_t time; int by; };

static int before(const void *a, const void *b) {
    const struct change *x = a, *y = b;
    if (x->time != y->time) return x->time < y->time ? -1 : 1;
    return x->by - y->by;
}

/* How many were made, how many left a record, and how many ran at once. */
static void answer(unsigned expected) {
    static record host[KERNELS_MAX];
    static struct change changes[2 * KERNELS_MAX];
    wait_all();
    OK("cuMemcpyDtoH_v2", CALL(int (*)(void *, address, size_t), "cuMemcpyDtoH_v2")(host, records, sizeof host));
    unsigned count = 0;
    int present = 0, most = 0;
    for (unsigned at = 0; at < KERNELS_MAX; at++) {
        if (host[at][3] != 1) continue;
        changes[count++] = (struct change){host[at][1], 1};
        changes[count++] = (struct change){host[at][2], -1};
    }
    qsort(changes, count, sizeof *changes, before);
    for (unsigned at = 0; at < count; at++)
        if ((present += changes[at].by) > most) most = present;
    printf("%u %u %d\n", expected, count / 2, most);
}

static void in_streams(unsigned count, unsigned rounds, uint64_t us) {
    for (unsigned round = 0; round < rounds; round++)
        for (unsigned at = 0; at < count; at++) launch(stream(at), us);
    answer(used);
}

static void graphs(unsigned count, unsigned width, uint64_t us) {
    static void *executables[STREAMS_MAX];
    for (unsigned at = 0; at < count; at++) {
        void *graph = new_graph();
        for (unsigned branch = 0; branch < width; branch++) {
            address out = records + used++ * sizeof(record);
            uint64_t duration = us * 1000;
            void *parameters[2] = {&out, &duration};
            add_node(graph, NULL, census, 1, 32, parameters);
        }
        executables[at] = instantiate(graph);
    }
    for (unsigned at = 0; at < count; at++)
        OK("cuGraphLaunch", CALL(fn_pp, "cuGraphLaunch")(executables[at], stream(at)));
    answer(used);
}

static void words(unsigned count) {
    typedef int (*fn_word)(void *, address, unsigned, unsigned);
    OK("cuMemsetD8_v2", CALL(int (*)(address, unsigned char, size_t), "cuMemsetD8_v2")(word, 0, 64));
    wait_all();
    for (unsigned at = 0; at < count; at++) {
        OK("cuStreamWaitValue32_v2", CALL(fn_word, "cuStreamWaitValue32_v2")(stream(at), word, 1, 1));
        launch(stream(at), 100);
    }
    launch(stream(count), 100);
    OK("cuStreamWriteValue32_v2", CALL(fn_word, "cuStreamWriteValue32_v2")(stream(count), word, 1, 0));
    answer(used);
}

static void random_program(unsigned seed) {
    enum { STREAMS = 90, EVENTS = 40 };
    void *events[EVENTS];
    for (unsigned at = 0; at < EVENTS; at++)
        OK("cuEventCreate", CALL(int (*)(void *, unsigned), "cuEventCreate")(&events[at], 2));
    uint64_t state = seed * 2654435761u + 1;
    for (unsigned step = 0; step < 1500; step++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        unsigned pick = state >> 33, what = pick % 10;
        void *chosen = stream(pick / 10 % STREAMS), *event = events[pick / 1000 % EVENTS];
        if (what < 6) launch(chosen, 200);
        else if (what < 8) OK("cuEventRecord", CALL(fn_pp, "cuEventRecord")(event, chosen));
        else if (step % 100) OK("cuStreamWaitEvent", CALL(int (*)(void *, void *, unsigned), "cuStreamWaitEvent")(chosen, event, 0));
        else launch(NULL, 200);
    }
    answer(used);
}

static void capture(unsigned count) {
    void *graph, *captured = stream(count);
    size_t nodes = 0;
    for (unsigned at = 0; at < count; at++) launch(stream(at), 1000);
    unsigned made = used;
    OK("cuStreamBeginCapture_v2", CALL(fn_pi, "cuStreamBeginCapture_v2")(captured, 0));
    launch(captured, 100);
    for (unsigned at = 0; at < count; at++) launch(stream(at), 1000);
    launch(captured, 100);
    OK("cuStreamEndCapture", CALL(fn_pp, "cuStreamEndCapture")(captured, &graph));
    OK("cuGraphGetNodes", CALL(int (*)(void *, void *, size_t *), "cuGraphGetNodes")(graph, NULL, &nodes));
    printf("%zu\n", nodes);
    /* The two that were captured never ran. */
    answer(made + count);
}

int main(int count, char **arguments) {
    if (count < 2) return 2;
    kernels = kernels_in(arguments[1]);
    puts("ready");
    fflush(stdout);
    char line[128], what[32];
    while (fgets(line, sizeof line, stdin)) {
        unsigned a = 0, b = 0, c = 0;
        sscanf(line, "%31s %u %u %u", what, &a, &b, &c);
        pid_t child = strcmp(what, "fork") ? -1 : fork();
        if (!census) begin();
        used = 0;
        clear_records(records, KERNELS_MAX);
        if (!strcmp(what, "streams") || !strcmp(what, "fork")) in_streams(a, b, c);
        else if (!strcmp(what, "graphs")) graphs(a, b, c);
        else if (!strcmp(what, "words")) words(a);
        else if (!strcmp(what, "random")) random_program(a);
        else if (!strcmp(what, "capture")) capture(a);
        else die(what, -1);
        fflush(stdout);
        if (!child) return 0;
        if (child > 0) waitpid(child, NULL, 0);
        puts("done");
        fflush(stdout);
    }
    return 0;
}
