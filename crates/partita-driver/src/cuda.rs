//! libcuda's entry points, as far as Partita itself launches work.

use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};

use partita_abi::types::{
    CU_CTX_SCHED_BLOCKING_SYNC, CUDA_KERNEL_NODE_PARAMS_v1, CUdevResource, CUexecAffinityParam,
    CUipcEventHandle, CUipcMemHandle, CUlaunchConfig, CUmemAccessDesc, CUmemAllocationProp, CUuuid,
};

use crate::callback::GetExportTable;
use crate::error::Error;
use crate::library::{Library, symbols};

symbols! {
    /// libcuda, with one entry a call; a driver that lacks a call lacks only that one.
    pub struct Cuda;
    fn init = "cuInit"(flags: c_uint);
    fn driver_get_version = "cuDriverGetVersion"(version: *mut c_int);
    fn device_get_count = "cuDeviceGetCount"(count: *mut c_int);
    fn device_get = "cuDeviceGet"(device: *mut c_int, ordinal: c_int);
    fn device_get_name = "cuDeviceGetName"(name: *mut c_char, length: c_int, device: c_int);
    fn device_get_uuid = "cuDeviceGetUuid_v2"(uuid: *mut CUuuid, device: c_int);
    fn device_get_attribute = "cuDeviceGetAttribute"(value: *mut c_int, attribute: c_uint, device: c_int);
    fn device_total_mem = "cuDeviceTotalMem_v2"(bytes: *mut usize, device: c_int);
    fn primary_retain = "cuDevicePrimaryCtxRetain"(context: *mut *mut c_void, device: c_int);
    fn primary_release = "cuDevicePrimaryCtxRelease_v2"(device: c_int);
    fn primary_set_flags = "cuDevicePrimaryCtxSetFlags_v2"(device: c_int, flags: c_uint);
    fn ctx_set_current = "cuCtxSetCurrent"(context: *mut c_void);
    fn ctx_synchronize = "cuCtxSynchronize"();
    fn ctx_create_with_affinity = "cuCtxCreate_v3"(
        context: *mut *mut c_void, affinities: *mut CUexecAffinityParam, count: c_int, flags: c_uint, device: c_int,
    );
    fn ctx_pop_current = "cuCtxPopCurrent_v2"(context: *mut *mut c_void);
    fn ctx_get_exec_affinity = "cuCtxGetExecAffinity"(affinity: *mut CUexecAffinityParam, kind: c_uint);
    fn ctx_destroy = "cuCtxDestroy_v2"(context: *mut c_void);
    fn module_load_data = "cuModuleLoadData"(module: *mut *mut c_void, image: *const c_void);
    fn module_unload = "cuModuleUnload"(module: *mut c_void);
    fn module_get_function = "cuModuleGetFunction"(function: *mut *mut c_void, module: *mut c_void, name: *const c_char);
    fn func_set_attribute = "cuFuncSetAttribute"(function: *mut c_void, attribute: c_uint, value: c_int);
    fn stream_create = "cuStreamCreate"(stream: *mut *mut c_void, flags: c_uint);
    fn stream_create_with_priority = "cuStreamCreateWithPriority"(
        stream: *mut *mut c_void, flags: c_uint, priority: c_int,
    );
    fn ctx_get_stream_priority_range = "cuCtxGetStreamPriorityRange"(least: *mut c_int, greatest: *mut c_int);
    fn stream_query = "cuStreamQuery"(stream: *mut c_void);
    fn stream_synchronize = "cuStreamSynchronize"(stream: *mut c_void);
    fn stream_destroy = "cuStreamDestroy_v2"(stream: *mut c_void);
    fn stream_wait_event = "cuStreamWaitEvent"(stream: *mut c_void, event: *mut c_void, flags: c_uint);
    fn stream_write_value32 = "cuStreamWriteValue32_v2"(stream: *mut c_void, address: u64, value: c_uint, flags: c_uint);
    fn event_create = "cuEventCreate"(event: *mut *mut c_void, flags: c_uint);
    fn event_record = "cuEventRecord"(event: *mut c_void, stream: *mut c_void);
    fn event_destroy = "cuEventDestroy_v2"(event: *mut c_void);
    fn event_query = "cuEventQuery"(event: *mut c_void);
    fn event_synchronize = "cuEventSynchronize"(event: *mut c_void);
    fn ipc_get_event_handle = "cuIpcGetEventHandle"(handle: *mut CUipcEventHandle, event: *mut c_void);
    fn ipc_open_event_handle = "cuIpcOpenEventHandle"(event: *mut *mut c_void, handle: CUipcEventHandle);
    fn ipc_get_mem_handle = "cuIpcGetMemHandle"(handle: *mut CUipcMemHandle, pointer: u64);
    fn ipc_open_mem_handle = "cuIpcOpenMemHandle_v2"(pointer: *mut u64, handle: CUipcMemHandle, flags: c_uint);
    fn ipc_close_mem_handle = "cuIpcCloseMemHandle"(pointer: u64);
    fn mem_get_allocation_granularity = "cuMemGetAllocationGranularity"(
        bytes: *mut usize, properties: *const CUmemAllocationProp, option: c_uint,
    );
    fn mem_create = "cuMemCreate"(handle: *mut u64, bytes: usize, properties: *const CUmemAllocationProp, flags: u64);
    fn mem_release = "cuMemRelease"(handle: u64);
    fn mem_export = "cuMemExportToShareableHandle"(shared: *mut c_void, handle: u64, kind: c_uint, flags: u64);
    fn mem_import = "cuMemImportFromShareableHandle"(handle: *mut u64, shared: *mut c_void, kind: c_uint);
    fn mem_address_reserve = "cuMemAddressReserve"(
        address: *mut u64, bytes: usize, align: usize, hint: u64, flags: u64,
    );
    fn mem_address_free = "cuMemAddressFree"(address: u64, bytes: usize);
    fn mem_map = "cuMemMap"(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64);
    fn mem_unmap = "cuMemUnmap"(address: u64, bytes: usize);
    fn mem_set_access = "cuMemSetAccess"(address: u64, bytes: usize, access: *const CUmemAccessDesc, count: usize);
    fn ctx_get_current = "cuCtxGetCurrent"(context: *mut *mut c_void);
    fn device_get_dev_resource = "cuDeviceGetDevResource"(device: c_int, resource: *mut CUdevResource, kind: c_uint);
    fn sm_resource_split_by_count = "cuDevSmResourceSplitByCount"(
        groups: *mut CUdevResource, count: *mut c_uint, input: *const CUdevResource,
        remaining: *mut CUdevResource, flags: c_uint, sms_min: c_uint,
    );
    fn resource_generate_desc = "cuDevResourceGenerateDesc"(
        descriptor: *mut *mut c_void, resources: *mut CUdevResource, count: c_uint,
    );
    fn green_ctx_create = "cuGreenCtxCreate"(
        green: *mut *mut c_void, descriptor: *mut c_void, device: c_int, flags: c_uint,
    );
    fn green_ctx_destroy = "cuGreenCtxDestroy"(green: *mut c_void);
    fn green_ctx_get_dev_resource = "cuGreenCtxGetDevResource"(
        green: *mut c_void, resource: *mut CUdevResource, kind: c_uint,
    );
    fn green_ctx_stream_create = "cuGreenCtxStreamCreate"(
        stream: *mut *mut c_void, green: *mut c_void, flags: c_uint, priority: c_int,
    );
    fn ctx_from_green_ctx = "cuCtxFromGreenCtx"(context: *mut *mut c_void, green: *mut c_void);
    fn mem_get_info = "cuMemGetInfo_v2"(free: *mut usize, total: *mut usize);
    fn mem_alloc = "cuMemAlloc_v2"(pointer: *mut u64, bytes: usize);
    fn mem_free = "cuMemFree_v2"(pointer: u64);
    fn memcpy_to_device = "cuMemcpyHtoD_v2"(to: u64, from: *const c_void, bytes: usize);
    fn memcpy_to_host = "cuMemcpyDtoH_v2"(to: *mut c_void, from: u64, bytes: usize);
    fn memset_d8 = "cuMemsetD8_v2"(to: u64, value: u8, count: usize);
    fn memcpy_to_device_async = "cuMemcpyHtoDAsync_v2"(to: u64, from: *const c_void, bytes: usize, stream: *mut c_void);
    fn memcpy_to_host_async = "cuMemcpyDtoHAsync_v2"(to: *mut c_void, from: u64, bytes: usize, stream: *mut c_void);
    fn memcpy_within_async = "cuMemcpyDtoDAsync_v2"(to: u64, from: u64, bytes: usize, stream: *mut c_void);
    fn memset_d8_async = "cuMemsetD8Async"(to: u64, value: u8, count: usize, stream: *mut c_void);
    fn memset_d32_async = "cuMemsetD32Async"(to: u64, value: u32, count: usize, stream: *mut c_void);
    fn mem_alloc_host = "cuMemAllocHost_v2"(pointer: *mut *mut c_void, bytes: usize);
    fn mem_free_host = "cuMemFreeHost"(pointer: *mut c_void);
    fn launch_kernel = "cuLaunchKernel"(
        function: *mut c_void,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: *mut c_void,
        parameters: *mut *mut c_void, extra: *mut *mut c_void,
    );
    fn launch_cooperative_kernel = "cuLaunchCooperativeKernel"(
        function: *mut c_void,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: *mut c_void,
        parameters: *mut *mut c_void,
    );
    fn occupancy_max_potential_cluster_size = "cuOccupancyMaxPotentialClusterSize"(
        blocks: *mut c_int, function: *mut c_void, config: *const CUlaunchConfig,
    );
    fn graph_create = "cuGraphCreate"(graph: *mut *mut c_void, flags: c_uint);
    fn graph_destroy = "cuGraphDestroy"(graph: *mut c_void);
    fn graph_add_kernel_node = "cuGraphAddKernelNode"(
        node: *mut *mut c_void, graph: *mut c_void, after: *const *mut c_void, after_count: usize,
        parameters: *const CUDA_KERNEL_NODE_PARAMS_v1,
    );
    fn graph_instantiate = "cuGraphInstantiateWithFlags"(
        exec: *mut *mut c_void, graph: *mut c_void, flags: u64,
    );
    fn graph_exec_destroy = "cuGraphExecDestroy"(exec: *mut c_void);
    fn graph_node_set_enabled = "cuGraphNodeSetEnabled"(exec: *mut c_void, node: *mut c_void, enabled: c_uint);
    fn graph_launch = "cuGraphLaunch"(exec: *mut c_void, stream: *mut c_void);
    fn launch_kernel_ex = "cuLaunchKernelEx"(
        config: *const CUlaunchConfig, function: *mut c_void,
        parameters: *mut *mut c_void, extra: *mut *mut c_void,
    );
}

