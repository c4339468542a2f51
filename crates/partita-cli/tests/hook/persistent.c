/* A program whose kernels are persistent blocks. Reads commands, and ends each answer with `done`:
 *   places       the SMs of a launch's blocks, by every way to launch, and whether all of them ran
 *   begin N      launches N blocks, each of which waits until it may go on
 *   go N         the blocks before N may go on; waits until they have
 *   order        ends that launch, and prints the SM of each block in their order
 *   refusals     the codes of what persistent blocks cannot do
 *   seen         what the program sees of a function */
#include "census.h"

static const char TEXT[] =
    ".version 7.8\n.target sm_70\n.address_size 64\n"
    /* Each block's SM, and one. */
    ".visible .entry places(.param .u64 out, .param .u32 add) {\n"
    "  .reg .b32 %r<6>; .reg .b64 %rd<4>; .reg .pred %p; .shared .align 4 .b8 tile[64];\n"
    "  mov.u32 %r1, %tid.x; setp.ne.u32 %p, %r1, 0; @%p ret;\n"
    "  ld.param.u64 %rd1, [out]; ld.param.u32 %r5, [add]; cvta.to.global.u64 %rd1, %rd1; mov.u32 %r2, %ctaid.x;\n"
    "  mul.wide.u32 %rd2, %r2, 4; add.u64 %rd3, %rd1, %rd2; mov.u32 %r3, %smid; add.u32 %r4, %r3, %r5;\n"
    "  st.shared.u32 [tile], %r4; ld.shared.u32 %r4, [tile]; st.global.u32 [%rd3], %r4; ret;\n}\n"
    /* The same when the word at `go` is larger than the block's number; counts the blocks that are done at `go` + 4. */
    ".visible .entry waits(.param .u64 out, .param .u64 go) {\n"
    "  .reg .b32 %r<6>; .reg .b64 %rd<5>; .reg .pred %p<3>;\n"
    "  mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 ret;\n"
    "  ld.param.u64 %rd1, [out]; ld.param.u64 %rd4, [go]; mov.u32 %r2, %ctaid.x;\n"
    "W: ld.volatile.global.u32 %r5, [%rd4]; setp.le.u32 %p2, %r5, %r2; @%p2 bra W;\n"
    "  mul.wide.u32 %rd2, %r2, 4; add.u64 %rd3, %rd1, %rd2; mov.u32 %r3, %smid; add.u32 %r4, %r3, 1;\n"
    "  st.global.u32 [%rd3], %r4; ret;\n}\n"
    ".visible .entry clustered() .reqnctapercluster 2, 1, 1 { ret; }\n";

enum { BLOCKS = 600 };
static void *stream, *places, *waits;
static address out;
static unsigned found[BLOCKS];
static unsigned *go;
static address go_there;

static void *named(void *module, const char *name) {
    void *function;
    OK("cuModuleGetFunction", CALL(int (*)(void **, void *, const char *), "cuModuleGetFunction")(&function, module, name));
    return function;
}

static void clear(void) {
    OK("cuMemsetD8_v2", CALL(int (*)(address, unsigned char, size_t), "cuMemsetD8_v2")(out, 0, sizeof found));
    wait_all();
}

static void fetch(void) {
    wait_all();
    OK("cuMemcpyDtoH_v2", CALL(int (*)(void *, address, size_t), "cuMemcpyDtoH_v2")(found, out, sizeof found));
}

static void report(const char *route, int code) {
    if (code) { printf("%s error %d\n", route, code); return; }
    char seen[SMS_MAX] = {0};
    unsigned ran = 0;
    fetch();
    for (int i = 0; i < BLOCKS; i++)
        if (found[i]) ran++, seen[found[i] - 1] = 1;
    printf("%s %u", route, ran);
    for (int sm = 0; sm < SMS_MAX; sm++)
        if (seen[sm]) printf(" %d", sm);
    printf("\n");
    clear();
}

