// Graphs: made by hand and by capture, launched, changed, masked.
#include "watch.h"

CUresult cuGraphNodeFindInClone(CUgraphNode *, CUgraphNode, CUgraph);
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode, CUgraph *);
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode, const KernelNode *);
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec, CUgraphNode, CUgraph);

static int sms(CUdeviceptr out, unsigned blocks) {
    Record *records = malloc(blocks * sizeof *records);
    OK(cuMemcpyDtoH_v2(records, out, blocks * sizeof *records));
    char found[512] = {0};
    int count = 0;
    for (unsigned i = 0; i < blocks; i++) {
        EQ(records[i].block, i + 1);
        count += !found[records[i].smid];
        found[records[i].smid] = 1;
    }
    free(records);
    OK(cuMemsetD8_v2(out, 0, blocks * sizeof *records));
    OK(cuCtxSynchronize());
    return count;
}

static volatile int host_calls;
static void host_call(void *data) { host_calls += (int)(intptr_t)data; }

// fill -> copy -> (host, kernel) -> empty
static void by_hand(void) {
    start();
    CUgraph graph, clone, child;
    CUgraphExec exec;
    CUgraphNode fill, copy, host, kernel, last, nested, all[8], from[8], to[8];
    CUdeviceptr a, b, c;
    uint32_t word;
    size_t count;
    int type;
    OK(cuMemAlloc_v2(&a, 4096));
    OK(cuMemAlloc_v2(&b, 4096));
    OK(cuMemAlloc_v2(&c, 4096));
    OK(cuGraphCreate(&graph, 0));
    IS(1, cuGraphCreate(&graph, 1));
    MemsetNode ms = {a, 0, 0x01020304, 4, 1024, 1};
    OK(cuGraphAddMemsetNode(&fill, graph, NULL, 0, &ms, context));
    Copy3D cp = {.src_kind = 2, .src = a, .dst_kind = 2, .dst = b, .width = 4096, .height = 1, .depth = 1};
    OK(cuGraphAddMemcpyNode(&copy, graph, &fill, 1, &cp, context));
    HostNode hn = {host_call, (void *)1};
    OK(cuGraphAddHostNode(&host, graph, &copy, 1, &hn));
    uint64_t bytes = 4096;
    void *params[] = {&c, &b, &bytes};
    KernelNode kn = {.func = function("partita_copy"), .grid = {1, 1, 1}, .block = {64, 1, 1}, .params = params};
    OK(cuGraphAddKernelNode_v2(&kernel, graph, &copy, 1, &kn));
    params[0] = NULL; // the node has its own copy
    CUgraphNode both[] = {host, kernel};
    OK(cuGraphAddEmptyNode(&last, graph, both, 2));
    IS(1, cuGraphAddEmptyNode(&last, graph, (CUgraphNode[]){host, host}, 2));
    IS(1, cuGraphAddEmptyNode(&last, graph, (CUgraphNode[]){(CUgraphNode)8}, 1));
    OK(cuGraphGetNodes(graph, NULL, &count));
    EQ(count, 5);
    count = 8;
    OK(cuGraphGetNodes(graph, all, &count));
    TRUE(count == 5 && all[0] == fill && all[4] == last && !all[5]);
    OK(cuGraphGetEdges(graph, NULL, NULL, &count));
    EQ(count, 5);
    count = 8;
    OK(cuGraphGetEdges(graph, from, to, &count));
    OK(cuGraphNodeGetType(host, &type));
    EQ(type, 3);
    OK(cuGraphKernelNodeGetParams_v2(kernel, &kn));
    EQ(*(uint64_t *)kn.params[2], 4096);
    IS(1, cuGraphKernelNodeGetParams_v2(host, &kn));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    IS(1, cuGraphInstantiateWithFlags(&exec, graph, 64));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoH_v2(&word, c + 4092, 4));
    EQ(word, 0x01020304);
    EQ(host_calls, 1);
    for (int i = 0; i < 10; i++) OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    EQ(host_calls, 11);
    // A copy of the graph inside another one; the executable outlives all of them.
    OK(cuGraphClone(&clone, graph));
    OK(cuGraphCreate(&child, 0));
    OK(cuGraphAddChildGraphNode(&nested, child, NULL, 0, clone));
    CUgraphExec exec2;
    OK(cuGraphInstantiateWithFlags(&exec2, child, 0));
    OK(cuGraphDestroy(graph));
    OK(cuGraphDestroy(clone));
    OK(cuGraphDestroy(child));
    IS(1, cuGraphDestroy(child));
    OK(cuMemsetD8_v2(c, 0, 4096));
    OK(cuGraphLaunch(exec2, NULL));
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoH_v2(&word, c, 4));
    EQ(word, 0x01020304);
    EQ(host_calls, 12);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphExecDestroy(exec2));
    IS(1, cuGraphLaunch(exec, NULL));
    // A graph that waits for itself.
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddEmptyNode(&host, graph, NULL, 0));
    OK(cuGraphAddEmptyNode(&copy, graph, &host, 1));
    OK(cuGraphAddDependencies(graph, &copy, &host, 1));
    IS(1, cuGraphInstantiateWithFlags(&exec, graph, 0));
}

