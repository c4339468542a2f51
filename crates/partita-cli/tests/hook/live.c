/* A program that launches while its limits change: by every kind of stream, in
 * two contexts, by graphs made once and launched often. Reads commands:
 *   round        where blocks run now, a line a route
 *   cluster N    the code of a launch of clusters of N blocks
 *   cooperative N  the code of a cooperative launch of N blocks of 1024 threads
 *   graph-cooperative N  the same in a graph that was instantiated when the program began for the N given then
 *   clusters N   active clusters of N blocks, and the largest possible cluster
 * and ends each answer with `done`. Arguments: the file with the kernels,
 * blocks, and blocks of the cooperative graph. */
#include "cuda.h"

typedef int (*fn_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
typedef int (*fn_cooperative)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **);
struct attribute { unsigned id, pad; union { int value; unsigned dim[3]; char bytes[64]; } value; };
struct config { unsigned grid[3], block[3], shared; void *stream; struct attribute *attributes; unsigned count; };
typedef int (*fn_ex)(const struct config *, void *, void **, void **);
typedef int (*fn_occupancy)(int *, void *, const struct config *);
struct node { void *function; unsigned grid[3], block[3], shared; void **parameters; void **extra; void *kernel, *context; };

#define PARTS 3

static void *census, *stream;
static address records[PARTS];
static unsigned blocks;
static uint64_t duration = 30000;

static void clear(void) {
    for (int part = 0; part < PARTS; part++)
        OK("cuMemsetD8_v2", CALL(int (*)(address, unsigned char, size_t), "cuMemsetD8_v2")(records[part], 0, (size_t)blocks * 32));
    OK("cuCtxSynchronize", CALL(int (*)(void), "cuCtxSynchronize")());
}

/* The SMs of the records of `parts` kernels; each kernel of a graph has records of its own. */
static void report(const char *route, int code, int parts) {
    if (code) { printf("%s error %d\n", route, code); return; }
    OK("cuCtxSynchronize", CALL(int (*)(void), "cuCtxSynchronize")());
    uint64_t *host = calloc(blocks, 32);
    for (int part = 0; part < parts; part++) {
        OK("cuMemcpyDtoH_v2", CALL(int (*)(void *, address, size_t), "cuMemcpyDtoH_v2")(host, records[part], (size_t)blocks * 32));
        unsigned char seen[1024] = {0};
        unsigned ran = 0;
        for (unsigned b = 0; b < blocks; b++) {
            if (host[4 * b + 3] != b + 1) continue;
            ran++;
            seen[host[4 * b] & 1023] = 1;
        }
        printf("%s%.*s%.*d sms", route, parts > 1, "-", parts > 1, part);
        for (int sm = 0; sm < 1024; sm++) if (seen[sm]) printf(" %d", sm);
        printf(" blocks %u\n", ran);
    }
    free(host);
    clear();
}

static void *kernel_node(void *graph, void *after, int part, unsigned grid) {
    void *parameters[2] = {&records[part], &duration}, *node;
    struct node kernel;
    memset(&kernel, 0, sizeof kernel);
    kernel.function = census;
    kernel.grid[0] = grid; kernel.grid[1] = kernel.grid[2] = 1;
    kernel.block[0] = 1024; kernel.block[1] = kernel.block[2] = 1;
    kernel.parameters = parameters;
    OK("cuGraphAddKernelNode_v2", CALL(int (*)(void **, void *, void *, size_t, void *), "cuGraphAddKernelNode_v2")(&node, graph, after ? &after : NULL, after != NULL, &kernel));
    return node;
}

static void *instantiate(void *graph) {
    void *executable;
    OK("cuGraphInstantiateWithFlags", CALL(int (*)(void **, void *, uint64_t), "cuGraphInstantiateWithFlags")(&executable, graph, 0));
    /* As frameworks do. */
    OK("cuGraphDestroy", CALL(fn_p, "cuGraphDestroy")(graph));
    return executable;
}

static void ex_config(struct config *config, struct attribute *attribute, unsigned cluster, unsigned grid) {
    memset(attribute, 0, sizeof *attribute);
    memset(config, 0, sizeof *config);
    *config = (struct config){{grid, 1, 1}, {1024, 1, 1}, 0, stream, attribute, 1};
    attribute->id = 4;
    attribute->value.dim[0] = cluster;
    attribute->value.dim[1] = attribute->value.dim[2] = 1;
}

