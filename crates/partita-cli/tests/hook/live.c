/* A program that launches while its limits change: by every kind of stream, in
 * two contexts, by graphs made once and launched often. Reads commands:
 *   round        where blocks run now, a line a route
 *   cluster N    the code of a launch of clusters of N blocks
 *   cooperative N  the code of a cooperative launch of N blocks of 1024 threads
 *   graph-cooperative N  the same in a graph that was instantiated when the program began for the N given then
 *   clusters N   active clusters of N blocks, and the largest possible cluster
 *   chain N      launches a graph of 64 kernels in a row N times: its SMs and the nanoseconds of the last launch
 * and ends each answer with `done`. Arguments: the file with the kernels,
 * blocks, and blocks of the cooperative graph. */
#include "census.h"

typedef int (*fn_occupancy)(int *, void *, const struct config *);

#define PARTS 3
#define LINKS 64

static void *census, *stream;
static address records[PARTS];
static unsigned blocks;
static uint64_t duration = 30000;

static void clear(void) {
    for (int part = 0; part < PARTS; part++) clear_records(records[part], blocks);
}

/* The SMs of the records of `parts` kernels; each kernel of a graph has records of its own. */
static void report(const char *route, int code, int parts) {
    if (code) { printf("%s error %d\n", route, code); return; }
    for (int part = 0; part < parts; part++) {
        printf("%s%.*s%.*d", route, parts > 1, "-", parts > 1, part);
        print_sms(records[part], blocks);
    }
    clear();
}

static void *kernel_node(void *graph, void *after, int part, unsigned grid) {
    void *parameters[2] = {&records[part], &duration};
    return add_node(graph, after, census, grid, 1024, parameters);
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
    const char *kernels = kernels_in(arguments[1]);
    blocks = (unsigned)atoi(arguments[2]);

    start(1);
    void *graph, *node;
    census = load_census(kernels);
    OK("cuFuncSetAttribute", CALL(int (*)(void *, int, int), "cuFuncSetAttribute")(census, 14, 1));
    stream = new_stream(1);
    for (int part = 0; part < PARTS; part++)
        records[part] = new_records(blocks);
    clear();

    fn_launch launch = CALL(fn_launch, "cuLaunchKernel");
    fn_launch launch_ptsz = (fn_launch)by_version("cuLaunchKernel", 12000, 2);
    fn_ex launch_ex = (fn_ex)by_version("cuLaunchKernelEx", 12000, 1);
    fn_cooperative cooperative = CALL(fn_cooperative, "cuLaunchCooperativeKernel");
    int (*graph_launch)(void *, void *) = CALL(int (*)(void *, void *), "cuGraphLaunch");

    /* Two kernels, the second in an embedded graph; a third one is disabled by the program. */
    graph = new_graph();
    void *child = new_graph();
    kernel_node(child, NULL, 1, blocks);
    void *first = kernel_node(graph, NULL, 0, blocks);
    OK("cuGraphAddChildGraphNode", CALL(int (*)(void **, void *, void **, size_t, void *), "cuGraphAddChildGraphNode")(&node, graph, &first, 1, child));
    void *disabled = kernel_node(graph, node, 2, blocks);
    void *made = instantiate(graph);
    OK("cuGraphNodeSetEnabled", CALL(int (*)(void *, void *, unsigned), "cuGraphNodeSetEnabled")(made, disabled, 0));
    OK("cuGraphDestroy", CALL(fn_p, "cuGraphDestroy")(graph));
    OK("cuGraphDestroy", CALL(fn_p, "cuGraphDestroy")(child));

    OK("cuStreamBeginCapture_v2", CALL(int (*)(void *, int), "cuStreamBeginCapture_v2")(stream, 0));
    void *parameters[2] = {&records[0], &duration};
    OK("captured launch", launch(census, blocks, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
    OK("cuStreamEndCapture", CALL(int (*)(void *, void **), "cuStreamEndCapture")(stream, &graph));
    void *captured = instantiate_and_drop(graph);

    graph = new_graph();
    node = kernel_node(graph, NULL, 0, (unsigned)atoi(arguments[3]));
    struct attribute attribute;
    memset(&attribute, 0, sizeof attribute);
    attribute.value.value = 1;
    OK("cuGraphKernelNodeSetAttribute", CALL(int (*)(void *, unsigned, void *), "cuGraphKernelNodeSetAttribute")(node, 2, &attribute.value));
    void *grid_sync = instantiate_and_drop(graph);

    /* Kernels of one block, one behind the other. */
    uint64_t short_duration = 1000;
    address links = new_records(LINKS), link[LINKS];
    graph = new_graph();
    node = NULL;
    for (int i = 0; i < LINKS; i++) {
        link[i] = links + i * sizeof(record);
        void *of_link[2] = {&link[i], &short_duration};
        node = add_node(graph, node, census, 1, 32, of_link);
    }
    void *chain = instantiate_and_drop(graph);

    void *other_context;
    OK("cuCtxCreate_v2", CALL(fn_pui, "cuCtxCreate_v2")(&other_context, 0, 0));
    void *other_census = load_census(kernels);
    void *other_stream = new_stream(1);
    address other_records = new_records(blocks);
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
            clear_records(other_records, blocks);
            void *theirs[2] = {&other_records, &duration};
            int code = launch(other_census, blocks, 1, 1, 1024, 1, 1, 0, other_stream, theirs, NULL);
            if (code) printf("context error %d\n", code);
            else { printf("context"); print_sms(other_records, blocks); }
            OK("cuCtxSetCurrent", CALL(fn_p, "cuCtxSetCurrent")(context));
        } else if (!strcmp(what, "cluster")) {
            ex_config(&config, &attribute, number, 2 * number);
            int code = launch_ex(&config, census, parameters, NULL);
            if (!code) wait_all();
            printf("cluster %d\n", code);
        } else if (!strcmp(what, "cooperative")) {
            int code = cooperative(census, number, 1, 1, 1024, 1, 1, 0, stream, parameters);
            if (!code) wait_all();
            printf("cooperative %d\n", code);
        } else if (!strcmp(what, "graph-cooperative")) {
            int code = graph_launch(grid_sync, stream);
            if (!code) wait_all();
            printf("graph-cooperative %d\n", code);
        } else if (!strcmp(what, "chain")) {
            int code = 0;
            for (unsigned i = 0; i < number && !code; i++) {
                clear_records(links, LINKS);
                code = graph_launch(chain, stream);
                wait_all();
            }
            record of[LINKS];
            OK("cuMemcpyDtoH_v2", CALL(int (*)(void *, address, size_t), "cuMemcpyDtoH_v2")(of, links, sizeof of));
            printf("chain %d ns %llu", code, (unsigned long long)(of[LINKS - 1][2] - of[0][1]));
            int on[SMS_MAX] = {0};
            for (int i = 0; i < LINKS; i++) on[of[i][0] % SMS_MAX] = 1;
            printf(" sms");
            for (int sm = 0; sm < SMS_MAX; sm++) if (on[sm]) printf(" %d", sm);
            printf("\n");
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
    OK("cuGraphExecDestroy", CALL(fn_p, "cuGraphExecDestroy")(chain));
    return 0;
}
