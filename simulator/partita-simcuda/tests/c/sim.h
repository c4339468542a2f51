// The part of the driver API that the test programs use, declared by hand, and their checks.
#ifndef SIM_H
#define SIM_H

#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct ctx *CUcontext;
typedef struct mod *CUmodule;
typedef struct fn *CUfunction;
typedef struct st *CUstream;
typedef struct ev *CUevent;
typedef struct arr *CUarray;
typedef struct mip *CUmipmappedArray;
typedef struct lib *CUlibrary;
typedef struct ker *CUkernel;
typedef struct pool *CUmemoryPool;
typedef struct gr *CUgraph;
typedef struct gn *CUgraphNode;
typedef struct ge *CUgraphExec;
typedef uint64_t CUmem;

typedef struct { unsigned char bytes[16]; } CUuuid;
typedef struct { char reserved[64]; } CUipcHandle;
typedef struct { int kind, id; } Location;
typedef struct { int kind, handles; Location location; void *win32; unsigned char flags[8]; } MemProp;
typedef struct { Location location; int flags; } AccessDesc;
typedef struct { int kind, handles; Location location; void *win32; size_t max; unsigned char rest[56]; } PoolProps;
typedef struct { int id; char pad[4]; union { int value; unsigned dim[3]; char size[64]; } u; } Attribute;
typedef struct { unsigned grid[3], block[3], shared; CUstream stream; Attribute *attrs; unsigned count; } Config;
typedef struct { size_t width, height; int format; unsigned channels; } ArrayDesc;
typedef struct { size_t width, height, depth; int format; unsigned channels, flags; } Array3Desc;
typedef struct {
    size_t src_x, src_y; int src_kind; const void *src_host; CUdeviceptr src; CUarray src_array; size_t src_pitch;
    size_t dst_x, dst_y; int dst_kind; void *dst_host; CUdeviceptr dst; CUarray dst_array; size_t dst_pitch;
    size_t width, height;
} Copy2D;
typedef struct {
    size_t src_x, src_y, src_z, src_lod; int src_kind; const void *src_host; CUdeviceptr src; CUarray src_array;
    void *r0; size_t src_pitch, src_height;
    size_t dst_x, dst_y, dst_z, dst_lod; int dst_kind; void *dst_host; CUdeviceptr dst; CUarray dst_array;
    void *r1; size_t dst_pitch, dst_height;
    size_t width, height, depth;
} Copy3D;
typedef struct {
    CUfunction func; unsigned grid[3], block[3], shared; void **params; void **extra; CUkernel kern; CUcontext ctx;
} KernelNode;
typedef struct { CUdeviceptr dst; size_t pitch; unsigned value, size; size_t width, height; } MemsetNode;
typedef struct { void (*fn)(void *); void *data; } HostNode;
typedef struct { uint64_t smid, start, stop, block; } Record;

