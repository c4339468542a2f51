// Green contexts.
#include "watch.h"

typedef struct gc *CUgreenCtx;
typedef struct rd *CUdevResourceDesc;
typedef struct { int kind; unsigned char internal[92]; unsigned sms, least, together; unsigned char rest[36]; } Resource;

CUresult cuDeviceGetDevResource(CUdevice, Resource *, int);
CUresult cuCtxGetDevResource(CUcontext, Resource *, int);
CUresult cuGreenCtxGetDevResource(CUgreenCtx, Resource *, int);
CUresult cuDevSmResourceSplitByCount(Resource *, unsigned *, const Resource *, Resource *, unsigned, unsigned);
CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *, Resource *, unsigned);
CUresult cuGreenCtxCreate(CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned);
CUresult cuGreenCtxDestroy(CUgreenCtx);
CUresult cuCtxFromGreenCtx(CUcontext *, CUgreenCtx);
CUresult cuGreenCtxStreamCreate(CUstream *, CUgreenCtx, unsigned, int);
CUresult cuGreenCtxRecordEvent(CUgreenCtx, CUevent);
CUresult cuGreenCtxWaitEvent(CUgreenCtx, CUevent);
CUresult cuStreamGetGreenCtx(CUstream, CUgreenCtx *);
CUresult cuGreenCtxGetId(CUgreenCtx, unsigned long long *);
CUresult cuStreamGetCtx(CUstream, CUcontext *);
CUresult cuStreamGetCtx_v2(CUstream, CUcontext *, CUgreenCtx *);

static Resource whole, groups[80], rest;

static unsigned split(unsigned wanted, unsigned flags) {
    unsigned count = 0, again = 80;
    OK(cuDevSmResourceSplitByCount(NULL, &count, &whole, NULL, flags, wanted));
    OK(cuDevSmResourceSplitByCount(groups, &again, &whole, &rest, flags, wanted));
    EQ(count, again);
    return count;
}

static CUgreenCtx make(Resource *of, unsigned count) {
    CUdevResourceDesc description;
    CUgreenCtx green;
    OK(cuDevResourceGenerateDesc(&description, of, count));
    IS(1, cuGreenCtxCreate(&green, description, 0, 0));
    OK(cuGreenCtxCreate(&green, description, 0, 1));
    return green;
}

static CUcontext primary;

// The module is in the primary context, which green contexts share.
static void begin(void) {
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    OK(cuModuleLoadData(&module, PTX));
    OK(cuDeviceGetDevResource(0, &whole, 1));
}

static void splits(void) {
    begin();
    IS(914, cuDeviceGetDevResource(0, &rest, 7)); // CUDA_ERROR_INVALID_RESOURCE_TYPE
    IS(101, cuDeviceGetDevResource(3, &rest, 1));
    TRUE(whole.kind == 1 && whole.sms == 132 && whole.least == 8 && whole.together == 8);
    static const unsigned asked[][2] = {{8, 0}, {16, 0}, {34, 0}, {2, 1}, {16, 1}, {34, 1}};
    for (int i = 0; i < 6; i++) {
        unsigned count = split(asked[i][0], asked[i][1]);
        printf("%u %u: %u of %u, %u\n", asked[i][0], asked[i][1], count, groups[0].sms, rest.sms);
    }
    unsigned count = 2;
    OK(cuDevSmResourceSplitByCount(groups, &count, &whole, &rest, 0, 8));
    TRUE(count == 2 && rest.sms == 116);
    IS(915, cuDevSmResourceSplitByCount(groups, &count, &groups[0], NULL, 0, 8)); // a part cannot be split again
    IS(1, cuDevSmResourceSplitByCount(groups, &count, &whole, NULL, 8, 8));
    IS(1, cuDevSmResourceSplitByCount(groups, &count, &whole, NULL, 0, 133));
    count = 0;
    IS(1, cuDevSmResourceSplitByCount(groups, &count, &whole, NULL, 0, 8));
    CUdevResourceDesc description;
    Resource wild = {0};
    IS(914, cuDevResourceGenerateDesc(&description, &wild, 1));
    IS(1, cuDevResourceGenerateDesc(&description, &whole, 0));
    Resource two[2] = {groups[0], whole};
    IS(915, cuDevResourceGenerateDesc(&description, two, 2));
    CUgreenCtx green;
    IS(1, cuGreenCtxCreate(&green, NULL, 0, 1));
}

static uint64_t tpcs[4];