// Branches run at the same time, and the graph ends with the longest.
static void branches(void) {
    start();
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode root, one, two, join;
    CUevent begin, end;
    float ms;
    uint64_t ns = 5000000;
    void *params[] = {&ns};
    KernelNode kn = {.func = function("partita_spin"), .grid = {1, 1, 1}, .block = {32, 1, 1}, .params = params};
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddKernelNode_v2(&root, graph, NULL, 0, &kn));
    OK(cuGraphAddKernelNode_v2(&one, graph, &root, 1, &kn));
    OK(cuGraphAddKernelNode_v2(&two, graph, &root, 1, &kn));
    OK(cuGraphAddKernelNode_v2(&join, graph, (CUgraphNode[]){one, two}, 2, &kn));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuEventCreate(&begin, 0));
    OK(cuEventCreate(&end, 0));
    CUstream stream;
    OK(cuStreamCreate(&stream, 1));
    for (int i = 0; i < 2; i++) {
        spin(stream, 1, 32, 20000000); // until all is queued
        OK(cuEventRecord(begin, stream));
        OK(cuGraphLaunch(exec, stream));
        OK(cuEventRecord(end, stream));
        OK(cuStreamSynchronize(stream));
        OK(cuEventElapsedTime(&ms, begin, end));
        TRUE(ms > 15.0f && ms < 15.1f);
    }
}

