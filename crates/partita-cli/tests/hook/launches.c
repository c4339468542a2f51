/* Every route by which a program launches a kernel: where its blocks ran.
 * Arguments: the file with the kernels, blocks, and how large a cluster may be.
 * Prints a line a route: its name and the SMs that its blocks ran on. */
#include "cuda.h"

typedef int (*fn_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
typedef int (*fn_cooperative)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **);

struct attribute { unsigned id, pad; union { int value; unsigned dim[3]; char bytes[64]; } value; };
struct config { unsigned grid[3], block[3], shared; void *stream; struct attribute *attributes; unsigned count; };
typedef int (*fn_ex)(const struct config *, void *, void **, void **);
struct node { void *function; unsigned grid[3], block[3], shared; void **parameters; void **extra; void *kernel, *context; };

static void *census, *stream;
static address records;
static unsigned blocks;
static uint64_t duration = 30000;

static void *parameters[2] = {&records, &duration};

static void report(const char *route, int code) {
    if (code) { printf("%s error %d\n", route, code); fflush(stdout); return; }
    OK("cuCtxSynchronize", CALL(int (*)(void), "cuCtxSynchronize")());
    uint64_t *host = calloc(blocks, 32);
    OK("cuMemcpyDtoH_v2", CALL(int (*)(void *, address, size_t), "cuMemcpyDtoH_v2")(host, records, (size_t)blocks * 32));
    unsigned char seen[1024] = {0};
    unsigned ran = 0;
    for (unsigned b = 0; b < blocks; b++) {
        if (host[4 * b + 3] != b + 1) continue;
        ran++;
        seen[host[4 * b] & 1023] = 1;
    }
    printf("%s sms", route);
    for (int sm = 0; sm < 1024; sm++) if (seen[sm]) printf(" %d", sm);
    printf(" blocks %u\n", ran);
    fflush(stdout);
    free(host);
    OK("cuMemsetD8_v2", CALL(int (*)(address, unsigned char, size_t), "cuMemsetD8_v2")(records, 0, (size_t)blocks * 32));
    OK("cuCtxSynchronize", CALL(int (*)(void), "cuCtxSynchronize")());
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
    FILE *file = fopen(arguments[1], "r");
    if (!file) die(arguments[1], -1);
    static char ptx[1 << 16];
    ptx[fread(ptx, 1, sizeof ptx - 1, file)] = 0;
    fclose(file);
    blocks = (unsigned)atoi(arguments[2]);
    unsigned cluster = (unsigned)atoi(arguments[3]);

    start(1);
    void *module;
    OK("cuModuleLoadData", CALL(int (*)(void **, const void *), "cuModuleLoadData")(&module, ptx));
    OK("cuModuleGetFunction", CALL(int (*)(void **, void *, const char *), "cuModuleGetFunction")(&census, module, "partita_census"));
    OK("cuStreamCreate", CALL(int (*)(void **, unsigned), "cuStreamCreate")(&stream, 0));
    OK("cuMemAlloc_v2", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&records, (size_t)blocks * 32));
    OK("cuMemsetD8_v2", CALL(int (*)(address, unsigned char, size_t), "cuMemsetD8_v2")(records, 0, (size_t)blocks * 32));

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
    void *graph, *node, *executable;
    struct node kernel;
    memset(&kernel, 0, sizeof kernel);
    kernel.function = census;
    kernel.grid[0] = blocks; kernel.grid[1] = kernel.grid[2] = 1;
    kernel.block[0] = 1024; kernel.block[1] = kernel.block[2] = 1;
    kernel.parameters = parameters;
    OK("cuGraphCreate", CALL(int (*)(void **, unsigned), "cuGraphCreate")(&graph, 0));
    OK("cuGraphAddKernelNode", CALL(int (*)(void **, void *, void *, size_t, void *), "cuGraphAddKernelNode_v2")(&node, graph, NULL, 0, &kernel));
    OK("cuGraphInstantiate", CALL(int (*)(void **, void *, uint64_t), "cuGraphInstantiateWithFlags")(&executable, graph, 0));
    int (*graph_launch)(void *, void *) = CALL(int (*)(void *, void *), "cuGraphLaunch");
    report("graph", graph_launch(executable, stream));
    report("graph-again", graph_launch(executable, stream));
    OK("cuStreamBeginCapture", CALL(int (*)(void *, int), "cuStreamBeginCapture_v2")(stream, 0));
    launch = CALL(fn_launch, "cuLaunchKernel");
    OK("captured launch", launch(census, blocks, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
    OK("cuStreamEndCapture", CALL(int (*)(void *, void **), "cuStreamEndCapture")(stream, &graph));
    OK("cuGraphInstantiate", CALL(int (*)(void **, void *, uint64_t), "cuGraphInstantiateWithFlags")(&executable, graph, 0));
    report("captured-graph", graph_launch(executable, stream));
    return 0;
}