CUresult cuInit(unsigned);
CUresult cuDriverGetVersion(int *);
CUresult cuGetErrorName(CUresult, const char **);
CUresult cuGetErrorString(CUresult, const char **);
CUresult cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);
CUresult cuGetExportTable(const void **, const CUuuid *);
CUresult cuDeviceGetCount(int *);
CUresult cuDeviceGet(CUdevice *, int);
CUresult cuDeviceGetName(char *, int, CUdevice);
CUresult cuDeviceGetUuid_v2(CUuuid *, CUdevice);
CUresult cuDeviceTotalMem_v2(size_t *, CUdevice);
CUresult cuDeviceGetAttribute(int *, int, CUdevice);
CUresult cuDeviceGetPCIBusId(char *, int, CUdevice);
CUresult cuDeviceGetByPCIBusId(CUdevice *, const char *);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice);
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned *, int *);
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice, unsigned);
CUresult cuCtxCreate_v2(CUcontext *, unsigned, CUdevice);
CUresult cuCtxCreate_v3(CUcontext *, void *, int, unsigned, CUdevice);
CUresult cuCtxCreate_v4(CUcontext *, void *, unsigned, CUdevice);
CUresult cuCtxDestroy_v2(CUcontext);
CUresult cuCtxPushCurrent_v2(CUcontext);
CUresult cuCtxPopCurrent_v2(CUcontext *);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxGetCurrent(CUcontext *);
CUresult cuCtxGetDevice(CUdevice *);
CUresult cuCtxSynchronize(void);
CUresult cuCtxGetApiVersion(CUcontext, unsigned *);
CUresult cuCtxGetLimit(size_t *, int);
CUresult cuCtxSetLimit(int, size_t);
CUresult cuCtxGetStreamPriorityRange(int *, int *);
CUresult cuStreamCreate(CUstream *, unsigned);
CUresult cuStreamCreateWithPriority(CUstream *, unsigned, int);
CUresult cuStreamDestroy_v2(CUstream);
CUresult cuStreamSynchronize(CUstream);
CUresult cuStreamQuery(CUstream);
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned);
CUresult cuStreamGetPriority(CUstream, int *);
CUresult cuStreamGetFlags(CUstream, unsigned *);
CUresult cuStreamGetCtx(CUstream, CUcontext *);
CUresult cuStreamAddCallback(CUstream, void (*)(CUstream, CUresult, void *), void *, unsigned);
CUresult cuLaunchHostFunc(CUstream, void (*)(void *), void *);
CUresult cuStreamWaitValue32_v2(CUstream, CUdeviceptr, uint32_t, unsigned);
CUresult cuStreamWriteValue32_v2(CUstream, CUdeviceptr, uint32_t, unsigned);
CUresult cuStreamBeginCapture_v2(CUstream, int);
CUresult cuStreamEndCapture(CUstream, CUgraph *);
CUresult cuStreamIsCapturing(CUstream, int *);
CUresult cuStreamGetCaptureInfo_v2(CUstream, int *, uint64_t *, CUgraph *, const CUgraphNode **, size_t *);
CUresult cuEventCreate(CUevent *, unsigned);
CUresult cuEventRecord(CUevent, CUstream);
CUresult cuEventQuery(CUevent);
CUresult cuEventSynchronize(CUevent);
CUresult cuEventElapsedTime(float *, CUevent, CUevent);
CUresult cuEventDestroy_v2(CUevent);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemAllocPitch_v2(CUdeviceptr *, size_t *, size_t, size_t, unsigned);
CUresult cuMemAllocManaged(CUdeviceptr *, size_t, unsigned);
CUresult cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuMemGetAddressRange_v2(CUdeviceptr *, size_t *, CUdeviceptr);
CUresult cuPointerGetAttribute(void *, int, CUdeviceptr);
CUresult cuPointerGetAttributes(unsigned, int *, void **, CUdeviceptr);
CUresult cuMemAllocHost_v2(void **, size_t);
CUresult cuMemHostAlloc(void **, size_t, unsigned);
CUresult cuMemFreeHost(void *);
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *, void *, unsigned);
CUresult cuMemHostRegister_v2(void *, size_t, unsigned);
CUresult cuMemHostUnregister(void *);
CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *, CUdevice);
CUresult cuMemPoolCreate(CUmemoryPool *, const PoolProps *);
CUresult cuMemPoolDestroy(CUmemoryPool);
CUresult cuMemPoolTrimTo(CUmemoryPool, size_t);
CUresult cuMemPoolSetAttribute(CUmemoryPool, int, void *);
CUresult cuMemPoolGetAttribute(CUmemoryPool, int, void *);
CUresult cuMemCreate(CUmem *, size_t, const MemProp *, uint64_t);
CUresult cuMemRelease(CUmem);
CUresult cuMemRetainAllocationHandle(CUmem *, void *);
CUresult cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr, uint64_t);
CUresult cuMemAddressFree(CUdeviceptr, size_t);
CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmem, uint64_t);
CUresult cuMemUnmap(CUdeviceptr, size_t);
CUresult cuMemSetAccess(CUdeviceptr, size_t, const AccessDesc *, size_t);
CUresult cuMemGetAllocationGranularity(size_t *, const MemProp *, int);
CUresult cuMemExportToShareableHandle(void *, CUmem, int, uint64_t);
CUresult cuMemImportFromShareableHandle(CUmem *, void *, int);
CUresult cuIpcGetMemHandle(CUipcHandle *, CUdeviceptr);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *, CUipcHandle, unsigned);
CUresult cuIpcCloseMemHandle(CUdeviceptr);
CUresult cuIpcGetEventHandle(CUipcHandle *, CUevent);
CUresult cuIpcOpenEventHandle(CUevent *, CUipcHandle);
CUresult cuArrayCreate_v2(CUarray *, const ArrayDesc *);
CUresult cuArray3DCreate_v2(CUarray *, const Array3Desc *);
CUresult cuArray3DGetDescriptor_v2(Array3Desc *, CUarray);
CUresult cuArrayDestroy(CUarray);
CUresult cuMipmappedArrayCreate(CUmipmappedArray *, const Array3Desc *, unsigned);
CUresult cuMipmappedArrayGetLevel(CUarray *, CUmipmappedArray, unsigned);
CUresult cuMipmappedArrayDestroy(CUmipmappedArray);
CUresult cuMemcpy(CUdeviceptr, CUdeviceptr, size_t);
CUresult cuMemcpyHtoD_v2(CUdeviceptr, const void *, size_t);
CUresult cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
CUresult cuMemcpyDtoD_v2(CUdeviceptr, CUdeviceptr, size_t);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr, const void *, size_t, CUstream);
CUresult cuMemcpyDtoHAsync_v2(void *, CUdeviceptr, size_t, CUstream);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, size_t, CUstream);
CUresult cuMemcpy2D_v2(const Copy2D *);
CUresult cuMemcpy3D_v2(const Copy3D *);
CUresult cuMemsetD8_v2(CUdeviceptr, unsigned char, size_t);
CUresult cuMemsetD16_v2(CUdeviceptr, unsigned short, size_t);
CUresult cuMemsetD32_v2(CUdeviceptr, unsigned, size_t);
CUresult cuMemsetD2D8_v2(CUdeviceptr, size_t, unsigned char, size_t, size_t);
CUresult cuMemsetD32Async(CUdeviceptr, unsigned, size_t, CUstream);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleLoad(CUmodule *, const char *);
CUresult cuModuleUnload(CUmodule);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuModuleGetGlobal_v2(CUdeviceptr *, size_t *, CUmodule, const char *);
CUresult cuLibraryLoadData(CUlibrary *, const void *, void *, void *, unsigned, void *, void *, unsigned);
CUresult cuLibraryGetKernel(CUkernel *, CUlibrary, const char *);
CUresult cuLibraryGetModule(CUmodule *, CUlibrary);
CUresult cuLibraryUnload(CUlibrary);
CUresult cuKernelGetFunction(CUfunction *, CUkernel);
CUresult cuFuncGetAttribute(int *, int, CUfunction);
CUresult cuFuncSetAttribute(CUfunction, int, int);
CUresult cuFuncGetParamInfo(CUfunction, size_t, size_t *, size_t *);
CUresult cuFuncGetModule(CUmodule *, CUfunction);
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *, CUfunction, int, size_t);
CUresult cuOccupancyMaxPotentialBlockSize(int *, int *, CUfunction, void *, size_t, int);
CUresult cuOccupancyMaxActiveClusters(int *, CUfunction, const Config *);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                        void **, void **);
CUresult cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             CUstream, void **, void **);
CUresult cuLaunchKernelEx(const Config *, CUfunction, void **, void **);
CUresult cuLaunchCooperativeKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                   CUstream, void **);
CUresult cuGraphCreate(CUgraph *, unsigned);
CUresult cuGraphDestroy(CUgraph);
CUresult cuGraphClone(CUgraph *, CUgraph);
CUresult cuGraphAddKernelNode_v2(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const KernelNode *);
CUresult cuGraphAddMemcpyNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const Copy3D *, CUcontext);
CUresult cuGraphAddMemsetNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const MemsetNode *, CUcontext);
CUresult cuGraphAddHostNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const HostNode *);
CUresult cuGraphAddEmptyNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t);
CUresult cuGraphAddChildGraphNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph);
CUresult cuGraphAddEventRecordNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUevent);
CUresult cuGraphAddDependencies(CUgraph, const CUgraphNode *, const CUgraphNode *, size_t);
CUresult cuGraphGetNodes(CUgraph, CUgraphNode *, size_t *);
CUresult cuGraphGetEdges(CUgraph, CUgraphNode *, CUgraphNode *, size_t *);
CUresult cuGraphNodeGetType(CUgraphNode, int *);
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode, KernelNode *);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, uint64_t);
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec, CUgraphNode, const KernelNode *);
CUresult cuGraphExecUpdate_v2(CUgraphExec, CUgraph, void *);
CUresult cuGraphNodeSetEnabled(CUgraphExec, CUgraphNode, unsigned);
CUresult cuGraphNodeGetEnabled(CUgraphExec, CUgraphNode, unsigned *);
CUresult cuGraphUpload(CUgraphExec, CUstream);
CUresult cuGraphLaunch(CUgraphExec, CUstream);
CUresult cuGraphExecDestroy(CUgraphExec);

