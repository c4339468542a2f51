/* A program with partitions of its own. Reads commands:
 *   resources           SMs of the device and of the current context
 *   split W FLAGS       number and size of the groups, and the rest
 *   create I J          a green context of the groups I to J of the last split: the code, and its SMs
 *   run WHERE           where blocks run: plain, stream K, default K (the context made current), graph K (captured there, launched outside)
 *   cooperative WHERE N the code of a cooperative launch of N blocks: plain, stream K, graph K
 *   cluster K N         the code of a launch with clusters of N blocks, and the clusters active at once
 *   destroy K           the code
 *   every               makes and destroys contexts of each group and of each two neighbours, until one is refused: its code, and how many
 * and ends each answer with `done`. Arguments: the file with the kernels, and blocks. */
#include "census.h"

typedef struct { int kind; unsigned char internal[92]; unsigned sms, least, together; unsigned char rest[36]; } resource;
typedef int (*fn_resource)(void *, resource *, int);

#define GREENS_MAX 8

static void *census, *plain, *greens[GREENS_MAX], *streams[GREENS_MAX], *contexts[GREENS_MAX], *graphs[GREENS_MAX];
static address records;
static unsigned blocks, made;
static uint64_t duration = 30000;

static int launch(void *stream) {
    void *parameters[2] = {&records, &duration};
    return CALL(fn_launch, "cuLaunchKernel")(census, blocks, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL);
}

static void *captured(void *stream) {
    void *graph;
    OK("cuStreamBeginCapture_v2", CALL(int (*)(void *, int), "cuStreamBeginCapture_v2")(stream, 0));
    OK("captured launch", launch(stream));
    OK("cuStreamEndCapture", CALL(int (*)(void *, void **), "cuStreamEndCapture")(stream, &graph));
    return instantiate_and_drop(graph);
}

static int cooperative(void *stream, unsigned count) {
    void *parameters[2] = {&records, &duration};
    return CALL(fn_cooperative, "cuLaunchCooperativeKernel")(census, count, 1, 1, 1024, 1, 1, 0, stream, parameters);
}

static int cooperative_graph(void *stream, unsigned count) {
    void *graph;
    OK("cuStreamBeginCapture_v2", CALL(int (*)(void *, int), "cuStreamBeginCapture_v2")(stream, 0));
    int code = cooperative(stream, count);
    OK("cuStreamEndCapture", CALL(int (*)(void *, void **), "cuStreamEndCapture")(stream, &graph));
    return code ? code : CALL(int (*)(void *, void *), "cuGraphLaunch")(instantiate_and_drop(graph), plain);
}