// The measured rules of masks and graphs.
static void masks(void) {
    start();
    subscribe();
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node, plain;
    CUdeviceptr out;
    unsigned enabled;
    enum { BLOCKS = 264 };
    OK(cuMemAlloc_v2(&out, BLOCKS * sizeof(Record)));
    uint64_t ns = 1000;
    void *params[] = {&out, &ns};
    KernelNode kn = {.func = function("partita_census"), .grid = {BLOCKS, 1, 1}, .block = {1024, 1, 1},
                     .params = params};
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &kn));
    void *spin_params[] = {&ns};
    KernelNode spin_node = {.func = function("partita_spin"), .grid = {1, 1, 1}, .block = {32, 1, 1},
                            .params = spin_params};
    OK(cuGraphAddKernelNode_v2(&plain, graph, &node, 1, &spin_node));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    EQ(seen.calls, 0);
    memset(seen.mask, 0xff, 16);
    seen.mask[0] = ~3u;
    seen.write = 1;
    OK(cuGraphUpload(exec, NULL));
    EQ(seen.calls, 3); // once for each kernel node, and once for the launch
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    EQ(sms(out, BLOCKS), 4);
    // The mask is baked in: no call, and no other mask, at later launches and uploads, and where nothing is changed.
    seen.mask[0] = ~0xfu;
    OK(cuGraphUpload(exec, NULL));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    EQ(sms(out, BLOCKS), 4);
    OK(cuGraphExecKernelNodeSetParams_v2(exec, node, &kn));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    EQ(sms(out, BLOCKS), 4);
    char info[32];
    OK(cuGraphExecUpdate_v2(exec, graph, info));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    EQ(sms(out, BLOCKS), 4);
    EQ(seen.calls, 3);
    // Switching a node off and on brings the callback back, for that node and for the launch.
    OK(cuGraphNodeSetEnabled(exec, node, 0));
    OK(cuGraphNodeGetEnabled(exec, node, &enabled));
    EQ(enabled, 0);
    OK(cuGraphNodeSetEnabled(exec, node, 1));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    EQ(seen.calls, 5);
    EQ(sms(out, BLOCKS), 8);
    // Other parameters bring it back for the node whose they are.
    seen.mask[0] = ~1u;
    kn.grid[0] = BLOCKS / 2;
    OK(cuGraphExecKernelNodeSetParams_v2(exec, node, &kn));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    EQ(seen.calls, 6);
    EQ(sms(out, BLOCKS / 2), 2);
    // So does an update from a graph in which one node differs.
    CUgraph changed;
    OK(cuGraphClone(&changed, graph));
    seen.mask[0] = ~3u;
    OK(cuGraphExecUpdate_v2(exec, changed, info));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    EQ(seen.calls, 7);
    EQ(sms(out, BLOCKS), 4);
    // The nodes of a copy are not the executable's.
    CUgraphNode copied;
    OK(cuGraphNodeFindInClone(&copied, node, changed));
    IS(1, cuGraphNodeSetEnabled(exec, copied, 0));
    // A node that is off does nothing.
    OK(cuGraphNodeSetEnabled(exec, node, 0));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    Record first;
    OK(cuMemcpyDtoH_v2(&first, out, sizeof first));
    EQ(first.block, 0);
    // A graph of another shape is no update.
    CUgraph other;
    OK(cuGraphCreate(&other, 0));
    IS(910, cuGraphExecUpdate_v2(exec, other, info)); // CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
    // Captured on a masked stream, a graph keeps the stream's mask.
    seen.write = 0;
    CUstream stream;
    OK(cuStreamCreate(&stream, 1));
    uint32_t on = 1, off = 0, mask[4] = {~1u, ~0u, ~0u, ~0u};
    memcpy(*(char **)stream + 0x520, mask, 16);
    memcpy(*(char **)stream + 0x51c, &on, 4);
    OK(cuStreamBeginCapture_v2(stream, 0));
    OK(cuLaunchKernel(kn.func, BLOCKS, 1, 1, 1024, 1, 1, 0, stream, params, NULL));
    OK(cuStreamEndCapture(stream, &graph));
    memcpy(*(char **)stream + 0x51c, &off, 4);
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    EQ(sms(out, BLOCKS), 2);
}

static CUgraphNode node_of(CUgraph graph, unsigned index) {
    CUgraphNode nodes[8];
    size_t count = 8;
    OK(cuGraphGetNodes(graph, nodes, &count));
    TRUE(index < count);
    return nodes[index];
}