int main(int count, char **arguments) {
    if (count < 4) return 2;
    FILE *file = fopen(arguments[1], "r");
    if (!file) die(arguments[1], -1);
    static char ptx[1 << 16];
    ptx[fread(ptx, 1, sizeof ptx - 1, file)] = 0;
    fclose(file);
    blocks = (unsigned)atoi(arguments[2]);

    start(1);
    void *module, *graph, *child, *node;
    OK("cuModuleLoadData", CALL(int (*)(void **, const void *), "cuModuleLoadData")(&module, ptx));
    OK("cuModuleGetFunction", CALL(int (*)(void **, void *, const char *), "cuModuleGetFunction")(&census, module, "partita_census"));
    OK("cuFuncSetAttribute", CALL(int (*)(void *, int, int), "cuFuncSetAttribute")(census, 14, 1));
    OK("cuStreamCreate", CALL(int (*)(void **, unsigned), "cuStreamCreate")(&stream, 1));
    for (int part = 0; part < PARTS; part++)
        OK("cuMemAlloc_v2", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&records[part], (size_t)blocks * 32));
    clear();

    fn_launch launch = CALL(fn_launch, "cuLaunchKernel");
    fn_launch launch_ptsz = (fn_launch)by_version("cuLaunchKernel", 12000, 2);
    fn_ex launch_ex = (fn_ex)by_version("cuLaunchKernelEx", 12000, 1);
    fn_cooperative cooperative = CALL(fn_cooperative, "cuLaunchCooperativeKernel");
    int (*graph_launch)(void *, void *) = CALL(int (*)(void *, void *), "cuGraphLaunch");
    int (*create)(void **, unsigned) = CALL(int (*)(void **, unsigned), "cuGraphCreate");

    /* Two kernels, the second in an embedded graph; a third one is disabled by the program. */
    OK("cuGraphCreate", create(&graph, 0));
    OK("cuGraphCreate", create(&child, 0));
    kernel_node(child, NULL, 1, blocks);
    void *first = kernel_node(graph, NULL, 0, blocks);
    OK("cuGraphAddChildGraphNode", CALL(int (*)(void **, void *, void **, size_t, void *), "cuGraphAddChildGraphNode")(&node, graph, &first, 1, child));
    void *disabled = kernel_node(graph, node, 2, blocks);
    void *made;
    OK("cuGraphInstantiateWithFlags", CALL(int (*)(void **, void *, uint64_t), "cuGraphInstantiateWithFlags")(&made, graph, 0));
    OK("cuGraphNodeSetEnabled", CALL(int (*)(void *, void *, unsigned), "cuGraphNodeSetEnabled")(made, disabled, 0));
    OK("cuGraphDestroy", CALL(fn_p, "cuGraphDestroy")(graph));
    OK("cuGraphDestroy", CALL(fn_p, "cuGraphDestroy")(child));

    OK("cuStreamBeginCapture_v2", CALL(int (*)(void *, int), "cuStreamBeginCapture_v2")(stream, 0));
    void *parameters[2] = {&records[0], &duration};
    OK("captured launch", launch(census, blocks, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
    OK("cuStreamEndCapture", CALL(int (*)(void *, void **), "cuStreamEndCapture")(stream, &graph));
    void *captured = instantiate(graph);

    OK("cuGraphCreate", create(&graph, 0));
    node = kernel_node(graph, NULL, 0, (unsigned)atoi(arguments[3]));
    struct attribute attribute;
    memset(&attribute, 0, sizeof attribute);
    attribute.value.value = 1;
    OK("cuGraphKernelNodeSetAttribute", CALL(int (*)(void *, unsigned, void *), "cuGraphKernelNodeSetAttribute")(node, 2, &attribute.value));
    void *grid_sync = instantiate(graph);

    void *other_context, *other_stream, *other_module, *other_census;
    OK("cuCtxCreate_v2", CALL(fn_pui, "cuCtxCreate_v2")(&other_context, 0, 0));
    OK("cuModuleLoadData", CALL(int (*)(void **, const void *), "cuModuleLoadData")(&other_module, ptx));
    OK("cuModuleGetFunction", CALL(int (*)(void **, void *, const char *), "cuModuleGetFunction")(&other_census, other_module, "partita_census"));
    OK("cuStreamCreate", CALL(int (*)(void **, unsigned), "cuStreamCreate")(&other_stream, 1));
    address other_records;
    OK("cuMemAlloc_v2", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&other_records, (size_t)blocks * 32));
    OK("cuCtxSetCurrent", CALL(fn_p, "cuCtxSetCurrent")(context));

    char line[64];
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        char what[32];
        unsigned number = 0;
        if (sscanf(line, "%31s %u", what, &number) < 1) continue;
        struct config config;
        if (!strcmp(what, "round")) {
            report("stream", launch(census, blocks, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL), 1);
            report("default", launch(census, blocks, 1, 1, 1024, 1, 1, 0, NULL, parameters, NULL), 1);
            report("per-thread", launch_ptsz(census, blocks, 1, 1, 1024, 1, 1, 0, NULL, parameters, NULL), 1);
            ex_config(&config, &attribute, 1, blocks);
            report("ex", launch_ex(&config, census, parameters, NULL), 1);
            report("graph", graph_launch(made, stream), 2);
            report("captured", graph_launch(captured, stream), 1);
            OK("cuCtxSetCurrent", CALL(fn_p, "cuCtxSetCurrent")(other_context));
            address own = records[0];
            records[0] = other_records;
            OK("cuMemsetD8_v2", CALL(int (*)(address, unsigned char, size_t), "cuMemsetD8_v2")(records[0], 0, (size_t)blocks * 32));
            void *theirs[2] = {&records[0], &duration};
            int code = launch(other_census, blocks, 1, 1, 1024, 1, 1, 0, other_stream, theirs, NULL);
            OK("cuCtxSynchronize", CALL(int (*)(void), "cuCtxSynchronize")());
            uint64_t *host = calloc(blocks, 32);
            OK("cuMemcpyDtoH_v2", CALL(int (*)(void *, address, size_t), "cuMemcpyDtoH_v2")(host, other_records, (size_t)blocks * 32));
            unsigned char seen[1024] = {0};
            unsigned ran = 0;
            for (unsigned b = 0; b < blocks; b++) if (host[4 * b + 3] == b + 1) { ran++; seen[host[4 * b] & 1023] = 1; }
            printf("context sms");
            for (int sm = 0; sm < 1024; sm++) if (seen[sm]) printf(" %d", sm);
            printf(" blocks %u\n", code ? 0 : ran);
            free(host);
            records[0] = own;
            OK("cuCtxSetCurrent", CALL(fn_p, "cuCtxSetCurrent")(context));
        } else if (!strcmp(what, "cluster")) {
            ex_config(&config, &attribute, number, 2 * number);
            int code = launch_ex(&config, census, parameters, NULL);
            if (!code) OK("cuCtxSynchronize", CALL(int (*)(void), "cuCtxSynchronize")());
            printf("cluster %d\n", code);
        } else if (!strcmp(what, "cooperative")) {
            int code = cooperative(census, number, 1, 1, 1024, 1, 1, 0, stream, parameters);
            if (!code) OK("cuCtxSynchronize", CALL(int (*)(void), "cuCtxSynchronize")());
            printf("cooperative %d\n", code);
        } else if (!strcmp(what, "graph-cooperative")) {
            int code = graph_launch(grid_sync, stream);
            if (!code) OK("cuCtxSynchronize", CALL(int (*)(void), "cuCtxSynchronize")());
            printf("graph-cooperative %d\n", code);
        } else if (!strcmp(what, "clusters")) {
            int active = -1, largest = -1;
            ex_config(&config, &attribute, number, 2 * number);
            int code = CALL(fn_occupancy, "cuOccupancyMaxActiveClusters")(&active, census, &config);
            config.count = 0;
            int code2 = CALL(fn_occupancy, "cuOccupancyMaxPotentialClusterSize")(&largest, census, &config);
            printf("clusters %d %d largest %d %d\n", code, active, code2, largest);
        }
        clear();
        printf("done\n");
        fflush(stdout);
    }
    OK("cuGraphExecDestroy", CALL(fn_p, "cuGraphExecDestroy")(made));
    OK("cuGraphExecDestroy", CALL(fn_p, "cuGraphExecDestroy")(captured));
    return 0;
}