static int run(CUstream stream, unsigned blocks) {
    Record records[1056];
    int sms = census(stream, blocks, 1024, 2000, records);
    memset(tpcs, 0, sizeof tpcs);
    for (unsigned i = 0; i < blocks; i++) tpcs[records[i].smid / 2 / 64] |= 1ull << records[i].smid / 2 % 64;
    return sms;
}

static void contexts(void) {
    begin();
    EQ(split(16, 0), 8);
    CUgreenCtx one = make(&groups[0], 1), other = make(&groups[1], 2), found, all;
    CUcontext as_context, context_of;
    CUstream a, b, plain, inside;
    IS(1, cuGreenCtxStreamCreate(&a, one, 0, 0)); // must not block
    OK(cuGreenCtxStreamCreate(&a, one, 1, 0));
    OK(cuGreenCtxStreamCreate(&b, other, 1, -3));
    OK(cuStreamCreate(&plain, 1));
    uint64_t first[4];
    EQ(run(a, 528), 16);
    memcpy(first, tpcs, sizeof first);
    EQ(run(b, 528), 32);
    TRUE(!(first[0] & tpcs[0]) && !(first[1] & tpcs[1]));
    EQ(run(plain, 528), 132);
    EQ(run(NULL, 528), 132);
    // Occupancy sees it: eight TPCs, in one GPC at least four.
    int clusters;
    Attribute cluster = {.id = 4, .u.dim = {2, 1, 1}};
    Config config = {{64, 1, 1}, {1024, 1, 1}, 0, a, &cluster, 1};
    OK(cuOccupancyMaxActiveClusters(&clusters, function("partita_spin"), &config));
    EQ(clusters, 16);
    config.stream = plain;
    OK(cuOccupancyMaxActiveClusters(&clusters, function("partita_spin"), &config));
    EQ(clusters, 132);
    // Nothing of it shows in the structure.
    for (int i = 0; i < 5; i++) EQ(*(uint32_t *)(*(char **)a + 0x51c + 4 * i), 0);
    // As a context it has a default stream and streams that are held to the same SMs, and shares memory and modules.
    OK(cuCtxFromGreenCtx(&as_context, one));
    TRUE(as_context != primary);
    OK(cuCtxPushCurrent_v2(as_context));
    EQ(run(NULL, 528), 16);
    TRUE(!memcmp(first, tpcs, sizeof first));
    OK(cuStreamCreate(&inside, 0));
    EQ(run(inside, 528), 16);
    OK(cuStreamGetGreenCtx(inside, &found));
    TRUE(found == one);
    CUdeviceptr memory;
    OK(cuMemAlloc_v2(&memory, 4096));
    CUmodule second;
    CUfunction there;
    OK(cuModuleLoadData(&second, PTX));
    OK(cuModuleGetFunction(&there, second, "partita_spin"));
    Resource own;
    OK(cuCtxGetDevResource(as_context, &own, 1));
    EQ(own.sms, 16);
    OK(cuGreenCtxGetDevResource(other, &own, 1));
    EQ(own.sms, 32);
    unsigned count = 80;
    OK(cuDevSmResourceSplitByCount(groups, &count, &own, &rest, 0, 8)); // a context's SMs can be split
    TRUE(count >= 2 && groups[0].sms == 8);
    OK(cuCtxPopCurrent_v2(NULL));
    OK(cuStreamGetGreenCtx(plain, &found));
    TRUE(!found);
    OK(cuStreamGetCtx(a, &context_of));
    TRUE(context_of == as_context);
    OK(cuStreamGetCtx_v2(a, &context_of, &found));
    TRUE(context_of == primary && found == one);
    unsigned long long id, id2;
    OK(cuGreenCtxGetId(one, &id));
    OK(cuGreenCtxGetId(other, &id2));
    TRUE(id != id2);
    // Events order green contexts.
    CUevent event;
    OK(cuEventCreate(&event, 0));
    spin(a, 1, 32, 3000000);
    OK(cuGreenCtxRecordEvent(one, event));
    OK(cuGreenCtxWaitEvent(other, event));
    spin(b, 1, 32, 1000);
    OK(cuStreamSynchronize(b));
    OK(cuEventQuery(event));
    OK(cuStreamSynchronize(a));
    // Made before the subscription they go on, and their launches come with a valid mask that can be replaced.
    all = make(&whole, 1);
    subscribe();
    CUdevResourceDesc description;
    OK(cuDevResourceGenerateDesc(&description, &whole, 1));
    IS(801, cuGreenCtxCreate(&found, description, 0, 1));
    EQ(run(a, 528), 16);
    TRUE(seen.last[0] >> 31 == 1 && seen.last[79] == 0);
    unsigned enabled = 0;
    for (int i = 0; i < 3; i++) enabled += 32 - (unsigned)__builtin_popcount(seen.last[76 + i]);
    EQ(enabled, 8); // numbers that stand for nothing are disabled as well, as far as words have others
    EQ(run(plain, 528), 132);
    EQ(seen.last[0] >> 31, 0);
    uint32_t mask[5] = {1, ~0u, ~1u, ~0u, ~0u};
    memcpy(*(char **)a + 0x51c, mask, sizeof mask);
    EQ(run(a, 64), 2);
    TRUE(tpcs[0] == 1ull << 32);
    memset(*(char **)a + 0x51c, 0, sizeof mask);
    memset(seen.mask, 0xff, 16);
    seen.mask[0] = ~3u;
    seen.write = 1;
    EQ(run(b, 64), 4);
    seen.write = 0;
    EQ(run(b, 528), 32);
    // A graph captured on a green context's stream is held to its SMs wherever it is launched.
    CUgraph graph;
    CUgraphExec exec;
    uint64_t ns = 2000;
    CUdeviceptr out;
    OK(cuMemAlloc_v2(&out, 528 * sizeof(Record)));
    void *params[] = {&out, &ns};
    OK(cuStreamBeginCapture_v2(b, 0));
    OK(cuLaunchKernel(function("partita_census"), 528, 1, 1, 1024, 1, 1, 0, b, params, NULL));
    OK(cuStreamEndCapture(b, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, plain));
    OK(cuStreamSynchronize(plain));
    Record records[528];
    OK(cuMemcpyDtoH_v2(records, out, sizeof records));
    char met[132] = {0};
    int sms = 0;
    for (int i = 0; i < 528; i++) sms += !met[records[i].smid], met[records[i].smid] = 1;
    EQ(sms, 32);
    // After a green context is destroyed, its streams are unusable; other objects that were created in it remain.
    OK(cuStreamDestroy_v2(inside));
    OK(cuGreenCtxDestroy(one));
    IS(709, cuStreamSynchronize(a)); // CUDA_ERROR_CONTEXT_IS_DESTROYED
    IS(709, cuStreamDestroy_v2(a));
    IS(709, cuGreenCtxDestroy(one));
    IS(201, cuGreenCtxDestroy((CUgreenCtx)8));
    IS(201, cuCtxSetCurrent(as_context));
    void *spin_params[] = {&ns};
    OK(cuLaunchKernel(there, 1, 1, 1, 32, 1, 1, 0, plain, spin_params, NULL));
    OK(cuMemFree_v2(memory));
    OK(cuStreamDestroy_v2(b));
    OK(cuGreenCtxDestroy(other));
    OK(cuGreenCtxDestroy(all));
    OK(cuCtxSynchronize());
    OK(cuDevicePrimaryCtxRelease_v2(0));
}