int main(void) {
    start(1);
    fn_launch launch = CALL(fn_launch, "cuLaunchKernel");
    fn_ex launch_ex = (fn_ex)by_version("cuLaunchKernelEx", 12000, 1);
    int (*load)(void **, const void *) = CALL(int (*)(void **, const void *), "cuModuleLoadData");
    void *module;
    OK("cuModuleLoadData", load(&module, TEXT));
    places = named(module, "places");
    waits = named(module, "waits");
    stream = new_stream(1);
    void *other = new_stream(1);
    OK("cuMemAlloc_v2", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&out, sizeof found));
    OK("cuMemHostAlloc", CALL(int (*)(void **, size_t, unsigned), "cuMemHostAlloc")((void **)&go, 64, 2));
    OK("cuMemHostGetDevicePointer_v2", CALL(int (*)(address *, void *, unsigned), "cuMemHostGetDevicePointer_v2")(&go_there, go, 0));
    clear();

    unsigned one = 1;
    void *parameters[2] = {&out, &one};
    struct { address out; unsigned add; } packed = {out, 1};
    size_t bytes = sizeof packed - 4;
    void *extra[5] = {(void *)1, &packed, (void *)2, &bytes, (void *)0};
    struct config config = {{BLOCKS, 1, 1}, {64, 1, 1}, 0, stream, NULL, 0};

    void *graph, *again;
    OK("cuStreamBeginCapture_v2", CALL(int (*)(void *, int), "cuStreamBeginCapture_v2")(stream, 0));
    OK("captured launch", launch(places, BLOCKS, 1, 1, 64, 1, 1, 0, stream, parameters, NULL));
    OK("cuStreamEndCapture", CALL(int (*)(void *, void **), "cuStreamEndCapture")(stream, &graph));
    void *captured = instantiate(graph);

    char line[64];
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        char what[32];
        unsigned number = 0;
        if (sscanf(line, "%31s %u", what, &number) < 1) continue;
        if (!strcmp(what, "places")) {
            report("stream", launch(places, BLOCKS, 1, 1, 64, 1, 1, 0, stream, parameters, NULL));
            report("default", launch(places, BLOCKS, 1, 1, 64, 1, 1, 0, NULL, parameters, NULL));
            report("extra", launch(places, BLOCKS, 1, 1, 64, 1, 1, 0, stream, NULL, extra));
            report("ex", launch_ex(&config, places, parameters, NULL));
            report("graph", CALL(int (*)(void *, void *), "cuGraphLaunch")(captured, stream));
        } else if (!strcmp(what, "begin")) {
            void *waiting[2] = {&out, &go_there};
            *(volatile unsigned *)go = 0;
            OK("cuLaunchKernel", launch(waits, number, 1, 1, 1024, 1, 1, 0, stream, waiting, NULL));
        } else if (!strcmp(what, "go")) {
            *(volatile unsigned *)go = number;
        } else if (!strcmp(what, "touch")) {
            /* A launch beside it: from here on the GPU has the present set. */
            unsigned none = 0;
            address elsewhere;
            OK("cuMemAlloc_v2", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&elsewhere, 64));
            void *few[2] = {&elsewhere, &none};
            OK("cuLaunchKernel", launch(places, 1, 1, 1, 64, 1, 1, 0, other, few, NULL));
        } else if (!strcmp(what, "order")) {
            fetch();
            for (unsigned i = 0; i < number; i++) printf("%d ", (int)found[i] - 1);
            printf("\n");
            clear();
        } else if (!strcmp(what, "refusals")) {
            int (*cooperative)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **) =
                CALL(fn_cooperative, "cuLaunchCooperativeKernel");
            printf("cooperative %d\n", cooperative(places, 1, 1, 1, 64, 1, 1, 0, stream, parameters));
            struct attribute attribute;
            memset(&attribute, 0, sizeof attribute);
            attribute.id = 4;
            attribute.value.dim[0] = 2, attribute.value.dim[1] = attribute.value.dim[2] = 1;
            struct config clusters = {{2, 1, 1}, {64, 1, 1}, 0, stream, &attribute, 1};
            printf("cluster %d\n", launch_ex(&clusters, places, parameters, NULL));
            void *function, *made, *node;
            printf("clustered %d\n", CALL(int (*)(void **, void *, const char *), "cuModuleGetFunction")(&function, module, "clustered"));
            static unsigned char elf[128] = {0x7f, 'E', 'L', 'F', 2, 1, 1};
            memcpy(elf + 80, ".text.product", 14);
            elf[40] = 128;
            printf("cubin %d\n", load(&made, elf));
            printf("no-ptx %d\n", load(&made, "hello"));
            printf("again %d\n", CALL(int (*)(void **, void *, unsigned long long), "cuGraphInstantiateWithFlags")(&again, graph, 0));
            printf("clone %d\n", CALL(int (*)(void **, void *), "cuGraphClone")(&made, graph));
            struct node wanted = {places, {1, 1, 1}, {64, 1, 1}, 0, parameters, NULL, NULL, NULL};
            printf("node %d\n", CALL(int (*)(void **, void *, void **, size_t, struct node *), "cuGraphAddKernelNode_v2")(&node, graph, NULL, 0, &wanted));
        } else if (!strcmp(what, "seen")) {
            int (*info)(void *, size_t, size_t *, size_t *) = CALL(int (*)(void *, size_t, size_t *, size_t *), "cuFuncGetParamInfo");
            size_t at[3] = {99, 99, 99}, size[3] = {0, 0, 0};
            int codes[3], shared = 0;
            for (int i = 0; i < 3; i++) codes[i] = info(places, i, &at[i], &size[i]);
            OK("cuFuncGetAttribute", CALL(int (*)(int *, int, void *), "cuFuncGetAttribute")(&shared, 1, places));
            printf("parameters %d %zu %zu, %d %zu %zu, %d shared %d\n", codes[0], at[0], size[0], codes[1], at[1], size[1], codes[2], shared);
        }
        printf("done\n");
        fflush(stdout);
    }
    return 0;
}