int main(int count, char **arguments) {
    resource whole, of_context, groups[80], rest;
    unsigned number = 0;
    if (count != 3) return 2;
    const char *kernels = kernels_in(arguments[1]);
    blocks = (unsigned)atoi(arguments[2]);
    start(1);
    census = load_census(kernels);
    OK("cuFuncSetAttribute", CALL(int (*)(void *, int, int), "cuFuncSetAttribute")(census, 14, 1));
    plain = new_stream(1);
    records = new_records(blocks);
    clear_records(records, blocks);
    OK("first launch", launch(plain));
    wait_all();

    char line[64];
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        char what[32], where[32];
        unsigned a = 0, b = 0, n = 0;
        clear_records(records, blocks);
        if (sscanf(line, "%31s", what) < 1) continue;
        if (!strcmp(what, "resources")) {
            OK("cuDeviceGetDevResource", CALL(int (*)(int, resource *, int), "cuDeviceGetDevResource")(0, &whole, 1));
            OK("cuCtxGetDevResource", CALL(fn_resource, "cuCtxGetDevResource")(context, &of_context, 1));
            printf("device %u context %u least %u together %u\n", whole.sms, of_context.sms, whole.least, whole.together);
        } else if (!strcmp(what, "split")) {
            sscanf(line, "%*s %u %u", &a, &b);
            number = 80;
            int code = CALL(int (*)(resource *, unsigned *, const resource *, resource *, unsigned, unsigned), "cuDevSmResourceSplitByCount")(groups, &number, &whole, &rest, b, a);
            printf("split %d: %u of %u, %u\n", code, number, groups[0].sms, rest.kind ? rest.sms : 0);
        } else if (!strcmp(what, "create")) {
            sscanf(line, "%*s %u %u", &a, &b);
            void *description;
            OK("cuDevResourceGenerateDesc", CALL(int (*)(void **, resource *, unsigned), "cuDevResourceGenerateDesc")(&description, &groups[a], b - a + 1));
            int code = CALL(int (*)(void **, void *, int, unsigned), "cuGreenCtxCreate")(&greens[made], description, 0, 1);
            printf("create %d", code);
            if (!code) {
                resource own, as_context;
                OK("cuGreenCtxGetDevResource", CALL(fn_resource, "cuGreenCtxGetDevResource")(greens[made], &own, 1));
                OK("cuGreenCtxStreamCreate", CALL(int (*)(void **, void *, unsigned, int), "cuGreenCtxStreamCreate")(&streams[made], greens[made], 1, 0));
                OK("cuCtxFromGreenCtx", CALL(fn_pp, "cuCtxFromGreenCtx")(&contexts[made], greens[made]));
                OK("cuCtxGetDevResource", CALL(fn_resource, "cuCtxGetDevResource")(contexts[made], &as_context, 1));
                graphs[made] = captured(streams[made]);
                printf(" of %u %u", own.sms, as_context.sms);
                made++;
            }
            printf("\n");
        } else if (!strcmp(what, "run")) {
            int code = -1;
            sscanf(line, "%*s %31s %u", where, &a);
            if (!strcmp(where, "plain")) code = launch(plain);
            else if (!strcmp(where, "stream")) code = launch(streams[a]);
            else if (!strcmp(where, "graph")) code = CALL(int (*)(void *, void *), "cuGraphLaunch")(graphs[a], plain);
            else {
                void *out;
                OK("cuCtxPushCurrent_v2", CALL(fn_p, "cuCtxPushCurrent_v2")(contexts[a]));
                code = launch(NULL);
                wait_all();
                OK("cuCtxPopCurrent_v2", CALL(fn_p, "cuCtxPopCurrent_v2")(&out));
            }
            printf("run %d", code);
            OK("cuCtxSynchronize", CALL(fn_p, "cuStreamSynchronize")(!strcmp(where, "stream") ? streams[a] : plain));
            print_sms(records, blocks);
        } else if (!strcmp(what, "cooperative")) {
            int code = -1;
            if (sscanf(line, "%*s plain %u", &n) == 1) code = cooperative(plain, n);
            else if (sscanf(line, "%*s stream %u %u", &a, &n) == 2) code = cooperative(streams[a], n);
            else if (sscanf(line, "%*s graph %u %u", &a, &n) == 2) code = cooperative_graph(streams[a], n);
            printf("cooperative %d\n", code);
            for (unsigned k = 0; k < made; k++) if (streams[k]) OK("cuStreamSynchronize", CALL(fn_p, "cuStreamSynchronize")(streams[k]));
            wait_all();
        } else if (!strcmp(what, "cluster")) {
            struct attribute attribute;
            struct config config;
            int active = -1;
            sscanf(line, "%*s %u %u", &a, &n);
            memset(&attribute, 0, sizeof attribute);
            memset(&config, 0, sizeof config);
            config = (struct config){{2 * n, 1, 1}, {1024, 1, 1}, 0, streams[a], &attribute, 1};
            attribute.id = 4;
            attribute.value.dim[0] = n;
            attribute.value.dim[1] = attribute.value.dim[2] = 1;
            OK("cuOccupancyMaxActiveClusters", CALL(int (*)(int *, void *, const struct config *), "cuOccupancyMaxActiveClusters")(&active, census, &config));
            void *parameters[2] = {&records, &duration};
            int code = CALL(fn_ex, "cuLaunchKernelEx")(&config, census, parameters, NULL);
            OK("cuStreamSynchronize", CALL(fn_p, "cuStreamSynchronize")(streams[a]));
            printf("cluster %d active %d\n", code, active);
        } else if (!strcmp(what, "destroy")) {
            sscanf(line, "%*s %u", &a);
            streams[a] = NULL;
            printf("destroy %d\n", CALL(fn_p, "cuGreenCtxDestroy")(greens[a]));
        }
        else if (!strcmp(what, "every")) {
            int code = 0;
            for (a = 0; !code && a < 2 * number - 1; a++) {
                void *description, *green;
                OK("cuDevResourceGenerateDesc", CALL(int (*)(void **, resource *, unsigned), "cuDevResourceGenerateDesc")(&description, &groups[a / 2], 1 + a % 2));
                code = CALL(int (*)(void **, void *, int, unsigned), "cuGreenCtxCreate")(&green, description, 0, 1);
                if (!code) OK("cuGreenCtxDestroy", CALL(fn_p, "cuGreenCtxDestroy")(green));
            }
            printf("every %d after %u\n", code, code ? a - 1 : a);
        }
        printf("done\n");
        fflush(stdout);
    }
    return 0;
}