// 66 contexts of one TPC each make up the device.
static void finest(void) {
    begin();
    EQ(split(2, 1), 66);
    uint64_t all[4] = {0};
    for (int i = 0; i < 66; i++) {
        CUgreenCtx green = make(&groups[i], 1);
        CUstream stream;
        OK(cuGreenCtxStreamCreate(&stream, green, 1, 0));
        EQ(run(stream, 8), 2);
        TRUE(!(all[0] & tpcs[0]) && !(all[1] & tpcs[1]));
        all[0] |= tpcs[0];
        all[1] |= tpcs[1];
        OK(cuStreamDestroy_v2(stream));
        OK(cuGreenCtxDestroy(green));
    }
    TRUE(all[0] == ~0ull && all[1] == 3);
}

// A driver from before they were invented.
static void old(void) {
    OK(cuInit(0));
    IS(801, cuDeviceGetDevResource(0, &whole, 1));
    unsigned count = 1;
    IS(801, cuDevSmResourceSplitByCount(groups, &count, &whole, NULL, 0, 8));
    void *address;
    int status;
    OK(cuGetProcAddress_v2("cuDeviceGetDevResource", &address, 13000, 0, &status));
    TRUE(!address && status == 2); // CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
}

CASES({"splits", splits}, {"contexts", contexts}, {"finest", finest}, {"old", old})
