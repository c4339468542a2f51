//! The prototypes of libcuda's calls, as `cuda.h` declares them: the only place where Partita has
//! them.
//!
//! The hook's rows, the driver crate's calls and the simulated driver's functions come from this
//! table, so none of them compiles with another type than the others have. Exports with the same
//! type, such as the versions of a call for either default stream, share a row. The table has the
//! calls that one of the three knows; [`crate::exports`] has the names of all.
//!
//! [`prototype!`](crate::prototype) hands the arguments of a call to another macro. The type
//! aliases of this module are pointers to the calls.
#![allow(non_camel_case_types)] // The driver's own names.

use crate::CuResult;
use crate::types::*;

/// The type of a pointer to a call with these arguments.
macro_rules! pointer {
    (($($argument:ident: $type:ty),* $(,)?)) => {
        unsafe extern "C" fn($(Raw<$type>),*) -> CuResult
    };
}

macro_rules! prototypes {
    ($d:tt $($($name:ident)+ = fn $arguments:tt;)*) => {
        $($(
            #[doc = concat!("A pointer to `", stringify!($name), "`, whose arguments are [`Raw`].")]
            pub type $name = pointer!($arguments);
        )+)*

        /// `prototype!(NAME => MACRO! { TOKENS })` is `MACRO! { (ARGUMENTS) TOKENS }`, where the
        /// arguments are those of the driver's call of that name: `argument: type, …`.
        ///
        /// The types are those of [`types`](crate::types), which the caller imports.
        #[macro_export]
        macro_rules! prototype {
            $($(
                ($name => $d then:ident! { $d($d tokens:tt)* }) => {
                    $d then! { $arguments $d($d tokens)* }
                };
            )+)*
        }
    };
}