// Nodes of graphs inside graphs are switched by the nodes that the outer graph has of them, and by no others.
static void nested(void) {
    start();
    subscribe();
    CUgraph inner, middle, outer, embedded, deeper;
    CUgraphExec exec;
    CUgraphNode top, original, in_middle, in_outer, all[4];
    uint64_t ns = 1000;
    void *params[] = {&ns};
    KernelNode kn = {.func = function("partita_spin"), .grid = {4, 1, 1}, .block = {32, 1, 1}, .params = params};
    OK(cuGraphCreate(&inner, 0));
    OK(cuGraphAddKernelNode_v2(&original, inner, NULL, 0, &kn));
    OK(cuGraphAddKernelNode_v2(&all[0], inner, &original, 1, &kn));
    OK(cuGraphCreate(&middle, 0));
    OK(cuGraphAddChildGraphNode(&in_middle, middle, NULL, 0, inner));
    OK(cuGraphCreate(&outer, 0));
    OK(cuGraphAddKernelNode_v2(&top, outer, NULL, 0, &kn));
    OK(cuGraphAddChildGraphNode(&in_outer, outer, &top, 1, middle));
    OK(cuGraphInstantiateWithFlags(&exec, outer, 0));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    EQ(seen.calls, 4);
    // The graphs that were put in are others than those that are in.
    IS(1, cuGraphNodeSetEnabled(exec, original, 0));
    IS(1, cuGraphNodeSetEnabled(exec, in_middle, 0));
    IS(1, cuGraphNodeSetEnabled(exec, in_outer, 0));
    OK(cuGraphChildGraphNodeGetGraph(in_outer, &embedded));
    size_t count = 4;
    OK(cuGraphGetNodes(embedded, all, &count));
    EQ(count, 1);
    OK(cuGraphChildGraphNodeGetGraph(all[0], &deeper));
    count = 4;
    OK(cuGraphGetNodes(deeper, all, &count));
    EQ(count, 2);
    for (unsigned i = 0; i < 2; i++) {
        OK(cuGraphNodeSetEnabled(exec, all[i], 0));
        OK(cuGraphNodeSetEnabled(exec, all[i], 1));
    }
    OK(cuGraphLaunch(exec, NULL));
    OK(cuGraphLaunch(exec, NULL));
    EQ(seen.calls, 7);
    // While it runs, for the next launch.
    OK(cuGraphNodeSetEnabled(exec, top, 0));
    OK(cuGraphNodeSetEnabled(exec, top, 1));
    OK(cuGraphUpload(exec, NULL));
    EQ(seen.calls, 9);
    OK(cuGraphLaunch(exec, NULL));
    EQ(seen.calls, 9);
    OK(cuCtxSynchronize());
    // The same graph again changes nothing; of another of its shape the nodes that differ are shown, under the names they have.
    CUgraph other;
    OK(cuGraphExecChildGraphNodeSetParams(exec, in_outer, middle));
    OK(cuGraphExecChildGraphNodeSetParams(exec, node_of(embedded, 0), inner));
    OK(cuGraphLaunch(exec, NULL));
    EQ(seen.calls, 9);
    OK(cuGraphClone(&other, inner));
    kn.grid[0] = 5;
    OK(cuGraphKernelNodeSetParams_v2(node_of(other, 1), &kn));
    OK(cuGraphExecChildGraphNodeSetParams(exec, node_of(embedded, 0), other));
    OK(cuGraphLaunch(exec, NULL));
    EQ(seen.calls, 10);
    OK(cuGraphNodeSetEnabled(exec, all[1], 0));
    OK(cuGraphNodeSetEnabled(exec, all[1], 1));
    OK(cuGraphLaunch(exec, NULL));
    EQ(seen.calls, 12);
    IS(1, cuGraphNodeSetEnabled(exec, node_of(other, 1), 0));
    IS(1, cuGraphExecChildGraphNodeSetParams(exec, top, inner));
    IS(1, cuGraphExecChildGraphNodeSetParams(exec, in_middle, inner));
    OK(cuGraphAddEmptyNode(&in_middle, other, NULL, 0));
    IS(1, cuGraphExecChildGraphNodeSetParams(exec, in_outer, other));
    OK(cuCtxSynchronize());
    // Without the graph that it was made of an executable lives on, and its nodes have no names any more.
    OK(cuGraphDestroy(outer));
    unsigned enabled;
    IS(1, cuGraphNodeSetEnabled(exec, top, 0));
    IS(1, cuGraphNodeSetEnabled(exec, all[0], 0));
    IS(1, cuGraphNodeGetEnabled(exec, top, &enabled));
    IS(1, cuGraphExecKernelNodeSetParams_v2(exec, top, &kn));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    EQ(seen.calls, 12);
}

