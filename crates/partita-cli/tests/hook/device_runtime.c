/* A program whose kernels could launch kernels: the same module twice, the second time with the variable that the device runtime
 * brings into every module linked with it. Reads commands: the route by which a kernel of the second is launched (`module`,
 * `library`, `graph`), or `plain` for one of the first. Answers with the code and the number of SMs that it ran on.
 * Argument: the file with the kernels. */
#include "cuda.h"

typedef int (*fn_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
struct node { void *function; unsigned grid[3], block[3], shared; void **parameters; void **extra; void *kernel, *context; };

#define BLOCKS 528u

static address records;
static uint64_t duration = 20000;
static void *parameters[] = {&records, &duration};

static void *census_of(const char *text) {
    void *module, *function;
    OK("cuModuleLoadData", CALL(fn_pp, "cuModuleLoadData")(&module, (void *)text));
    OK("cuModuleGetFunction", CALL(int (*)(void **, void *, const char *), "cuModuleGetFunction")(&function, module, "partita_census"));
    return function;
}

static int launch(void *function) {
    return CALL(fn_launch, "cuLaunchKernel")(function, BLOCKS, 1, 1, 1024, 1, 1, 0, NULL, parameters, NULL);
}

static void *graph_of(void *function) {
    void *graph, *node, *executable;
    struct node kernel;
    memset(&kernel, 0, sizeof kernel);
    kernel.function = function;
    kernel.grid[0] = BLOCKS; kernel.grid[1] = kernel.grid[2] = 1;
    kernel.block[0] = 1024; kernel.block[1] = kernel.block[2] = 1;
    kernel.parameters = parameters;
    OK("cuGraphCreate", CALL(int (*)(void **, unsigned), "cuGraphCreate")(&graph, 0));
    OK("cuGraphAddKernelNode_v2", CALL(int (*)(void **, void *, void *, size_t, void *), "cuGraphAddKernelNode_v2")(&node, graph, NULL, 0, &kernel));
    OK("cuGraphInstantiateWithFlags", CALL(int (*)(void **, void *, uint64_t), "cuGraphInstantiateWithFlags")(&executable, graph, 0));
    return executable;
}

static unsigned sms(void) {
    static uint64_t host[4 * BLOCKS];
    unsigned char seen[1024] = {0};
    unsigned count = 0;
    OK("cuCtxSynchronize", CALL(int (*)(void), "cuCtxSynchronize")());
    OK("cuMemcpyDtoH_v2", CALL(int (*)(void *, address, size_t), "cuMemcpyDtoH_v2")(host, records, sizeof host));
    for (unsigned b = 0; b < BLOCKS; b++)
        if (host[4 * b + 3] == b + 1 && !seen[host[4 * b] & 1023]) { seen[host[4 * b] & 1023] = 1; count++; }
    memset(host, 0, sizeof host);
    OK("cuMemcpyHtoD_v2", CALL(int (*)(address, void *, size_t), "cuMemcpyHtoD_v2")(records, host, sizeof host));
    return count;
}

int main(int count, char **arguments) {
    static char text[1 << 20];
    char line[64];
    void *library, *kernel;
    if (count != 2) return 2;
    start(1);
    FILE *file = fopen(arguments[1], "r");
    if (!file || !fread(text, 1, sizeof text - 128, file)) die(arguments[1], 0);
    OK("cuMemAlloc_v2", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&records, BLOCKS * 32));
    sms();
    void *plain = census_of(text);
    /* The version of CUDA 13.0's; the driver refuses a module with one below 5000. */
    strcat(text, "\n.visible .global .align 4 .u32 __CNPRT_VERSION_NUMBER__ = 6000;\n");
    void *function = census_of(text), *executable = graph_of(function);
    OK("cuLibraryLoadData", CALL(int (*)(void **, const char *, void *, void *, unsigned, void *, void *, unsigned), "cuLibraryLoadData")(&library, text, NULL, NULL, 0, NULL, NULL, 0));
    OK("cuLibraryGetKernel", CALL(int (*)(void **, void *, const char *), "cuLibraryGetKernel")(&kernel, library, "partita_census"));
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        int code;
        line[strcspn(line, "\n")] = 0;
        if (!strcmp(line, "plain")) code = launch(plain);
        else if (!strcmp(line, "module")) code = launch(function);
        else if (!strcmp(line, "library")) code = launch(kernel);
        else if (!strcmp(line, "graph")) code = CALL(fn_pp, "cuGraphLaunch")(executable, NULL);
        else return 3;
        printf("%s %d on %u SMs\n", line, code, sms());
    }
    return 0;
}