CUresult cuFuncSetBlockShape(CUfunction, int, int, int);
CUresult cuParamSetSize(CUfunction, unsigned);
CUresult cuParamSetv(CUfunction, int, void *, unsigned);
CUresult cuLaunchGrid(CUfunction, int, int);
CUresult cuLinkCreate_v2(unsigned, void *, void *, void **);
CUresult cuLinkAddData_v2(void *, int, void *, size_t, const char *, unsigned, void *, void *);
CUresult cuLinkComplete(void *, const void **, size_t *);
CUresult cuLinkDestroy(void *);
CUresult cuGraphAddMemAllocNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, void *);
CUresult cuGraphAddMemFreeNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr);
CUresult cuGraphDestroyNode(CUgraphNode);
CUresult cuGraphRemoveDependencies(CUgraph, const CUgraphNode *, const CUgraphNode *, size_t);
CUresult cuUserObjectCreate(void **, void *, void (*)(void *), unsigned, unsigned);
CUresult cuGraphRetainUserObject(CUgraph, void *, unsigned, unsigned);
CUresult cuCtxRecordEvent(CUcontext, CUevent);
CUresult cuTexObjectDestroy(uint64_t);

#define MIB (1ull << 20)
#define GIB (1ull << 30)

static inline const char *error_name(CUresult code) {
    const char *name = NULL;
    cuGetErrorName(code, &name);
    return name ? name : "unknown";
}