static void capture(void) {
    start();
    CUstream a, b;
    CUevent fork_event, join_event;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr data;
    size_t count;
    int status;
    unsigned char host[64];
    OK(cuStreamCreate(&a, 1));
    OK(cuStreamCreate(&b, 1));
    OK(cuEventCreate(&fork_event, 2));
    OK(cuEventCreate(&join_event, 2));
    OK(cuMemAlloc_v2(&data, 64));
    IS(900, cuStreamBeginCapture_v2(NULL, 0)); // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    IS(401, cuStreamEndCapture(a, &graph));    // CUDA_ERROR_ILLEGAL_STATE
    OK(cuStreamBeginCapture_v2(a, 2));
    IS(401, cuStreamBeginCapture_v2(a, 2));
    OK(cuStreamIsCapturing(a, &status));
    EQ(status, 1);
    OK(cuMemsetD32Async(data, 0x05050505, 8, a));
    OK(cuEventRecord(fork_event, a));
    OK(cuStreamWaitEvent(b, fork_event, 0));
    OK(cuStreamIsCapturing(b, &status));
    EQ(status, 1);
    spin(b, 1, 32, 1000);
    OK(cuLaunchHostFunc(b, host_call, (void *)100));
    OK(cuEventRecord(join_event, b));
    spin(a, 1, 32, 1000);
    OK(cuStreamWaitEvent(a, join_event, 0));
    OK(cuMemcpyDtoDAsync_v2(data + 32, data, 32, a));
    const CUgraphNode *after;
    uint64_t id;
    CUgraph under_way;
    OK(cuStreamGetCaptureInfo_v2(a, &status, &id, &under_way, &after, &count));
    TRUE(status == 1 && id != 0 && count == 1 && after[0]);
    OK(cuStreamEndCapture(a, &graph));
    TRUE(graph == under_way);
    OK(cuStreamIsCapturing(b, &status));
    EQ(status, 0);
    OK(cuGraphGetNodes(graph, NULL, &count));
    EQ(count, 5);
    EQ(host_calls, 0); // captured, not executed
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, a));
    OK(cuStreamSynchronize(a));
    OK(cuMemcpyDtoH_v2(host, data, 64));
    for (int i = 0; i < 64; i++) EQ(host[i], 5);
    EQ(host_calls, 100);
    // A branch that never comes back.
    OK(cuStreamBeginCapture_v2(a, 2));
    OK(cuEventRecord(fork_event, a));
    OK(cuStreamWaitEvent(b, fork_event, 0));
    spin(b, 1, 32, 1000);
    IS(904, cuStreamEndCapture(a, &graph)); // CUDA_ERROR_STREAM_CAPTURE_UNJOINED
    TRUE(!graph);
    // A question about an event of the capture spoils it.
    OK(cuStreamBeginCapture_v2(a, 2));
    OK(cuEventRecord(fork_event, a));
    IS(907, cuEventQuery(fork_event)); // CUDA_ERROR_CAPTURED_EVENT
    IS(901, cuStreamEndCapture(a, &graph));
    // Waiting for a capturing stream spoils the capture.
    OK(cuStreamBeginCapture_v2(a, 2));
    IS(900, cuStreamSynchronize(a));
    OK(cuStreamIsCapturing(a, &status));
    EQ(status, 2);
    IS(901, cuStreamEndCapture(a, &graph)); // CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    // So does an event from outside.
    CUevent outside;
    OK(cuEventCreate(&outside, 2));
    OK(cuEventRecord(outside, b));
    OK(cuStreamBeginCapture_v2(a, 2));
    IS(905, cuStreamWaitEvent(a, outside, 0)); // CUDA_ERROR_STREAM_CAPTURE_ISOLATION
    IS(901, cuStreamEndCapture(a, &graph));
    // Allocation and release in a capture.
    CUdeviceptr inside;
    OK(cuStreamBeginCapture_v2(a, 2));
    OK(cuMemAllocAsync(&inside, 1000, a));
    OK(cuMemsetD32Async(inside, 1, 10, a));
    OK(cuMemFreeAsync(inside, a));
    OK(cuStreamEndCapture(a, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, a));
    OK(cuGraphLaunch(exec, a));
    OK(cuStreamSynchronize(a));
}

