/* Executable graphs under limits that change: prints which mask each kernel carries after each launch. A line
 * "set X" asks whoever reads it to change the limits, and waits for a line in return. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *driver;
#define DRIVER(result, name, ...) ((result (*)(__VA_ARGS__))dlsym(driver, #name))

static void limits(const char *which) {
    char line[64];
    printf("set %s\n", which);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(4);
}

struct kernel { void *function; unsigned grid[3], block[3], shared; void *rest[4]; };

static void *kernel(void *graph, unsigned cluster) {
    struct kernel parameters = {(void *)0x10000, {64, 1, 1}, {32, 1, 1}};
    unsigned size[3] = {cluster, 1, 1};
    void *node;
    DRIVER(int, cuGraphAddKernelNode_v2, void **, void *, void *, size_t, void *)(&node, graph, NULL, 0, &parameters);
    if (cluster) DRIVER(int, cuGraphKernelNodeSetAttribute, void *, int, void *)(node, 4, size);
    return node;
}

static void *graph(void) {
    void *made;
    DRIVER(int, cuGraphCreate, void **, unsigned)(&made, 0);
    return made;
}

static void *instantiate(void *of, uint64_t flags, int *code) {
    void *executable = NULL;
    int result = DRIVER(int, cuGraphInstantiateWithFlags, void **, void *, uint64_t)(&executable, of, flags);
    if (code) *code = result;
    return executable;
}

static char mask_of(const uint32_t *qmd) {
    if (!qmd) return '.';                       /* disabled: runs nowhere */
    if (!(qmd[0] & 0x80000000u)) return '-';    /* no mask */
    if (qmd[76] == 0 && qmd[77] == 0xfffffffeu) return 'A';
    if (qmd[76] == 0xffffffffu && qmd[77] == 1) return 'B';
    if (qmd[76] == 0 && qmd[77] == 0) return 'C';
    return '?';
}

static void launch(const char *what, void *executable, int kernels) {
    DRIVER(int, stub_calls, void)();
    int code = DRIVER(int, cuGraphLaunch, void *, void *)(executable, NULL);
    printf("%s %d ", what, code);
    for (int i = 0; i < kernels; i++) putchar(mask_of(DRIVER(const uint32_t *, stub_uploaded, void *, int)(executable, i)));
    printf(" calls %d\n", DRIVER(int, stub_calls, void)());
}

/* Launches in two streams in turn or in one: whether another executable has taken the place of the program's, how many
 * the driver has, and the masks of the one that was launched. */
static void launches(const char *what, void *executable, int count, int streams) {
    int code = 0;
    for (int i = 0; i < count; i++) code |= DRIVER(int, cuGraphLaunch, void *, void *)(executable, (void *)(size_t)(0x5000 + 0x100 * (i % streams)));
    void *launched = DRIVER(void *, stub_launched, void)();
    printf("%s %d %s of %d ", what, code, launched == executable ? "own" : "other", DRIVER(int, stub_living_executables, void)());
    for (int i = 0; i < 2; i++) putchar(mask_of(DRIVER(const uint32_t *, stub_uploaded, void *, int)(launched, i)));
    putchar('\n');
}

/* Executables that are made again when changed limits have stood for some launches. */
static void again(void) {
    int (*enable)(void *, void *, unsigned) = DRIVER(int, cuGraphNodeSetEnabled, void *, void *, unsigned);
    int (*drop)(void *) = DRIVER(int, cuGraphExecDestroy, void *);
    limits("A");
    void *whole = graph(), *first = kernel(whole, 0), *second = kernel(whole, 0);
    void *executable = instantiate(whole, 0, NULL);
    launches("at first", executable, 40, 1);
    limits("B");
    launches("changed", executable, 16, 1);
    launches("settled", executable, 2, 1);
    limits("A");
    launches("changed again", executable, 16, 1);
    launches("settled again", executable, 2, 1);
    /* The program's changes reach the one in its place, which is not made again after that. */
    unsigned is_enabled = 7;
    enable(executable, first, 0);
    DRIVER(int, cuGraphNodeGetEnabled, void *, void *, unsigned *)(executable, first, &is_enabled);
    printf("enabled %u\n", is_enabled);
    launches("disabled", executable, 40, 1);
    limits("B");
    launches("and changed", executable, 40, 1);
    enable(executable, first, 1);
    launches("enabled", executable, 1, 1);
    drop(executable);
    printf("executables %d\n", DRIVER(int, stub_living_executables, void)());

    /* Streams in turn: launches of two executables would not be ordered. */
    executable = instantiate(whole, 0, NULL);
    launches("two streams", executable, 1, 2);
    limits("A");
    launches("two streams", executable, 300, 2);
    launches("one stream", executable, 40, 1);
    drop(executable);

    /* Changed by the program after it was made: the executable, or its graph. */
    executable = instantiate(whole, 0, NULL);
    struct kernel other = {(void *)0x10000, {8, 1, 1}, {32, 1, 1}};
    DRIVER(int, cuGraphExecKernelNodeSetParams_v2, void *, void *, void *)(executable, second, &other);
    launches("own parameters", executable, 1, 1);
    limits("B");
    launches("own parameters", executable, 40, 1);
    drop(executable);
    executable = instantiate(whole, 0, NULL);
    launches("edge", executable, 1, 1);
    DRIVER(int, cuGraphAddDependencies, void *, void *, void *, size_t)(whole, &first, &second, 1);
    limits("A");
    launches("edge", executable, 40, 1);
    drop(executable);
    executable = instantiate(whole, 0, NULL);
    launches("node", executable, 1, 1);
    kernel(whole, 0);
    limits("B");
    launches("node", executable, 40, 1);
    drop(executable);
    /* Destroyed by the program before other graphs are changed. */
    executable = instantiate(whole, 0, NULL);
    launches("destroyed", executable, 1, 1);
    DRIVER(int, cuGraphDestroy, void *)(whole);
    void *elsewhere = graph();
    first = kernel(elsewhere, 0), second = kernel(elsewhere, 0);
    DRIVER(int, cuGraphAddDependencies, void *, void *, void *, size_t)(elsewhere, &first, &second, 1);
    limits("A");
    launches("destroyed", executable, 40, 1);
    drop(executable);
    printf("executables %d\n", DRIVER(int, stub_living_executables, void)());
}