prototypes! { $
    // the driver
    cuInit = fn(flags: u32);
    cuDriverGetVersion = fn(version: *mut i32);
    cuGetErrorString = fn(error: CuResult, string: *mut *const c_char);
    cuGetErrorName = fn(error: CuResult, string: *mut *const c_char);
    cuGetProcAddress = fn(
        symbol: *const c_char, function: *mut *mut c_void, version: i32, flags: u64,
    );
    cuGetProcAddress_v2 = fn(
        symbol: *const c_char, function: *mut *mut c_void, version: i32, flags: u64,
        status: *mut u32,
    );
    cuGetExportTable = fn(table: *mut *const c_void, id: *const CUuuid);
    // devices
    cuDeviceGetCount = fn(count: *mut i32);
    cuDeviceGet = fn(device: *mut CUdevice, ordinal: i32);
    cuDeviceGetName = fn(name: *mut c_char, length: i32, device: CUdevice);
    cuDeviceGetUuid cuDeviceGetUuid_v2 = fn(uuid: *mut CUuuid, device: CUdevice);
    cuDeviceTotalMem = fn(bytes: *mut u32, device: CUdevice);
    cuDeviceTotalMem_v2 = fn(bytes: *mut usize, device: CUdevice);
    cuDeviceGetAttribute = fn(value: *mut i32, attribute: CUdevice_attribute, device: CUdevice);
    cuDeviceGetByPCIBusId = fn(device: *mut CUdevice, bus: *const c_char);
    cuDeviceGetPCIBusId = fn(bus: *mut c_char, length: i32, device: CUdevice);
    cuDeviceCanAccessPeer = fn(can: *mut i32, device: CUdevice, peer: CUdevice);
    cuDeviceGetP2PAttribute = fn(value: *mut i32, attribute: u32, from: CUdevice, to: CUdevice);
    // primary contexts
    cuDevicePrimaryCtxRetain = fn(context: *mut CUcontext, device: CUdevice);
    cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2 = fn(device: CUdevice);
    cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2 = fn(device: CUdevice);
    cuDevicePrimaryCtxSetFlags_v2 = fn(device: CUdevice, flags: u32);
    cuDevicePrimaryCtxGetState = fn(device: CUdevice, flags: *mut u32, active: *mut i32);
    // contexts
    cuCtxCreate cuCtxCreate_v2 = fn(context: *mut CUcontext, flags: u32, device: CUdevice);
    cuCtxCreate_v3 = fn(
        context: *mut CUcontext, affinities: *mut CUexecAffinityParam, count: i32, flags: u32,
        device: CUdevice,
    );
    cuCtxCreate_v4 = fn(
        context: *mut CUcontext, parameters: *mut CUctxCreateParams, flags: u32, device: CUdevice,
    );
    cuCtxDestroy cuCtxDestroy_v2 = fn(context: CUcontext);
    cuCtxPushCurrent_v2 = fn(context: CUcontext);
    cuCtxPopCurrent_v2 = fn(context: *mut CUcontext);
    cuCtxSetCurrent = fn(context: CUcontext);
    cuCtxGetCurrent = fn(context: *mut CUcontext);
    cuCtxGetDevice = fn(device: *mut CUdevice);
    cuCtxSynchronize = fn();
    cuCtxSynchronize_v2 = fn(context: CUcontext);
    cuCtxSetLimit = fn(limit: u32, value: usize);
    cuCtxGetLimit = fn(value: *mut usize, limit: u32);
    cuCtxGetApiVersion = fn(context: CUcontext, version: *mut u32);
    cuCtxGetStreamPriorityRange = fn(least: *mut i32, greatest: *mut i32);
    cuCtxDetach = fn(context: CUcontext);
    cuCtxGetExecAffinity = fn(affinity: *mut CUexecAffinityParam, kind: CUexecAffinityType);
    // device resources and green contexts
    cuDeviceGetDevResource = fn(
        device: CUdevice, resource: *mut CUdevResource, kind: CUdevResourceType,
    );
    cuCtxGetDevResource = fn(
        context: CUcontext, resource: *mut CUdevResource, kind: CUdevResourceType,
    );
    cuGreenCtxGetDevResource = fn(
        green: CUgreenCtx, resource: *mut CUdevResource, kind: CUdevResourceType,
    );
    cuDevSmResourceSplit = fn(
        groups: *mut CUdevResource, count: u32, input: *const CUdevResource,
        remaining: *mut CUdevResource, flags: u32, parameters: *mut c_void,
    );
    cuDevSmResourceSplitByCount = fn(
        groups: *mut CUdevResource, count: *mut u32, input: *const CUdevResource,
        rest: *mut CUdevResource, flags: u32, wanted: u32,
    );
    cuDevResourceGenerateDesc = fn(
        descriptor: *mut CUdevResourceDesc, resources: *mut CUdevResource, count: u32,
    );
    cuGreenCtxCreate = fn(
        green: *mut CUgreenCtx, descriptor: CUdevResourceDesc, device: CUdevice, flags: u32,
    );
    cuGreenCtxDestroy = fn(green: CUgreenCtx);
    cuCtxFromGreenCtx = fn(context: *mut CUcontext, green: CUgreenCtx);
    cuGreenCtxStreamCreate = fn(
        stream: *mut CUstream, green: CUgreenCtx, flags: u32, priority: i32,
    );
    cuGreenCtxRecordEvent = fn(green: CUgreenCtx, event: CUevent);
    cuGreenCtxWaitEvent = fn(green: CUgreenCtx, event: CUevent);
    cuStreamGetGreenCtx = fn(stream: CUstream, green: *mut CUgreenCtx);
    cuGreenCtxGetId = fn(green: CUgreenCtx, id: *mut u64);
    cuStreamGetDevResource cuStreamGetDevResource_ptsz = fn(
        stream: CUstream, resource: *mut CUdevResource, kind: CUdevResourceType,
    );
    // modules, libraries and kernels
    cuModuleLoad = fn(module: *mut CUmodule, name: *const c_char);
    cuModuleLoadData cuModuleLoadFatBinary = fn(module: *mut CUmodule, image: *const c_void);
    cuModuleLoadDataEx = fn(
        module: *mut CUmodule, image: *const c_void, count: u32, options: *mut u32,
        values: *mut *mut c_void,
    );
    cuModuleUnload = fn(module: CUmodule);
    cuModuleGetFunction = fn(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    cuModuleGetGlobal_v2 = fn(
        address: *mut CUdeviceptr, bytes: *mut usize, owner: CUmodule, name: *const c_char,
    );
    cuLibraryLoadData = fn(
        library: *mut CUlibrary, code: *const c_void, jit_options: *mut u32,
        jit_values: *mut *mut c_void, jit_count: u32, options: *mut u32, values: *mut *mut c_void,
        count: u32,
    );
    cuLibraryLoadFromFile = fn(
        library: *mut CUlibrary, name: *const c_char, jit_options: *mut u32,
        jit_values: *mut *mut c_void, jit_count: u32, options: *mut u32, values: *mut *mut c_void,
        count: u32,
    );
    cuLibraryUnload = fn(library: CUlibrary);
    cuLibraryGetKernel = fn(kernel: *mut CUkernel, owner: CUlibrary, name: *const c_char);
    cuLibraryGetModule = fn(module: *mut CUmodule, owner: CUlibrary);
    cuKernelGetFunction = fn(function: *mut CUfunction, kernel: CUkernel);
    // functions
    cuFuncGetAttribute = fn(value: *mut i32, attribute: CUfunction_attribute, function: CUfunction);
    cuKernelGetAttribute = fn(
        value: *mut i32, attribute: CUfunction_attribute, kernel: CUkernel, device: CUdevice,
    );
    cuFuncSetAttribute = fn(function: CUfunction, attribute: CUfunction_attribute, value: i32);
    cuKernelSetAttribute = fn(
        attribute: CUfunction_attribute, value: i32, kernel: CUkernel, device: CUdevice,
    );
    cuFuncGetModule = fn(module: *mut CUmodule, function: CUfunction);
    cuFuncGetParamInfo = fn(
        function: CUfunction, index: usize, offset: *mut usize, size: *mut usize,
    );
    cuKernelGetParamInfo = fn(
        kernel: CUkernel, index: usize, offset: *mut usize, size: *mut usize,
    );
    cuFuncGetParamCount = fn(function: CUfunction, count: *mut usize);
    cuKernelGetParamCount = fn(kernel: CUkernel, count: *mut usize);
    cuFuncLoad = fn(function: CUfunction);
    // the linker
    cuLinkCreate_v2 = fn(
        count: u32, options: *mut u32, values: *mut *mut c_void, handle: *mut CUlinkState,
    );
    cuLinkAddData cuLinkAddData_v2 = fn(
        handle: CUlinkState, kind: u32, data: *mut c_void, bytes: usize, name: *const c_char,
        count: u32, options: *mut u32, values: *mut *mut c_void,
    );
    cuLinkAddFile cuLinkAddFile_v2 = fn(
        handle: CUlinkState, kind: u32, path: *const c_char, count: u32, options: *mut u32,
        values: *mut *mut c_void,
    );
    cuLinkComplete = fn(handle: CUlinkState, image: *mut *const c_void, bytes: *mut usize);
    cuLinkDestroy = fn(handle: CUlinkState);
    // occupancy
    cuOccupancyMaxActiveBlocksPerMultiprocessor = fn(
        blocks: *mut i32, function: CUfunction, threads: i32, dynamic_shared: usize,
    );
    cuOccupancyMaxPotentialBlockSize = fn(
        grid: *mut i32, block: *mut i32, function: CUfunction, shared_of: CUoccupancyB2DSize,
        shared: usize, limit: i32,
    );
    cuOccupancyMaxPotentialBlockSizeWithFlags = fn(
        grid: *mut i32, block: *mut i32, function: CUfunction, shared_of: CUoccupancyB2DSize,
        shared: usize, limit: i32, flags: u32,
    );
    cuOccupancyMaxPotentialClusterSize = fn(
        blocks: *mut i32, function: CUfunction, config: *const CUlaunchConfig,
    );
    cuOccupancyMaxActiveClusters = fn(
        clusters: *mut i32, function: CUfunction, config: *const CUlaunchConfig,
    );
    // memory
    cuMemAlloc = fn(address: *mut CUdeviceptr_v1, bytes: u32);
    cuMemAlloc_v2 = fn(pointer: *mut CUdeviceptr, bytes: usize);
    cuMemAllocPitch = fn(
        address: *mut CUdeviceptr_v1, pitch: *mut u32, width_bytes: u32, height: u32,
        element_bytes: u32,
    );
    cuMemAllocPitch_v2 = fn(
        pointer: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: u32,
    );
    cuMemAllocManaged = fn(pointer: *mut CUdeviceptr, bytes: usize, flags: u32);
    cuMemFree = fn(address: CUdeviceptr_v1);
    cuMemFree_v2 = fn(pointer: CUdeviceptr);
    cuMemGetInfo = fn(free: *mut u32, total: *mut u32);
    cuMemGetInfo_v2 = fn(free: *mut usize, total: *mut usize);
    cuMemGetAddressRange_v2 = fn(base: *mut CUdeviceptr, bytes: *mut usize, address: CUdeviceptr);
    cuMemPrefetchAsync cuMemPrefetchAsync_ptsz = fn(
        address: CUdeviceptr, bytes: usize, device: CUdevice, stream: CUstream,
    );
    cuMemPrefetchAsync_v2 cuMemPrefetchAsync_v2_ptsz = fn(
        address: CUdeviceptr, bytes: usize, location: CUmemLocation, flags: u32, stream: CUstream,
    );
    cuMemPrefetchBatchAsync cuMemPrefetchBatchAsync_ptsz = fn(
        addresses: *mut CUdeviceptr, sizes: *mut usize, count: usize, locations: *mut CUmemLocation,
        firsts: *mut usize, location_count: usize, flags: u64, stream: CUstream,
    );
    cuMemDiscardAndPrefetchBatchAsync cuMemDiscardAndPrefetchBatchAsync_ptsz = fn(
        addresses: *mut CUdeviceptr, sizes: *mut usize, count: usize, locations: *mut CUmemLocation,
        firsts: *mut usize, location_count: usize, flags: u64, stream: CUstream,
    );
    cuMemDiscardBatchAsync cuMemDiscardBatchAsync_ptsz = fn(
        addresses: *mut CUdeviceptr, sizes: *mut usize, count: usize, flags: u64, stream: CUstream,
    );
    cuMemAdvise = fn(address: CUdeviceptr, bytes: usize, advice: u32, device: CUdevice);
    cuMemAdvise_v2 = fn(address: CUdeviceptr, bytes: usize, advice: u32, location: CUmemLocation);
    cuStreamAttachMemAsync cuStreamAttachMemAsync_ptsz = fn(
        stream: CUstream, address: CUdeviceptr, bytes: usize, flags: u32,
    );
    // pointers
    cuPointerGetAttribute = fn(
        data: *mut c_void, attribute: CUpointer_attribute, address: CUdeviceptr,
    );
    cuPointerGetAttributes = fn(
        count: u32, attributes: *mut CUpointer_attribute, data: *mut *mut c_void,
        address: CUdeviceptr,
    );
    // memory of the host
    cuMemAllocHost_v2 = fn(pointer: *mut *mut c_void, bytes: usize);
    cuMemHostAlloc = fn(address: *mut *mut c_void, bytes: usize, flags: u32);
    cuMemFreeHost = fn(pointer: *mut c_void);
    cuMemHostGetDevicePointer_v2 = fn(device: *mut CUdeviceptr, host: *mut c_void, flags: u32);
    cuMemHostRegister_v2 = fn(address: *mut c_void, bytes: usize, flags: u32);
    cuMemHostUnregister = fn(address: *mut c_void);
    // memory in stream order, and pools
    cuDeviceGetDefaultMemPool = fn(handle: *mut CUmemoryPool, device: CUdevice);
    cuDeviceGetMemPool = fn(handle: *mut CUmemoryPool, device: CUdevice);
    cuDeviceSetMemPool = fn(device: CUdevice, pool: CUmemoryPool);
    cuMemPoolCreate = fn(handle: *mut CUmemoryPool, properties: *const CUmemPoolProps);
    cuMemPoolDestroy = fn(pool: CUmemoryPool);
    cuMemPoolTrimTo = fn(pool: CUmemoryPool, keep: usize);
    cuMemPoolSetAttribute = fn(
        handle: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void,
    );
    cuMemPoolGetAttribute = fn(
        handle: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void,
    );
    cuMemAllocAsync cuMemAllocAsync_ptsz = fn(
        pointer: *mut CUdeviceptr, bytes: usize, stream: CUstream,
    );
    cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz = fn(
        pointer: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream,
    );
    cuMemFreeAsync cuMemFreeAsync_ptsz = fn(pointer: CUdeviceptr, stream: CUstream);
    cuMemSetMemPool = fn(
        location: *const CUmemLocation, kind: CUmemAllocationType, pool: CUmemoryPool,
    );
    // physical memory and its addresses
    cuMemCreate = fn(
        handle: *mut CUmemGenericAllocationHandle, bytes: usize,
        properties: *const CUmemAllocationProp, flags: u64,
    );
    cuMemRelease = fn(handle: CUmemGenericAllocationHandle);
    cuMemRetainAllocationHandle = fn(
        handle: *mut CUmemGenericAllocationHandle, address: *mut c_void,
    );
    cuMemAddressReserve = fn(
        address: *mut CUdeviceptr, bytes: usize, align: usize, hint: CUdeviceptr, flags: u64,
    );
    cuMemAddressFree = fn(address: CUdeviceptr, bytes: usize);
    cuMemMap = fn(
        address: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle,
        flags: u64,
    );
    cuMemUnmap = fn(address: CUdeviceptr, bytes: usize);
    cuMemSetAccess = fn(
        address: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize,
    );
    cuMemGetAllocationGranularity = fn(
        bytes: *mut usize, properties: *const CUmemAllocationProp, option: u32,
    );
    cuMemGetAllocationPropertiesFromHandle = fn(
        found: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle,
    );
    cuMemExportToShareableHandle = fn(
        shareable: *mut c_void, handle: CUmemGenericAllocationHandle,
        kind: CUmemAllocationHandleType, flags: u64,
    );
    cuMemImportFromShareableHandle = fn(
        handle: *mut CUmemGenericAllocationHandle, shareable: *mut c_void,
        kind: CUmemAllocationHandleType,
    );
    // multicast objects and logical endpoints
    cuLogicalEndpointBindAddr = fn(
        endpoint: u32, device: CUdevice, offset: u64, address: *mut c_void, bytes: u64, flags: u64,
    );
    cuLogicalEndpointBindMem = fn(
        endpoint: u32, device: CUdevice, offset: u64, memory: CUmemGenericAllocationHandle,
        memory_offset: u64, bytes: u64, flags: u64,
    );
    cuMulticastBindAddr = fn(
        object: CUmemGenericAllocationHandle, offset: usize, address: CUdeviceptr, bytes: usize,
        flags: u64,
    );
    cuMulticastBindMem = fn(
        object: CUmemGenericAllocationHandle, offset: usize, memory: CUmemGenericAllocationHandle,
        memory_offset: usize, bytes: usize, flags: u64,
    );
    cuMulticastUnbind = fn(
        object: CUmemGenericAllocationHandle, device: CUdevice, offset: usize, bytes: usize,
    );
    cuMulticastBindAddr_v2 = fn(
        object: CUmemGenericAllocationHandle, device: CUdevice, offset: usize, address: CUdeviceptr,
        bytes: usize, flags: u64,
    );
    cuMulticastBindMem_v2 = fn(
        object: CUmemGenericAllocationHandle, device: CUdevice, offset: usize,
        memory: CUmemGenericAllocationHandle, memory_offset: usize, bytes: usize, flags: u64,
    );
    // external memory
    cuImportExternalMemory = fn(
        memory: *mut CUexternalMemory, wanted: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
    );
    cuExternalMemoryGetMappedBuffer = fn(
        address: *mut CUdeviceptr, memory: CUexternalMemory,
        wanted: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC,
    );
    cuDestroyExternalMemory = fn(memory: CUexternalMemory);
    // other processes
    cuIpcGetMemHandle = fn(handle: *mut CUipcMemHandle, pointer: CUdeviceptr);
    cuIpcOpenMemHandle cuIpcOpenMemHandle_v2 = fn(
        pointer: *mut CUdeviceptr, handle: CUipcMemHandle, flags: u32,
    );
    cuIpcCloseMemHandle = fn(pointer: CUdeviceptr);
    cuIpcGetEventHandle = fn(handle: *mut CUipcEventHandle, event: CUevent);
    cuIpcOpenEventHandle = fn(event: *mut CUevent, handle: CUipcEventHandle);
    // arrays
    cuArrayCreate = fn(array: *mut CUarray, shape: *const CUDA_ARRAY_DESCRIPTOR_v1);
    cuArrayCreate_v2 = fn(array: *mut CUarray, shape: *const CUDA_ARRAY_DESCRIPTOR);
    cuArray3DCreate = fn(array: *mut CUarray, shape: *const CUDA_ARRAY3D_DESCRIPTOR_v1);
    cuArray3DCreate_v2 = fn(array: *mut CUarray, shape: *const CUDA_ARRAY3D_DESCRIPTOR);
    cuArray3DGetDescriptor_v2 = fn(descriptor: *mut CUDA_ARRAY3D_DESCRIPTOR, handle: CUarray);
    cuArrayDestroy = fn(array: CUarray);
    cuMipmappedArrayCreate = fn(
        array: *mut CUmipmappedArray, shape: *const CUDA_ARRAY3D_DESCRIPTOR, levels: u32,
    );
    cuMipmappedArrayGetLevel = fn(level_array: *mut CUarray, handle: CUmipmappedArray, level: u32);
    cuMipmappedArrayDestroy = fn(array: CUmipmappedArray);
    cuMemMapArrayAsync cuMemMapArrayAsync_ptsz = fn(
        list: *mut c_void, count: u32, stream: CUstream,
    );
    // fills
    cuMemsetD8_v2 cuMemsetD8_v2_ptds = fn(to: CUdeviceptr, value: u8, count: usize);
    cuMemsetD16_v2 cuMemsetD16_v2_ptds = fn(dst: CUdeviceptr, value: u16, count: usize);
    cuMemsetD32_v2 cuMemsetD32_v2_ptds = fn(dst: CUdeviceptr, value: u32, count: usize);
    cuMemsetD2D8_v2 cuMemsetD2D8_v2_ptds = fn(
        dst: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize,
    );
    cuMemsetD2D32_v2 cuMemsetD2D32_v2_ptds = fn(
        dst: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize,
    );
    cuMemsetD2D16_v2 cuMemsetD2D16_v2_ptds = fn(
        dst: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize,
    );
    cuMemsetD8Async cuMemsetD8Async_ptsz = fn(
        to: CUdeviceptr, value: u8, count: usize, stream: CUstream,
    );
    cuMemsetD32Async cuMemsetD32Async_ptsz = fn(
        to: CUdeviceptr, value: u32, count: usize, stream: CUstream,
    );
    cuMemsetD16Async cuMemsetD16Async_ptsz = fn(
        to: CUdeviceptr, value: u16, count: usize, stream: CUstream,
    );
    cuMemsetD2D8Async cuMemsetD2D8Async_ptsz = fn(
        dst: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream,
    );
    cuMemsetD2D16Async cuMemsetD2D16Async_ptsz = fn(
        dst: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream,
    );
    cuMemsetD2D32Async cuMemsetD2D32Async_ptsz = fn(
        dst: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize, stream: CUstream,
    );
    // copies
    cuMemcpy cuMemcpy_ptds = fn(to: CUdeviceptr, from: CUdeviceptr, bytes: usize);
    cuMemcpyAsync cuMemcpyAsync_ptsz = fn(
        dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream,
    );
    cuMemcpyHtoD_v2 cuMemcpyHtoD_v2_ptds = fn(to: CUdeviceptr, from: *const c_void, bytes: usize);
    cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2_ptsz = fn(
        to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream,
    );
    cuMemcpyDtoH_v2 cuMemcpyDtoH_v2_ptds = fn(to: *mut c_void, from: CUdeviceptr, bytes: usize);
    cuMemcpyDtoHAsync_v2 cuMemcpyDtoHAsync_v2_ptsz = fn(
        to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream,
    );
    cuMemcpyDtoD_v2 cuMemcpyDtoD_v2_ptds = fn(to: CUdeviceptr, from: CUdeviceptr, bytes: usize);
    cuMemcpyDtoDAsync_v2 cuMemcpyDtoDAsync_v2_ptsz = fn(
        to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream,
    );
    cuMemcpyPeer cuMemcpyPeer_ptds = fn(
        to: CUdeviceptr, of: CUcontext, from: CUdeviceptr, other: CUcontext, bytes: usize,
    );
    cuMemcpyHtoA_v2 cuMemcpyHtoA_v2_ptds = fn(
        to: CUarray, offset: usize, from: *const c_void, bytes: usize,
    );
    cuMemcpyAtoH_v2 cuMemcpyAtoH_v2_ptds = fn(
        to: *mut c_void, from: CUarray, offset: usize, bytes: usize,
    );
    cuMemcpyDtoA_v2 cuMemcpyDtoA_v2_ptds = fn(
        to: CUarray, offset: usize, from: CUdeviceptr, bytes: usize,
    );
    cuMemcpyAtoD_v2 cuMemcpyAtoD_v2_ptds = fn(
        to: CUdeviceptr, from: CUarray, offset: usize, bytes: usize,
    );
    cuMemcpyAtoA_v2 cuMemcpyAtoA_v2_ptds = fn(
        to: CUarray, offset: usize, from: CUarray, of: usize, bytes: usize,
    );
    cuMemcpyPeerAsync cuMemcpyPeerAsync_ptsz = fn(
        to: CUdeviceptr, of: CUcontext, from: CUdeviceptr, other: CUcontext, bytes: usize,
        stream: CUstream,
    );
    cuMemcpyHtoAAsync_v2 cuMemcpyHtoAAsync_v2_ptsz = fn(
        to: CUarray, offset: usize, from: *const c_void, bytes: usize, stream: CUstream,
    );
    cuMemcpyAtoHAsync_v2 cuMemcpyAtoHAsync_v2_ptsz = fn(
        to: *mut c_void, from: CUarray, offset: usize, bytes: usize, stream: CUstream,
    );
    cuMemcpyBatchAsync cuMemcpyBatchAsync_ptsz = fn(
        to: *mut CUdeviceptr, from: *mut CUdeviceptr, bytes: *mut usize, count: usize,
        attributes: *mut c_void, of: *mut usize, attribute_count: usize, failed: *mut usize,
        stream: CUstream,
    );
    cuMemcpyBatchAsync_v2 cuMemcpyBatchAsync_v2_ptsz = fn(
        to: *mut CUdeviceptr, from: *mut CUdeviceptr, bytes: *mut usize, count: usize,
        attributes: *mut c_void, of: *mut usize, attribute_count: usize, stream: CUstream,
    );
    cuMemcpy3DBatchAsync cuMemcpy3DBatchAsync_ptsz = fn(
        count: usize, copies: *mut c_void, failed: *mut usize, flags: u64, stream: CUstream,
    );
    cuMemcpy3DBatchAsync_v2 cuMemcpy3DBatchAsync_v2_ptsz = fn(
        count: usize, copies: *mut c_void, flags: u64, stream: CUstream,
    );
    cuMemcpyWithAttributesAsync cuMemcpyWithAttributesAsync_ptsz = fn(
        to: CUdeviceptr, from: CUdeviceptr, bytes: usize, attributes: *mut c_void, stream: CUstream,
    );
    cuMemcpy3DWithAttributesAsync cuMemcpy3DWithAttributesAsync_ptsz = fn(
        what: *mut c_void, flags: u64, stream: CUstream,
    );
    cuFabricCpyBatchAsync cuFabricCpyBatchAsync_ptsz = fn(
        count: usize, copies: *mut c_void, flags: u64, stream: CUstream,
    );
    cuMemBatchDecompressAsync cuMemBatchDecompressAsync_ptsz = fn(
        what: *mut c_void, count: usize, flags: u32, failed: *mut usize, stream: CUstream,
    );
    cuMemcpy2D_v2 cuMemcpy2D_v2_ptds = fn(what: *const CUDA_MEMCPY2D);
    cuMemcpy2DUnaligned_v2 cuMemcpy2DUnaligned_v2_ptds = fn(what: *const CUDA_MEMCPY2D);
    cuMemcpy3D_v2 cuMemcpy3D_v2_ptds = fn(what: *const CUDA_MEMCPY3D);
    cuMemcpy3DPeer cuMemcpy3DPeer_ptds = fn(what: *const CUDA_MEMCPY3D);
    cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz = fn(what: *const CUDA_MEMCPY2D, stream: CUstream);
    cuMemcpy3DAsync_v2 cuMemcpy3DAsync_v2_ptsz = fn(what: *const CUDA_MEMCPY3D, stream: CUstream);
    cuMemcpy3DPeerAsync cuMemcpy3DPeerAsync_ptsz = fn(what: *const CUDA_MEMCPY3D, stream: CUstream);
    // streams
    cuStreamCreate = fn(stream: *mut CUstream, flags: u32);
    cuStreamCreateWithPriority = fn(stream: *mut CUstream, flags: u32, priority: i32);
    cuStreamDestroy cuStreamDestroy_v2 = fn(stream: CUstream);
    cuStreamSynchronize cuStreamSynchronize_ptsz = fn(stream: CUstream);
    cuStreamQuery cuStreamQuery_ptsz = fn(stream: CUstream);
    cuStreamGetPriority cuStreamGetPriority_ptsz = fn(stream: CUstream, priority: *mut i32);
    cuStreamGetFlags cuStreamGetFlags_ptsz = fn(stream: CUstream, flags: *mut u32);
    cuStreamGetCtx cuStreamGetCtx_ptsz = fn(stream: CUstream, context: *mut CUcontext);
    cuStreamGetCtx_v2 cuStreamGetCtx_v2_ptsz = fn(
        stream: CUstream, context: *mut CUcontext, green: *mut CUgreenCtx,
    );
    cuStreamGetDevice cuStreamGetDevice_ptsz = fn(stream: CUstream, device: *mut CUdevice);
    // streams' waits, writes and host functions
    cuStreamWaitEvent cuStreamWaitEvent_ptsz = fn(stream: CUstream, event: CUevent, flags: u32);
    cuLaunchHostFunc cuLaunchHostFunc_ptsz = fn(
        stream: CUstream, function: CUhostFn, data: *mut c_void,
    );
    cuStreamAddCallback cuStreamAddCallback_ptsz = fn(
        handle: CUstream, callback: CUstreamCallback, data: *mut c_void, flags: u32,
    );
    cuStreamWaitValue32_v2 cuStreamWaitValue32_v2_ptsz = fn(
        stream: CUstream, address: CUdeviceptr, value: u32, flags: u32,
    );
    cuStreamWriteValue32_v2 cuStreamWriteValue32_v2_ptsz = fn(
        stream: CUstream, address: CUdeviceptr, value: u32, flags: u32,
    );
    cuStreamBatchMemOp_v2 cuStreamBatchMemOp_v2_ptsz = fn(
        stream: CUstream, count: u32, operations: *mut CUstreamBatchMemOpParams, flags: u32,
    );
    // events
    cuEventCreate = fn(event: *mut CUevent, flags: u32);
    cuEventDestroy cuEventDestroy_v2 = fn(event: CUevent);
    cuEventRecord cuEventRecord_ptsz = fn(event: CUevent, stream: CUstream);
    cuEventRecordWithFlags cuEventRecordWithFlags_ptsz = fn(
        event: CUevent, stream: CUstream, flags: u32,
    );
    cuEventQuery = fn(event: CUevent);
    cuEventSynchronize = fn(event: CUevent);
    cuEventElapsedTime = fn(milliseconds: *mut f32, start: CUevent, end: CUevent);
    cuCtxRecordEvent = fn(context: CUcontext, event: CUevent);
    // launches
    cuLaunchKernel cuLaunchKernel_ptsz = fn(
        function: CUfunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
        block_z: u32, shared_bytes: u32, stream: CUstream, parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    );
    cuLaunchKernelEx cuLaunchKernelEx_ptsz = fn(
        config: *const CUlaunchConfig, function: CUfunction, parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    );
    cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz = fn(
        function: CUfunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
        block_z: u32, shared_bytes: u32, stream: CUstream, parameters: *mut *mut c_void,
    );
    cuLaunchCooperativeKernelMultiDevice = fn(launches: *mut c_void, devices: u32, flags: u32);
    // launches of the first CUDA
    cuFuncSetBlockShape = fn(function: CUfunction, x: i32, y: i32, z: i32);
    cuParamSetSize = fn(function: CUfunction, bytes: u32);
    cuParamSetv = fn(function: CUfunction, offset: i32, from: *mut c_void, bytes: u32);
    cuLaunch = fn(function: CUfunction);
    cuLaunchGrid = fn(function: CUfunction, width: i32, height: i32);
    cuLaunchGridAsync = fn(function: CUfunction, width: i32, height: i32, stream: CUstream);
    // graphs and their nodes
    cuGraphCreate = fn(graph: *mut CUgraph, flags: u32);
    cuGraphDestroy = fn(graph: CUgraph);
    cuGraphConditionalHandleCreate = fn(
        handle: *mut CUgraphConditionalHandle, owner: CUgraph, context: CUcontext, value: u32,
        flags: u32,
    );
    cuGraphClone = fn(copy: *mut CUgraph, graph: CUgraph);
    cuGraphNodeFindInClone = fn(found: *mut CUgraphNode, original: CUgraphNode, copy: CUgraph);
    cuGraphAddKernelNode = fn(
        node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize,
        parameters: *const CUDA_KERNEL_NODE_PARAMS_v1,
    );
    cuGraphAddKernelNode_v2 = fn(
        node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize,
        parameters: *const CUDA_KERNEL_NODE_PARAMS_v2,
    );
    cuGraphAddMemcpyNode = fn(
        made: *mut CUgraphNode, owner: CUgraph, after: *const CUgraphNode, count: usize,
        params: *const CUDA_MEMCPY3D, context: CUcontext,
    );
    cuGraphAddMemsetNode = fn(
        made: *mut CUgraphNode, owner: CUgraph, after: *const CUgraphNode, count: usize,
        params: *const CUDA_MEMSET_NODE_PARAMS_v1, context: CUcontext,
    );
    cuGraphAddHostNode = fn(
        made: *mut CUgraphNode, owner: CUgraph, after: *const CUgraphNode, count: usize,
        params: *const CUDA_HOST_NODE_PARAMS,
    );
    cuGraphAddChildGraphNode = fn(
        node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize,
        child: CUgraph,
    );
    cuGraphAddEmptyNode = fn(
        made: *mut CUgraphNode, owner: CUgraph, after: *const CUgraphNode, count: usize,
    );
    cuGraphAddEventRecordNode = fn(
        made: *mut CUgraphNode, owner: CUgraph, after: *const CUgraphNode, count: usize,
        event: CUevent,
    );
    cuGraphAddEventWaitNode = fn(
        made: *mut CUgraphNode, owner: CUgraph, after: *const CUgraphNode, count: usize,
        event: CUevent,
    );
    cuGraphAddBatchMemOpNode = fn(
        made: *mut CUgraphNode, owner: CUgraph, after: *const CUgraphNode, count: usize,
        params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS,
    );
    cuGraphAddNode = fn(
        node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize,
        parameters: *mut CUgraphNodeParams,
    );
    cuGraphAddNode_v2 cuGraphAddNode_v3 = fn(
        node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
        edges: *const CUgraphEdgeData, count: usize, parameters: *mut CUgraphNodeParams,
    );
    cuGraphNodeSetParams = fn(handle: CUgraphNode, params: *mut CUgraphNodeParams);
    cuGraphKernelNodeGetParams = fn(handle: CUgraphNode, params: *mut CUDA_KERNEL_NODE_PARAMS_v1);
    cuGraphKernelNodeGetParams_v2 = fn(
        handle: CUgraphNode, params: *mut CUDA_KERNEL_NODE_PARAMS_v2,
    );
    cuGraphKernelNodeSetParams = fn(handle: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS_v1);
    cuGraphKernelNodeSetParams_v2 = fn(
        handle: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS_v2,
    );
    cuGraphKernelNodeSetAttribute = fn(
        handle: CUgraphNode, attribute: CUlaunchAttributeID, value: *const CUlaunchAttributeValue,
    );
    cuGraphKernelNodeGetAttribute = fn(
        handle: CUgraphNode, attribute: CUlaunchAttributeID, value: *mut CUlaunchAttributeValue,
    );
    cuGraphKernelNodeCopyAttributes = fn(to: CUgraphNode, from: CUgraphNode);
    cuGraphMemcpyNodeSetParams = fn(handle: CUgraphNode, params: *const CUDA_MEMCPY3D);
    cuGraphMemsetNodeGetParams = fn(handle: CUgraphNode, params: *mut CUDA_MEMSET_NODE_PARAMS_v1);
    cuGraphMemsetNodeSetParams = fn(handle: CUgraphNode, params: *const CUDA_MEMSET_NODE_PARAMS_v1);
    cuGraphChildGraphNodeGetGraph = fn(handle: CUgraphNode, child: *mut CUgraph);
    // graphs' nodes and edges
    cuGraphNodeGetType = fn(handle: CUgraphNode, kind: *mut CUgraphNodeType);
    cuGraphGetNodes = fn(handle: CUgraph, nodes: *mut CUgraphNode, count: *mut usize);
    cuGraphGetRootNodes = fn(handle: CUgraph, nodes: *mut CUgraphNode, count: *mut usize);
    cuGraphGetEdges = fn(
        handle: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, count: *mut usize,
    );
    cuGraphGetEdges_v2 = fn(
        handle: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, data: *mut CUgraphEdgeData,
        count: *mut usize,
    );
    cuGraphNodeGetDependencies = fn(
        handle: CUgraphNode, nodes: *mut CUgraphNode, count: *mut usize,
    );
    cuGraphNodeGetDependentNodes = fn(
        handle: CUgraphNode, nodes: *mut CUgraphNode, count: *mut usize,
    );
    cuGraphAddDependencies = fn(
        owner: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, count: usize,
    );
    cuGraphRemoveDependencies = fn(
        owner: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, count: usize,
    );
    cuGraphAddDependencies_v2 cuGraphRemoveDependencies_v2 = fn(
        owner: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, data: *const CUgraphEdgeData,
        count: usize,
    );
    cuGraphDestroyNode = fn(handle: CUgraphNode);
    // graphs' memory and user objects
    cuGraphAddMemAllocNode = fn(
        node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize,
        parameters: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
    );
    cuGraphAddMemFreeNode = fn(
        made: *mut CUgraphNode, owner: CUgraph, after: *const CUgraphNode, count: usize,
        address: CUdeviceptr,
    );
    cuDeviceGetGraphMemAttribute = fn(
        device: CUdevice, attribute: CUgraphMem_attribute, value: *mut c_void,
    );
    cuDeviceGraphMemTrim = fn(device: CUdevice);
    cuUserObjectCreate = fn(
        handle: *mut CUuserObject, data: *mut c_void, destroy: CUhostFn, count: u32, flags: u32,
    );
    cuUserObjectRelease = fn(handle: CUuserObject, count: u32);
    cuGraphRetainUserObject = fn(owner: CUgraph, handle: CUuserObject, count: u32, flags: u32);
    // executable graphs
    cuGraphInstantiateWithFlags = fn(executable: *mut CUgraphExec, graph: CUgraph, flags: u64);
    cuGraphInstantiate cuGraphInstantiate_v2 = fn(
        executable: *mut CUgraphExec, graph: CUgraph, bad_node: *mut CUgraphNode, log: *mut c_char,
        bytes: usize,
    );
    cuGraphInstantiateWithParams cuGraphInstantiateWithParams_ptsz = fn(
        executable: *mut CUgraphExec, graph: CUgraph,
        parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    );
    cuGraphExecGetFlags = fn(handle: CUgraphExec, flags: *mut u64);
    cuGraphUpload cuGraphUpload_ptsz = fn(executable: CUgraphExec, stream: CUstream);
    cuGraphLaunch cuGraphLaunch_ptsz = fn(executable: CUgraphExec, stream: CUstream);
    cuGraphExecDestroy = fn(executable: CUgraphExec);
    cuGraphExecUpdate_v2 = fn(
        executable: CUgraphExec, graph: CUgraph, result: *mut CUgraphExecUpdateResultInfo,
    );
    cuGraphExecUpdate = fn(
        executable: CUgraphExec, graph: CUgraph, bad_node: *mut CUgraphNode, result: *mut u32,
    );
    cuGraphNodeSetEnabled = fn(executable: CUgraphExec, node: CUgraphNode, enabled: u32);
    cuGraphNodeGetEnabled = fn(handle: CUgraphExec, source: CUgraphNode, enabled: *mut u32);
    cuGraphExecKernelNodeSetParams = fn(
        executable: CUgraphExec, node: CUgraphNode, parameters: *const CUDA_KERNEL_NODE_PARAMS_v1,
    );
    cuGraphExecKernelNodeSetParams_v2 = fn(
        executable: CUgraphExec, node: CUgraphNode, parameters: *const CUDA_KERNEL_NODE_PARAMS_v2,
    );
    cuGraphExecMemcpyNodeSetParams = fn(
        handle: CUgraphExec, source: CUgraphNode, params: *const CUDA_MEMCPY3D, context: CUcontext,
    );
    cuGraphExecMemsetNodeSetParams = fn(
        handle: CUgraphExec, source: CUgraphNode, params: *const CUDA_MEMSET_NODE_PARAMS_v1,
        context: CUcontext,
    );
    cuGraphExecHostNodeSetParams = fn(
        handle: CUgraphExec, source: CUgraphNode, params: *const CUDA_HOST_NODE_PARAMS,
    );
    cuGraphExecEventRecordNodeSetEvent = fn(
        handle: CUgraphExec, source: CUgraphNode, event: CUevent,
    );
    cuGraphExecEventWaitNodeSetEvent = fn(handle: CUgraphExec, source: CUgraphNode, event: CUevent);
    cuGraphExecChildGraphNodeSetParams = fn(
        executable: CUgraphExec, node: CUgraphNode, graph: CUgraph,
    );
    cuGraphExecNodeSetParams = fn(
        executable: CUgraphExec, node: CUgraphNode, parameters: *mut CUgraphNodeParams,
    );
    // captures
    cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz = fn(stream: CUstream, mode: u32);
    cuStreamBeginCapture cuStreamBeginCapture_ptsz = fn(stream: CUstream);
    cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz = fn(
        stream: CUstream, graph: CUgraph, dependencies: *const CUgraphNode,
        edges: *const CUgraphEdgeData, count: usize, mode: u32,
    );
    cuStreamEndCapture cuStreamEndCapture_ptsz = fn(stream: CUstream, graph: *mut CUgraph);
    cuStreamIsCapturing cuStreamIsCapturing_ptsz = fn(stream: CUstream, status: *mut u32);
    cuStreamGetCaptureInfo cuStreamGetCaptureInfo_ptsz = fn(
        stream: CUstream, status: *mut u32, number: *mut u64,
    );
    cuStreamGetCaptureInfo_v2 cuStreamGetCaptureInfo_v2_ptsz = fn(
        stream: CUstream, status: *mut u32, number: *mut u64, owner: *mut CUgraph,
        after: *mut *const CUgraphNode, count: *mut usize,
    );
    cuStreamUpdateCaptureDependencies cuStreamUpdateCaptureDependencies_ptsz = fn(
        stream: CUstream, after: *mut CUgraphNode, count: usize, flags: u32,
    );
    cuThreadExchangeStreamCaptureMode = fn(mode: *mut u32);
    cuStreamBeginCaptureToCig cuStreamBeginCaptureToCig_ptsz = fn(
        stream: CUstream, parameters: *mut c_void,
    );
    cuStreamEndCaptureToCig cuStreamEndCaptureToCig_ptsz = fn(stream: CUstream);
}
