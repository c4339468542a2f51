/* Every route by which a program launches a kernel: where its blocks ran.
 * Arguments: the file with the kernels, blocks, and how large a cluster may be.
 * Prints a line a route: its name and the SMs that its blocks ran on. */
#include "census.h"

static void *census, *stream;
static address records;
static unsigned blocks;
static uint64_t duration = 30000;

static void *parameters[2] = {&records, &duration};

static void report(const char *route, int code) {
    if (code) { printf("%s error %d\n", route, code); fflush(stdout); return; }
    printf("%s", route);
    print_sms(records, blocks);
    fflush(stdout);
    clear_records(records, blocks);
}

static int ex(fn_ex launch, unsigned cluster, int cooperative, unsigned grid) {
    struct attribute attributes[2];
    memset(attributes, 0, sizeof attributes);
    struct config config = {{grid, 1, 1}, {1024, 1, 1}, 0, stream, attributes, 0};
    if (cluster > 1) {
        attributes[config.count].id = 4;
        attributes[config.count].value.dim[0] = cluster;
        attributes[config.count].value.dim[1] = attributes[config.count].value.dim[2] = 1;
        config.count++;
    }
    if (cooperative) {
        attributes[config.count].id = 2;
        attributes[config.count].value.value = 1;
        config.count++;
    }
    return launch(&config, census, parameters, NULL);
}

int main(int count, char **arguments) {
    if (count < 4) return 2;
    const char *kernels = kernels_in(arguments[1]);
    blocks = (unsigned)atoi(arguments[2]);
    unsigned cluster = (unsigned)atoi(arguments[3]);

    start(1);
    census = load_census(kernels);
    stream = new_stream(0);
    records = new_records(blocks);
    clear_records(records, blocks);

    fn_launch launch = CALL(fn_launch, "cuLaunchKernel");
    report("cuLaunchKernel", launch(census, blocks, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
    report("default-stream", launch(census, blocks, 1, 1, 1024, 1, 1, 0, NULL, parameters, NULL));
    launch = (fn_launch)by_version("cuLaunchKernel", 12000, 2);
    report("per-thread-stream", launch(census, blocks, 1, 1, 1024, 1, 1, 0, NULL, parameters, NULL));
    fn_ex launch_ex = (fn_ex)by_version("cuLaunchKernelEx", 12000, 1);
    report("cuLaunchKernelEx", ex(launch_ex, 1, 0, blocks));
    fn_cooperative cooperative = CALL(fn_cooperative, "cuLaunchCooperativeKernel");
    unsigned fits = (unsigned)atoi(arguments[2]) / 8;
    report("cooperative", cooperative(census, fits, 1, 1, 1024, 1, 1, 0, stream, parameters));
    report("cooperative-too-large", cooperative(census, blocks, 1, 1, 1024, 1, 1, 0, stream, parameters));
    report("cooperative-ex-too-large", ex(launch_ex, 1, 1, blocks));
    if (cluster) {
        OK("cuFuncSetAttribute", CALL(int (*)(void *, int, int), "cuFuncSetAttribute")(census, 14, 1));
        report("cluster", ex(launch_ex, cluster, 0, cluster * 2));
        report("cluster-too-large", ex(launch_ex, 16, 0, 32));
    }

    /* A graph built by hand, launched twice; then one captured from a stream. */
    void *graph = new_graph();
    add_node(graph, NULL, census, blocks, 1024, parameters);
    void *executable = instantiate(graph);
    int (*graph_launch)(void *, void *) = CALL(int (*)(void *, void *), "cuGraphLaunch");
    report("graph", graph_launch(executable, stream));
    report("graph-again", graph_launch(executable, stream));
    OK("cuStreamBeginCapture", CALL(int (*)(void *, int), "cuStreamBeginCapture_v2")(stream, 0));
    launch = CALL(fn_launch, "cuLaunchKernel");
    OK("captured launch", launch(census, blocks, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
    OK("cuStreamEndCapture", CALL(int (*)(void *, void **), "cuStreamEndCapture")(stream, &graph));
    executable = instantiate(graph);
    report("captured-graph", graph_launch(executable, stream));
    return 0;
}