// Expects a result.
#define IS(wanted, call)                                                                                  \
    do {                                                                                                  \
        CUresult got_ = (call);                                                                           \
        if (got_ != (wanted)) {                                                                           \
            fprintf(stderr, "%s:%d: %s is %s (%d), not %s (%d)\n", __FILE__, __LINE__, #call,              \
                    error_name(got_), got_, error_name(wanted), (int)(wanted));                           \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)
#define OK(call) IS(0, call)
#define TRUE(condition)                                                                                   \
    do {                                                                                                  \
        if (!(condition)) {                                                                               \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                       \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)
#define EQ(a, b)                                                                                          \
    do {                                                                                                  \
        long long a_ = (long long)(a), b_ = (long long)(b);                                               \
        if (a_ != b_) {                                                                                   \
            fprintf(stderr, "%s:%d: %s is %lld, %s is %lld\n", __FILE__, __LINE__, #a, a_, #b, b_);       \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)

// The kernels that the simulator knows by name, of which it reads entries and parameters, and one more.
static const char PTX[] =
    ".version 6.0\n.target sm_30\n.address_size 64\n"
    ".visible .global .align 8 .b8 table[64];\n"
    ".visible .entry partita_spin(.param .u64 a){ret;}\n"
    ".visible .entry partita_census(.param .u64 a,.param .u64 b){ret;}\n"
    ".visible .entry partita_copy(.param .u64 a,.param .u64 b,.param .u64 c){ret;}\n"
    ".visible .entry partita_fma(.param .u64 a,.param .u64 b,.param .u64 c,.param .u64 d,.param .u64 e,"
    ".param .u32 f){ret;}\n"
    ".visible .entry partita_matmul(.param .u64 a,.param .u64 b,.param .u64 c,.param .u32 d){ret;}\n"
    ".visible .entry stranger(.param .u32 n,.param .align 8 .b8 s[24]){ret;}\n";

static CUcontext context;
static CUmodule module;

static inline CUfunction function(const char *name) {
    CUfunction found;
    OK(cuModuleGetFunction(&found, module, name));
    return found;
}

// Init, context, module.
static inline void start(void) {
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuModuleLoadData(&module, PTX));
}

static inline CUresult try_spin(CUstream stream, unsigned blocks, unsigned threads, uint64_t ns) {
    void *params[] = {&ns};
    return cuLaunchKernel(function("partita_spin"), blocks, 1, 1, threads, 1, 1, 0, stream, params, NULL);
}

static inline void spin(CUstream stream, unsigned blocks, unsigned threads, uint64_t ns) {
    OK(try_spin(stream, blocks, threads, ns));
}

// Launches a census on a stream and returns how many different SMs its blocks ran on.
static inline int census(CUstream stream, unsigned blocks, unsigned threads, uint64_t ns, Record *records) {
    CUdeviceptr out;
    OK(cuMemAlloc_v2(&out, blocks * sizeof(Record)));
    OK(cuMemsetD8_v2(out, 0, blocks * sizeof(Record)));
    OK(cuCtxSynchronize());
    void *params[] = {&out, &ns};
    OK(cuLaunchKernel(function("partita_census"), blocks, 1, 1, threads, 1, 1, 0, stream, params, NULL));
    OK(cuStreamSynchronize(stream));
    Record *found = records ? records : malloc(blocks * sizeof(Record));
    OK(cuMemcpyDtoH_v2(found, out, blocks * sizeof(Record)));
    OK(cuMemFree_v2(out));
    char seen[512] = {0};
    int count = 0;
    for (unsigned i = 0; i < blocks; i++) {
        EQ(found[i].block, i + 1);
        TRUE(found[i].smid < 512 && found[i].stop - found[i].start == ns);
        count += !seen[found[i].smid];
        seen[found[i].smid] = 1;
    }
    if (!records) free(found);
    return count;
}

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

// Runs the case that the command line names.
#define CASES(...)                                                                                        \
    int main(int argc, char **argv) {                                                                     \
        struct { const char *name; void (*run)(void); } cases[] = {__VA_ARGS__};                          \
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)                                         \
            if (argc == 2 && !strcmp(argv[1], cases[i].name)) return cases[i].run(), 0;                   \
        fprintf(stderr, "no such case\n");                                                                \
        return 2;                                                                                         \
    }

#endif