impl Cuda {
    /// Opens the driver: `libcuda.so.1` as the linker finds it, or the file at `path`.
    ///
    /// # Errors
    /// [`Error::Load`] where there is no driver.
    pub fn load(path: Option<&CStr>) -> Result<Self, Error> {
        Ok(Self::resolve(Library::open(path.unwrap_or(c"libcuda.so.1"))?))
    }

    /// The UUIDs of the GPUs that this process sees, in the driver's order.
    ///
    /// # Errors
    /// The driver's.
    pub fn device_uuids(&self) -> Result<Vec<CUuuid>, Error> {
        let mut count = 0;
        // SAFETY: valid pointers and devices below the count.
        unsafe {
            self.init(0)?;
            self.device_get_count(&mut count)?;
            (0..count)
                .map(|ordinal| {
                    let (mut device, mut uuid) = (0, CUuuid { bytes: [0; 16] });
                    self.device_get(&mut device, ordinal)?;
                    self.device_get_uuid(&mut uuid, device)?;
                    Ok(uuid)
                })
                .collect()
        }
    }

    /// Copies to device memory, and returns when it is there. `cuMemcpyHtoD` alone returns once
    /// pageable memory is staged ("API synchronization behavior" of the driver's reference), so
    /// that work on a stream of its own can overtake it: on an H200 it did.
    ///
    /// # Safety
    /// Device memory of that length is valid at `to`.
    ///
    /// # Errors
    /// The driver's.
    pub unsafe fn write(&self, to: u64, data: &[u8]) -> Result<(), Error> {
        // SAFETY: the caller vouches for one range, the slice for the other; the legacy stream is
        // always there.
        unsafe {
            self.memcpy_to_device(to, data.as_ptr().cast(), data.len())?;
            self.stream_synchronize(core::ptr::null_mut())
        }
    }

