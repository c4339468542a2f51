/* A graph of kernels in a row, each of which counts itself behind its end, or of branches of them between one kernel and another, captured one after the
 * other. Answers a line of stdin at a time with a line:
 *   make N [B] captures N kernels in each of B branches, one if not told otherwise, and makes an executable of them: `same` if the graph has the nodes
 *              and edges that it had before
 *   run        launches it
 *   progress [B]  how many kernels of the last launch have ended, in a branch counted from 0
 *   update N [B]  updates it by another graph, whose kernels count from 1001: the code, and what is said of the node at fault: `none`, `own` if it is
 *              one of that graph, or `foreign`; and `same` or `changed`
 *   change     makes every kernel of it as short as can be, and switches the first one off and on again
 *   memory     makes an executable of a graph that also allocates: `same` or `changed`, as above
 *   launch, query, sync   a short kernel in the stream; `idle` or `busy`; waits for the stream
 * Argument: the file with the kernels. */
#include "cuda.h"

enum { NODES_MAX = 512, BRANCHES_MAX = 4 };
typedef int (*fn_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
typedef int (*fn_nodes)(void *, void **, size_t *);
typedef int (*fn_edges)(void *, void **, void **, size_t *);

struct lists { size_t nodes, roots, edges; void *node[NODES_MAX], *root[NODES_MAX], *from[NODES_MAX], *to[NODES_MAX]; };

static void *spin, *stream, *side[BRANCHES_MAX], *event, *graph, *executable;
static volatile uint32_t *counted;
static address counter;

static void launch_in(void *in, uint64_t duration) {
    void *parameters[1] = {&duration};
    OK("cuLaunchKernel", CALL(fn_launch, "cuLaunchKernel")(spin, 8, 1, 1, 64, 1, 1, 0, in, parameters, NULL));
}

static void launch(uint64_t duration) { launch_in(stream, duration); }

static void follow(void *who, void *whom) {
    OK("cuEventRecord", CALL(fn_pp, "cuEventRecord")(event, whom));
    OK("cuStreamWaitEvent", CALL(int (*)(void *, void *, unsigned), "cuStreamWaitEvent")(who, event, 0));
}

/* Kernels of 500 µs. */
static void *capture(unsigned kernels, unsigned branches, unsigned base) {
    void *captured;
    OK("cuStreamBeginCapture_v2", CALL(fn_pi, "cuStreamBeginCapture_v2")(stream, 0));
    if (branches > 1) launch(1000);
    for (unsigned b = 1; b < branches; b++) follow(side[b], stream);
    for (unsigned b = 0; b < branches; b++) {
        void *in = b ? side[b] : stream;
        for (unsigned i = 1; i <= kernels; i++) {
            launch_in(in, 500000);
            OK("cuStreamWriteValue32_v2",
               CALL(int (*)(void *, address, uint32_t, unsigned), "cuStreamWriteValue32_v2")(in, counter + 4 * b, base + i, 0));
        }
    }
    for (unsigned b = 1; b < branches; b++) follow(stream, side[b]);
    if (branches > 1) launch(1000);
    OK("cuStreamEndCapture", CALL(fn_pp, "cuStreamEndCapture")(stream, &captured));
    return captured;
}

static void look(void *of, struct lists *lists) {
    memset(lists, 0, sizeof *lists);
    lists->nodes = lists->roots = lists->edges = NODES_MAX;
    OK("cuGraphGetNodes", CALL(fn_nodes, "cuGraphGetNodes")(of, lists->node, &lists->nodes));
    OK("cuGraphGetRootNodes", CALL(fn_nodes, "cuGraphGetRootNodes")(of, lists->root, &lists->roots));
    OK("cuGraphGetEdges", CALL(fn_edges, "cuGraphGetEdges")(of, lists->from, lists->to, &lists->edges));
}

static const char *compared(void *of, const struct lists *before) {
    static struct lists after;
    look(of, &after);
    return memcmp(before, &after, sizeof after) ? "changed" : "same";
}

static void *instantiate(void *of) {
    void *made;
    OK("cuGraphInstantiateWithFlags",
       CALL(int (*)(void *, void *, uint64_t), "cuGraphInstantiateWithFlags")(&made, of, 0));
    return made;
}

static const char *make(unsigned kernels, unsigned branches) {
    static struct lists before;
    graph = capture(kernels, branches, 0);
    look(graph, &before);
    executable = instantiate(graph);
    return compared(graph, &before);
}

static const char *memory(void) {
    static struct lists before;
    struct { unsigned kind, handles, location_type; int location; void *win32; size_t most; unsigned short usage; unsigned char rest[54];
             void *access; size_t count, bytes; address at; } wanted;
    void *node, *with = capture(40, 1, 0);
    memset(&wanted, 0, sizeof wanted);
    wanted.kind = 1;          /* CU_MEM_ALLOCATION_TYPE_PINNED */
    wanted.location_type = 1; /* CU_MEM_LOCATION_TYPE_DEVICE */
    wanted.bytes = 4096;
    OK("cuGraphAddMemAllocNode",
       CALL(int (*)(void *, void *, void *, size_t, void *), "cuGraphAddMemAllocNode")(&node, with, NULL, 0, &wanted));
    look(with, &before);
    instantiate(with);
    return compared(with, &before);
}

static void update(unsigned kernels, unsigned branches, char *answer, size_t room) {
    static struct lists before;
    struct { unsigned result; void *node, *from; } told = {0};
    void *other = capture(kernels, branches, 1000);
    look(other, &before);
    int code = CALL(int (*)(void *, void *, void *), "cuGraphExecUpdate_v2")(executable, other, &told);
    const char *whose = told.node ? "foreign" : "none";
    for (size_t i = 0; i < before.nodes; i++)
        if (before.node[i] == told.node) whose = "own";
    snprintf(answer, room, "%d %s %s", code, whose, compared(other, &before));
}

static void change(void) {
    static struct lists lists;
    struct { void *function; unsigned grid[3], block[3], shared; void **parameters, **extra; void *rest[2]; } wanted;
    uint64_t duration = 1000;
    void *parameters[1] = {&duration};
    look(graph, &lists);
    for (size_t i = 0; i < lists.nodes; i++) {
        int kind = -1;
        OK("cuGraphNodeGetType", CALL(fn_pp, "cuGraphNodeGetType")(lists.node[i], &kind));
        if (kind != 0) continue;
        OK("cuGraphKernelNodeGetParams_v2", CALL(fn_pp, "cuGraphKernelNodeGetParams_v2")(lists.node[i], &wanted));
        wanted.parameters = parameters;
        OK("cuGraphExecKernelNodeSetParams_v2",
           CALL(int (*)(void *, void *, void *), "cuGraphExecKernelNodeSetParams_v2")(executable, lists.node[i], &wanted));
    }
    for (unsigned on = 0; on < 2; on++)
        OK("cuGraphNodeSetEnabled",
           CALL(int (*)(void *, void *, unsigned), "cuGraphNodeSetEnabled")(executable, lists.root[0], on));
}

int main(int count, char **arguments) {
    if (count < 2) return 2;
    void *module, *host;
    start(1);
    OK("cuModuleLoad", CALL(fn_pp, "cuModuleLoad")(&module, arguments[1]));
    OK("cuModuleGetFunction",
       CALL(int (*)(void *, void *, const char *), "cuModuleGetFunction")(&spin, module, "partita_spin"));
    OK("cuStreamCreate", CALL(int (*)(void *, unsigned), "cuStreamCreate")(&stream, 1));
    for (unsigned b = 1; b < BRANCHES_MAX; b++)
        OK("cuStreamCreate", CALL(int (*)(void *, unsigned), "cuStreamCreate")(&side[b], 1));
    OK("cuEventCreate", CALL(int (*)(void *, unsigned), "cuEventCreate")(&event, 2));
    OK("cuMemHostAlloc", CALL(int (*)(void *, size_t, unsigned), "cuMemHostAlloc")(&host, 4096, 2));
    OK("cuMemHostGetDevicePointer_v2",
       CALL(int (*)(address *, void *, unsigned), "cuMemHostGetDevicePointer_v2")(&counter, host, 0));
    counted = host;
    puts("ready");
    fflush(stdout);
    char line[64], answer[64];
    while (fgets(line, sizeof line, stdin)) {
        unsigned number = 0, branch = 1;
        line[strcspn(line, "\n")] = 0;
        strcpy(answer, "ok");
        if (sscanf(line, "make %u %u", &number, &branch) >= 1 && branch <= BRANCHES_MAX) strcpy(answer, make(number, branch));
        else if (sscanf(line, "update %u %u", &number, &branch) >= 1 && branch <= BRANCHES_MAX)
            update(number, branch, answer, sizeof answer);
        else if (!strcmp(line, "memory")) strcpy(answer, memory());
        else if (!strcmp(line, "change")) change();
        else if (!strcmp(line, "launch")) launch(1000);
        else if (!strcmp(line, "run")) {
            for (unsigned b = 0; b < BRANCHES_MAX; b++) counted[b] = 0;
            OK("cuGraphLaunch", CALL(fn_pp, "cuGraphLaunch")(executable, stream));
        } else if (!strcmp(line, "progress")) snprintf(answer, sizeof answer, "%u", *counted);
        else if (sscanf(line, "progress %u", &branch) == 1 && branch < BRANCHES_MAX)
            snprintf(answer, sizeof answer, "%u", counted[branch]);
        else if (!strcmp(line, "query")) {
            int code = CALL(fn_p, "cuStreamQuery")(stream);
            if (code && code != 600) die("cuStreamQuery", code);
            strcpy(answer, code ? "busy" : "idle");
        } else if (!strcmp(line, "sync")) OK("cuStreamSynchronize", CALL(fn_p, "cuStreamSynchronize")(stream));
        else return 3;
        puts(answer);
        puts("done");
        fflush(stdout);
    }
    return 0;
}