// Nodes that record events count each launch.
static void events(void) {
    start();
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode first, kernel, second;
    CUevent begin, end;
    CUstream stream;
    float ms;
    uint64_t ns = 2000000;
    void *params[] = {&ns};
    KernelNode kn = {.func = function("partita_spin"), .grid = {1, 1, 1}, .block = {32, 1, 1}, .params = params};
    OK(cuEventCreate(&begin, 0));
    OK(cuEventCreate(&end, 0));
    OK(cuStreamCreate(&stream, 1));
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddEventRecordNode(&first, graph, NULL, 0, begin));
    OK(cuGraphAddKernelNode_v2(&kernel, graph, &first, 1, &kn));
    OK(cuGraphAddEventRecordNode(&second, graph, &kernel, 1, end));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 3; i++) {
        OK(cuGraphLaunch(exec, stream));
        IS(600, cuEventQuery(end));
        OK(cuEventSynchronize(end));
        OK(cuEventElapsedTime(&ms, begin, end));
        TRUE(ms > 2.0f && ms < 2.05f);
    }
}

// Memory and objects that live as long as a graph.
static volatile int destroyed;
static void destroy(void *data) { destroyed += (int)(intptr_t)data; }

CUresult cuDeviceGetGraphMemAttribute(int, int, void *), cuDeviceGraphMemTrim(int);

static void belongings(void) {
    start();
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode alloc, fill, release;
    size_t before, after, total;
    struct { PoolProps pool; void *access; size_t count, bytes; CUdeviceptr address; } node = {
        .pool = {.kind = 1, .location = {1, 0}}, .bytes = 5 * MIB};
    EQ(sizeof node, 120);
    OK(cuMemGetInfo_v2(&before, &total));
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &node));
    OK(cuMemGetInfo_v2(&after, &total));
    EQ(before - after, 6 * MIB);
    MemsetNode ms = {node.address, 0, 1, 1, 5 * MIB, 1};
    OK(cuGraphAddMemsetNode(&fill, graph, &alloc, 1, &ms, context));
    OK(cuGraphAddMemFreeNode(&release, graph, &fill, 1, node.address));
    // No node can be removed from a graph that allocates memory.
    IS(801, cuGraphDestroyNode(fill));
    IS(801, cuGraphRemoveDependencies(graph, &alloc, &fill, 1));
    void *object;
    IS(1, cuUserObjectCreate(&object, (void *)1, destroy, 1, 0));
    OK(cuUserObjectCreate(&object, (void *)1, destroy, 1, 1));
    OK(cuGraphRetainUserObject(graph, object, 1, 1)); // the graph's from now on
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    OK(cuGraphDestroy(graph));
    EQ(destroyed, 0); // the executable holds it
    OK(cuGraphExecDestroy(exec));
    EQ(destroyed, 1);
    // The device keeps it for other graphs until it is trimmed.
    unsigned long long kept[4];
    for (int i = 0; i < 4; i++) OK(cuDeviceGetGraphMemAttribute(0, i, &kept[i]));
    TRUE(kept[0] == 0 && kept[1] == 6 * MIB && kept[2] == 6 * MIB && kept[3] == 6 * MIB);
    OK(cuMemGetInfo_v2(&after, &total));
    EQ(before - after, 6 * MIB);
    OK(cuDeviceGraphMemTrim(0));
    OK(cuDeviceGetGraphMemAttribute(0, 2, &kept[2]));
    EQ(kept[2], 0);
    OK(cuMemGetInfo_v2(&after, &total));
    EQ(before, after);
    // The heap of kernels is memory too.
    OK(cuCtxSetLimit(2, (8 + 64) * MIB));
    OK(cuMemGetInfo_v2(&after, &total));
    EQ(before - after, 64 * MIB);
    IS(2, cuCtxSetLimit(2, total));
    OK(cuCtxSetLimit(2, 8 * MIB));
    OK(cuMemGetInfo_v2(&after, &total));
    EQ(before, after);
    CUevent event;
    OK(cuEventCreate(&event, 0));
    spin(NULL, 1, 32, 5000000);
    OK(cuCtxRecordEvent(context, event));
    IS(600, cuEventQuery(event));
    OK(cuEventSynchronize(event));
}


// The content of a descriptor at the callback.
static void came(int call, uint32_t valid, uint32_t word) {
    TRUE(call < seen.calls);
    EQ(seen.came[call].valid, valid);
    if (valid) EQ(seen.came[call].words[0], word);
}