    /// Bytes of memory of the GPU with this ordinal, as the process is told. Makes no context.
    ///
    /// # Errors
    /// The driver's.
    pub fn memory_bytes(&self, ordinal: u32) -> Result<u64, Error> {
        let (mut device, mut bytes) = (0, 0);
        // SAFETY: valid pointers, and the device that the driver just gave.
        unsafe {
            self.init(0)?;
            self.device_get(&mut device, c_int::try_from(ordinal).unwrap_or(c_int::MAX))?;
            self.device_total_mem(&mut bytes, device)?;
        }
        Ok(bytes as u64)
    }

    /// Lets threads sleep while they wait for the GPU with this ordinal, for programs with more of
    /// them than cores: they spin otherwise, where the driver finds cores enough when it makes the
    /// context. Its primary context must not have been retained yet.
    ///
    /// # Errors
    /// The driver's.
    pub fn sleep_in_waits(&self, ordinal: u32) -> Result<(), Error> {
        let mut device = 0;
        // SAFETY: a valid pointer, and the device that the driver just gave.
        unsafe {
            self.init(0)?;
            self.device_get(&mut device, c_int::try_from(ordinal).unwrap_or(c_int::MAX))?;
            self.primary_set_flags(device, CU_CTX_SCHED_BLOCKING_SYNC)
        }
    }

    /// `cuGetExportTable`, for the launch callback.
    ///
    /// # Errors
    /// [`Error::MissingSymbol`].
    pub fn export_table(&self) -> Result<GetExportTable, Error> {
        let address = self.symbol(c"cuGetExportTable").ok_or(Error::MissingSymbol("cuGetExportTable"))?;
        // SAFETY: the prototype of that name in cuda.h.
        Ok(unsafe { core::mem::transmute::<*mut c_void, GetExportTable>(address.as_ptr()) })
    }
}