static int changes;
static void change_once(void) { if (++changes == 2) limits("B"); }

int main(void) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) { fprintf(stderr, "%s\n", dlerror()); return 2; }
    if (DRIVER(int, cuInit, unsigned)(0)) return 3;
    int (*destroy)(void *) = DRIVER(int, cuGraphDestroy, void *);
    int (*enable)(void *, void *, unsigned) = DRIVER(int, cuGraphNodeSetEnabled, void *, void *, unsigned);
    int (*living)(void) = DRIVER(int, stub_living_graphs, void);

    /* A kernel, one in an embedded graph, one in the body of a conditional node; the graph destroyed at once. */
    void *whole = graph(), *inner = graph(), *first = kernel(whole, 0), *node;
    kernel(inner, 0);
    DRIVER(int, cuGraphAddChildGraphNode, void **, void *, void *, size_t, void *)(&node, whole, NULL, 0, inner);
    struct { int kind, zero[3]; uint64_t handle; unsigned type, size; void **bodies; char rest[216]; } conditional = {13, {0}, 1, 0, 1, NULL};
    DRIVER(int, cuGraphAddNode_v2, void **, void *, void *, void *, size_t, void *)(&node, whole, NULL, NULL, 0, &conditional);
    kernel(conditional.bodies[0], 0);
    void *executable = instantiate(whole, 0, NULL);
    destroy(inner);
    printf("destroy %d", destroy(whole));
    printf(" twice %d living %d\n", destroy(whole), living());
    launch("first", executable, 3);
    launch("unchanged", executable, 3);
    limits("B");
    launch("changed", executable, 3);
    launch("unchanged", executable, 3);
    limits("B with another quota");
    launch("quota", executable, 3);

    /* What the program has disabled stays so, and has the right mask when it is enabled. */
    enable(executable, first, 0);
    limits("A");
    launch("disabled", executable, 3);
    enable(executable, first, 1);
    launch("enabled", executable, 3);

    /* Limits that change between two kernels of one upload, and back. */
    limits("C");
    limits("A");
    limits("C");
    DRIVER(void, stub_before_call, void (*)(void))(change_once);
    launch("during", executable, 3);
    DRIVER(void, stub_before_call, void (*)(void))(NULL);
    limits("C");
    launch("back", executable, 3);

    struct kernel other = {(void *)0x10000, {8, 1, 1}, {32, 1, 1}};
    DRIVER(int, cuGraphExecKernelNodeSetParams_v2, void *, void *, void *)(executable, first, &other);
    launch("parameters", executable, 3);
    DRIVER(int, cuGraphExecDestroy, void *)(executable);
    printf("living %d\n", living());

    /* A node that is no more cannot be armed: fine while the mask stays inside the set, refused after. */
    limits("A");
    whole = graph();
    first = kernel(whole, 0);
    kernel(whole, 0);
    executable = instantiate(whole, 0, NULL);
    launch("two", executable, 2);
    DRIVER(int, cuGraphDestroyNode, void *)(first);
    limits("C");
    launch("wider", executable, 2);
    limits("B");
    launch("elsewhere", executable, 2);
    DRIVER(int, cuGraphExecDestroy, void *)(executable);

    /* One kernel that the partition cannot run: 15 SMs of one GPC, of which it has 14. */
    limits("A");
    whole = graph();
    kernel(whole, 0);
    void *large = kernel(whole, 15);
    executable = instantiate(whole, 0, NULL);
    launch("misfit", executable, 2);
    enable(executable, large, 0);
    launch("without", executable, 2);
    enable(executable, large, 1);
    limits("A wide");
    launch("widened", executable, 2);
    launch("widened", executable, 2);
    limits("B wide");
    launch("widened", executable, 2);
    limits("B");
    launch("misfit", executable, 2);

    DRIVER(int, cuGraphExecDestroy, void *)(executable);
    again();

    int code;
    instantiate(whole, 4, &code);
    printf("device-launch %d\n", code);
    return 0;
}