static void off_and_on(CUgraphExec exec, CUgraphNode node) {
    OK(cuGraphNodeSetEnabled(exec, node, 0));
    OK(cuGraphNodeSetEnabled(exec, node, 1));
}

// A node's descriptor is built once, stored after the subscriber's change, and shown again when the node is updated.
static void kept(void) {
    start();
    subscribe();
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node, off;
    CUdeviceptr out;
    enum { BLOCKS = 264 };
    OK(cuMemAlloc_v2(&out, BLOCKS * sizeof(Record)));
    uint64_t ns = 1000;
    void *params[] = {&out, &ns};
    KernelNode kn = {.func = function("partita_census"), .grid = {BLOCKS, 1, 1}, .block = {1024, 1, 1},
                     .params = params};
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &kn));
    OK(cuGraphAddKernelNode_v2(&off, graph, &node, 1, &kn));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphNodeSetEnabled(exec, off, 0));
    memset(seen.mask, 0xff, 16);
    seen.mask[0] = ~3u;
    seen.write = 1;
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    EQ(sms(out, BLOCKS), 4);
    // A disabled node is shown too; the launch as a whole has a separate descriptor.
    EQ(seen.calls, 3);
    for (int call = 0; call < 3; call++) came(call, 0, 0);
    // After an update it comes with the mask that was written, and keeps it unless the subscriber writes another.
    seen.write = 0;
    off_and_on(exec, node);
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    EQ(seen.calls, 5);
    came(3, 1, ~3u);
    came(4, 0, 0);
    EQ(sms(out, BLOCKS), 4);
    // So does the one that was off when it was first shown.
    OK(cuGraphNodeSetEnabled(exec, node, 0));
    OK(cuGraphNodeSetEnabled(exec, off, 1));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    EQ(seen.calls, 7);
    came(5, 1, ~3u);
    EQ(sms(out, BLOCKS), 4);
    // Another mask takes the place of the former.
    seen.write = 1;
    seen.mask[0] = ~0xfu;
    off_and_on(exec, off);
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    came(7, 1, ~3u);
    EQ(sms(out, BLOCKS), 8);
    seen.write = 0;
    off_and_on(exec, off);
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    EQ(seen.calls, 11);
    came(9, 1, ~0xfu);
    EQ(sms(out, BLOCKS), 8);
    // Enabling an enabled node is not an update.
    OK(cuGraphNodeSetEnabled(exec, off, 1));
    OK(cuGraphLaunch(exec, NULL));
    EQ(seen.calls, 11);
    // The same parameters leave the descriptor, others make a new one.
    OK(cuGraphExecKernelNodeSetParams_v2(exec, off, &kn));
    off_and_on(exec, off);
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    EQ(seen.calls, 13);
    came(11, 1, ~0xfu);
    EQ(sms(out, BLOCKS), 8);
    kn.grid[0] = BLOCKS / 2;
    OK(cuGraphExecKernelNodeSetParams_v2(exec, off, &kn));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    EQ(seen.calls, 14);
    came(13, 0, 0);
    EQ(sms(out, BLOCKS / 2), 132);
    // Another executable of the graph has separate descriptors, and so has every plain launch.
    CUgraphExec second;
    OK(cuGraphInstantiateWithFlags(&second, graph, 0));
    seen.write = 1;
    OK(cuGraphUpload(second, NULL));
    EQ(seen.calls, 17);
    OK(cuLaunchKernel(kn.func, BLOCKS, 1, 1, 1024, 1, 1, 0, NULL, params, NULL));
    OK(cuLaunchKernel(kn.func, BLOCKS, 1, 1, 1024, 1, 1, 0, NULL, params, NULL));
    OK(cuCtxSynchronize());
    EQ(seen.calls, 19);
    for (int call = 14; call < 19; call++) came(call, 0, 0);
}

CASES({"belongings", belongings}, {"by_hand", by_hand}, {"branches", branches}, {"masks", masks}, {"nested", nested}, {"capture", capture}, {"events", events}, {"kept", kept})
