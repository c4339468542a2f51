/* The part of a libcuda that executable graphs need, as measured on an H200 (docs/hardware.md): a kernel is shown
 * to the subscriber when it is first uploaded and when it was disabled and enabled again, and its mask then stays.
 * Nodes of a graph that was destroyed are refused. Prototypes after cuda.h. */
#include "stub.h"
#include <stdlib.h>

enum { KERNEL = 0, CHILD = 4, CONDITIONAL = 13, NODES = 16 };

struct graph;
struct node {
    int kind, alive, cooperative;
    unsigned cluster;
    struct { void *function; unsigned grid[3], block[3], shared; void *rest[4]; } kernel;
    struct graph *inner;
};
struct graph {
    struct node *nodes[NODES];
    int count, alive;
};
struct exec {
    struct { struct node *source; int enabled, pending, built; uint32_t qmd[96]; } kernels[NODES];
    int count;
};

static int living, living_execs, calls;
static struct exec *launched;
static void (*before_call)(void);

int stub_living_graphs(void) { return living; }
int stub_living_executables(void) { return living_execs; }
/* The executable of the last launch. */
struct exec *stub_launched(void) { return launched; }
int stub_calls(void) { int seen = calls; calls = 0; return seen; }
void stub_before_call(void (*function)(void)) { before_call = function; }
/* The descriptor of a kernel as it was uploaded last; null if it is disabled. */
const uint32_t *stub_uploaded(struct exec *exec, int kernel) {
    return exec->kernels[kernel].enabled ? exec->kernels[kernel].qmd : NULL;
}

static int is_alive(struct graph *graph) { return graph->alive; }

int cuGraphCreate(struct graph **graph, unsigned flags) {
    *graph = calloc(1, sizeof **graph);
    (*graph)->alive = 1;
    living++;
    return flags ? 1 : 0;
}

static struct node *add(struct graph *graph, int kind) {
    struct node *node = calloc(1, sizeof *node);
    node->kind = kind;
    node->alive = 1;
    graph->nodes[graph->count++] = node;
    return node;
}

int cuGraphAddKernelNode_v2(struct node **node, struct graph *graph, const void *after, size_t count, const void *parameters) {
    *node = add(graph, KERNEL);
    memcpy(&(*node)->kernel, parameters, sizeof (*node)->kernel);
    return 0;
}

int cuGraphAddChildGraphNode(struct node **node, struct graph *graph, const void *after, size_t count, struct graph *child) {
    *node = add(graph, CHILD);
    cuGraphCreate(&(*node)->inner, 0);
    for (int i = 0; i < child->count; i++) *add((*node)->inner, KERNEL) = *child->nodes[i];
    return 0;
}

int cuGraphAddNode_v2(struct node **node, struct graph *graph, const void *after, const void *edges, size_t count, void *parameters) {
    if (*(int *)parameters != CONDITIONAL) return 1;
    *node = add(graph, CONDITIONAL);
    cuGraphCreate(&(*node)->inner, 0);
    /* CUDA_CONDITIONAL_NODE_PARAMS begins after 16 bytes; the bodies go where its third member, at 16, says. */
    *(struct graph ***)((char *)parameters + 32) = &(*node)->inner;
    return 0;
}

int cuGraphGetNodes(struct graph *graph, struct node **nodes, size_t *count) {
    if (nodes) memcpy(nodes, graph->nodes, graph->count * sizeof *nodes);
    *count = graph->count;
    return 0;
}

int cuGraphNodeGetType(struct node *node, int *kind) { *kind = node->kind; return 0; }
int cuGraphChildGraphNodeGetGraph(struct node *node, struct graph **graph) { *graph = node->inner; return 0; }

int cuGraphKernelNodeGetParams_v2(struct node *node, void *parameters) {
    memcpy(parameters, &node->kernel, sizeof node->kernel);
    return 0;
}

int cuGraphKernelNodeSetAttribute(struct node *node, int id, const unsigned *value) {
    if (id == 4) node->cluster = value[0];
    if (id == 2) node->cooperative = value[0];
    return 0;
}

int cuGraphKernelNodeGetAttribute(struct node *node, int id, unsigned *value) {
    if (id == 4) value[0] = node->cluster, value[1] = value[2] = node->cluster ? 1 : 0;
    if (id == 2) value[0] = node->cooperative;
    return 0;
}

int cuGraphDestroyNode(struct node *node) { node->alive = 0; return 0; }

int cuGraphDestroy(struct graph *graph) {
    if (!is_alive(graph)) return 1;
    graph->alive = 0;
    living--;
    for (int i = 0; i < graph->count; i++) {
        graph->nodes[i]->alive = 0;
        if (graph->nodes[i]->inner) cuGraphDestroy(graph->nodes[i]->inner);
    }
    return 0;
}

static void flatten(struct exec *exec, struct graph *graph) {
    for (int i = 0; i < graph->count; i++) {
        struct node *node = graph->nodes[i];
        if (node->inner) flatten(exec, node->inner);
        if (node->kind != KERNEL || !node->alive) continue;
        exec->kernels[exec->count].source = node;
        exec->kernels[exec->count].enabled = exec->kernels[exec->count].pending = 1;
        exec->count++;
    }
}

int cuGraphInstantiateWithFlags(struct exec **exec, struct graph *graph, uint64_t flags) {
    *exec = calloc(1, sizeof **exec);
    living_execs++;
    flatten(*exec, graph);
    return 0;
}

int cuGraphExecDestroy(struct exec *exec) { living_execs--; free(exec); return 0; }

static int find(struct exec *exec, struct node *node) {
    for (int i = 0; i < exec->count; i++)
        if (exec->kernels[i].source == node) return node->alive ? i : -1;
    return -1;
}

int cuGraphNodeSetEnabled(struct exec *exec, struct node *node, unsigned enabled) {
    int i = find(exec, node);
    if (i < 0) return 1;
    if (enabled && !exec->kernels[i].enabled) exec->kernels[i].pending = 1;
    exec->kernels[i].enabled = enabled != 0;
    return 0;
}

int cuGraphNodeGetEnabled(struct exec *exec, struct node *node, unsigned *enabled) {
    int i = find(exec, node);
    if (i < 0) return 1;
    *enabled = exec->kernels[i].enabled;
    return 0;
}

int cuGraphUpload(struct exec *exec, void *stream) {
    for (int i = 0; i < exec->count; i++) {
        /* Built once, and shown even if it is disabled; armed anew, it is shown as the subscriber left it. */
        int first = !exec->kernels[i].built;
        if (!exec->kernels[i].pending || (!exec->kernels[i].enabled && !first)) continue;
        if (first) stub_build(exec->kernels[i].qmd, NULL);
        exec->kernels[i].built = 1;
        if (before_call) before_call();
        stub_show(exec->kernels[i].qmd);
        exec->kernels[i].pending = 0;
        calls++;
    }
    return 0;
}

int cuGraphLaunch(struct exec *exec, void *stream) { launched = exec; return cuGraphUpload(exec, stream); }

int cuGraphAddDependencies(struct graph *graph, void **from, void **to, size_t count) { return 0; }

int cuGraphExecKernelNodeSetParams_v2(struct exec *exec, struct node *node, const void *parameters) {
    int i = find(exec, node);
    if (i < 0) return 1;
    exec->kernels[i].pending = 1;
    exec->kernels[i].built = 0;
    return 0;
}
