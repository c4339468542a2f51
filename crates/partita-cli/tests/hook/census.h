/* Launches of the kernel that records where its blocks ran: what the programs that look at launches share. */
#ifndef TEST_CENSUS_H
#define TEST_CENSUS_H
#include "cuda.h"

typedef int (*fn_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
typedef int (*fn_cooperative)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **);
struct attribute { unsigned id, pad; union { int value; unsigned dim[3]; char bytes[64]; } value; };
struct config { unsigned grid[3], block[3], shared; void *stream; struct attribute *attributes; unsigned count; };
typedef int (*fn_ex)(const struct config *, void *, void **, void **);
struct node { void *function; unsigned grid[3], block[3], shared; void **parameters; void **extra; void *kernel, *context; };

/* Of each block: its SM, its begin and end, and its number and one. */
typedef uint64_t record[4];
enum { SMS_MAX = 1024 };

/* The text of the file with the kernels. */
static const char *kernels_in(const char *path) {
    static char text[1 << 16];
    FILE *file = fopen(path, "r");
    if (!file) die(path, -1);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

static void wait_all(void) {
    OK("cuCtxSynchronize", CALL(int (*)(void), "cuCtxSynchronize")());
}

/* The kernel, loaded into the current context. */
static void *load_census(const char *kernels) {
    void *module, *function;
    OK("cuModuleLoadData", CALL(int (*)(void **, const void *), "cuModuleLoadData")(&module, kernels));
    OK("cuModuleGetFunction", CALL(int (*)(void **, void *, const char *), "cuModuleGetFunction")(&function, module, "partita_census"));
    return function;
}

static void *new_stream(unsigned flags) {
    void *stream;
    OK("cuStreamCreate", CALL(int (*)(void **, unsigned), "cuStreamCreate")(&stream, flags));
    return stream;
}

static address new_records(unsigned blocks) {
    address records;
    OK("cuMemAlloc_v2", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&records, blocks * sizeof(record)));
    return records;
}

static void clear_records(address records, unsigned blocks) {
    OK("cuMemsetD8_v2", CALL(int (*)(address, unsigned char, size_t), "cuMemsetD8_v2")(records, 0, blocks * sizeof(record)));
    wait_all();
}

/* Prints the SMs of the blocks that left a record, and how many blocks did. */
static void print_sms(address records, unsigned blocks) {
    wait_all();
    record *host = calloc(blocks, sizeof *host);
    OK("cuMemcpyDtoH_v2", CALL(int (*)(void *, address, size_t), "cuMemcpyDtoH_v2")(host, records, blocks * sizeof *host));
    unsigned char seen[SMS_MAX] = {0};
    unsigned ran = 0;
    for (unsigned block = 0; block < blocks; block++) {
        if (host[block][3] != block + 1) continue;
        ran++;
        seen[host[block][0] % SMS_MAX] = 1;
    }
    free(host);
    printf(" sms");
    for (int sm = 0; sm < SMS_MAX; sm++) if (seen[sm]) printf(" %d", sm);
    printf(" blocks %u\n", ran);
}

/* A node of a graph that runs the kernel, behind another one or none. */
static void *add_node(void *graph, void *after, void *function, unsigned blocks, unsigned threads, void **parameters) {
    void *node;
    struct node kernel;
    memset(&kernel, 0, sizeof kernel);
    kernel.function = function;
    kernel.grid[0] = blocks; kernel.grid[1] = kernel.grid[2] = 1;
    kernel.block[0] = threads; kernel.block[1] = kernel.block[2] = 1;
    kernel.parameters = parameters;
    OK("cuGraphAddKernelNode_v2", CALL(int (*)(void **, void *, void *, size_t, void *), "cuGraphAddKernelNode_v2")(&node, graph, after ? &after : NULL, after != NULL, &kernel));
    return node;
}

static void *new_graph(void) {
    void *graph;
    OK("cuGraphCreate", CALL(int (*)(void **, unsigned), "cuGraphCreate")(&graph, 0));
    return graph;
}

static void *instantiate(void *graph) {
    void *executable;
    OK("cuGraphInstantiateWithFlags", CALL(int (*)(void **, void *, uint64_t), "cuGraphInstantiateWithFlags")(&executable, graph, 0));
    return executable;
}

/* As frameworks do: the graph goes at once. */
static void *instantiate_and_drop(void *graph) {
    void *executable = instantiate(graph);
    OK("cuGraphDestroy", CALL(fn_p, "cuGraphDestroy")(graph));
    return executable;
}
#endif
