//! libcuda's entry points, as far as Partita itself launches work.

use alloc::vec::Vec;
use core::ffi::{CStr, c_int};

use partita_abi::types::*;

use crate::callback::GetExportTable;
use crate::error::Error;
use crate::library::{Library, method_of, symbols};

symbols! {
    /// libcuda; if the driver lacks a call, only that call fails.
    pub struct Cuda;
    fn init = cuInit;
    fn driver_get_version = cuDriverGetVersion;
    fn device_get_count = cuDeviceGetCount;
    fn device_get = cuDeviceGet;
    fn device_get_name = cuDeviceGetName;
    fn device_get_uuid = cuDeviceGetUuid_v2;
    fn device_get_attribute = cuDeviceGetAttribute;
    fn device_total_mem = cuDeviceTotalMem_v2;
    fn primary_retain = cuDevicePrimaryCtxRetain;
    fn primary_release = cuDevicePrimaryCtxRelease_v2;
    fn primary_set_flags = cuDevicePrimaryCtxSetFlags_v2;
    fn ctx_set_current = cuCtxSetCurrent;
    fn ctx_synchronize = cuCtxSynchronize;
    fn ctx_create_with_affinity = cuCtxCreate_v3;
    fn ctx_pop_current = cuCtxPopCurrent_v2;
    fn ctx_get_exec_affinity = cuCtxGetExecAffinity;
    fn ctx_destroy = cuCtxDestroy_v2;
    fn module_load_data = cuModuleLoadData;
    fn module_unload = cuModuleUnload;
    fn module_get_function = cuModuleGetFunction;
    fn func_set_attribute = cuFuncSetAttribute;
    fn stream_create = cuStreamCreate;
    fn stream_create_with_priority = cuStreamCreateWithPriority;
    fn ctx_get_stream_priority_range = cuCtxGetStreamPriorityRange;
    fn stream_get_ctx = cuStreamGetCtx;
    fn stream_query = cuStreamQuery;
    fn stream_synchronize = cuStreamSynchronize;
    fn stream_destroy = cuStreamDestroy_v2;
    fn stream_wait_event = cuStreamWaitEvent;
    fn stream_write_value32 = cuStreamWriteValue32_v2;
    fn event_create = cuEventCreate;
    fn event_record = cuEventRecord;
    fn event_destroy = cuEventDestroy_v2;
    fn event_query = cuEventQuery;
    fn event_synchronize = cuEventSynchronize;
    fn event_elapsed_time = cuEventElapsedTime;
    fn ipc_get_event_handle = cuIpcGetEventHandle;
    fn ipc_open_event_handle = cuIpcOpenEventHandle;
    fn ipc_get_mem_handle = cuIpcGetMemHandle;
    fn ipc_open_mem_handle = cuIpcOpenMemHandle_v2;
    fn ipc_close_mem_handle = cuIpcCloseMemHandle;
    fn mem_get_allocation_granularity = cuMemGetAllocationGranularity;
    fn mem_create = cuMemCreate;
    fn mem_release = cuMemRelease;
    fn mem_export = cuMemExportToShareableHandle;
    fn mem_import = cuMemImportFromShareableHandle;
    fn mem_address_reserve = cuMemAddressReserve;
    fn mem_address_free = cuMemAddressFree;
    fn mem_map = cuMemMap;
    fn mem_unmap = cuMemUnmap;
    fn mem_set_access = cuMemSetAccess;
    fn ctx_get_current = cuCtxGetCurrent;
    fn ctx_get_device = cuCtxGetDevice;
    fn device_get_dev_resource = cuDeviceGetDevResource;
    fn sm_resource_split_by_count = cuDevSmResourceSplitByCount;
    fn resource_generate_desc = cuDevResourceGenerateDesc;
    fn green_ctx_create = cuGreenCtxCreate;
    fn green_ctx_destroy = cuGreenCtxDestroy;
    fn green_ctx_stream_create = cuGreenCtxStreamCreate;
    fn ctx_from_green_ctx = cuCtxFromGreenCtx;
    fn mem_get_info = cuMemGetInfo_v2;
    fn mem_alloc = cuMemAlloc_v2;
    fn mem_free = cuMemFree_v2;
    fn memcpy_to_device = cuMemcpyHtoD_v2;
    fn memcpy_to_host = cuMemcpyDtoH_v2;
    fn memset_d8 = cuMemsetD8_v2;
    fn memcpy_to_device_async = cuMemcpyHtoDAsync_v2;
    fn memcpy_to_host_async = cuMemcpyDtoHAsync_v2;
    fn memcpy_within_async = cuMemcpyDtoDAsync_v2;
    fn memset_d8_async = cuMemsetD8Async;
    fn memset_d32_async = cuMemsetD32Async;
    fn mem_alloc_host = cuMemAllocHost_v2;
    fn mem_free_host = cuMemFreeHost;
    fn launch_kernel = cuLaunchKernel;
    fn launch_cooperative_kernel = cuLaunchCooperativeKernel;
    fn occupancy_max_potential_cluster_size = cuOccupancyMaxPotentialClusterSize;
    fn graph_create = cuGraphCreate;
    fn graph_destroy = cuGraphDestroy;
    fn graph_add_kernel_node = cuGraphAddKernelNode;
    fn graph_instantiate = cuGraphInstantiateWithFlags;
    fn graph_exec_destroy = cuGraphExecDestroy;
    fn graph_node_set_enabled = cuGraphNodeSetEnabled;
    fn graph_launch = cuGraphLaunch;
    fn launch_kernel_ex = cuLaunchKernelEx;
}

impl Cuda {
    /// Opens the driver: `libcuda.so.1` as the linker finds it, or the file at `path`.
    ///
    /// # Errors
    /// [`Error::Load`] without a driver.
    pub fn load(path: Option<&CStr>) -> Result<Self, Error> {
        Ok(Self::resolve(Library::open(path.unwrap_or(c"libcuda.so.1"))?))
    }

    /// The UUIDs of the GPUs that this process sees, in the driver's order.
    ///
    /// # Errors
    /// Those of the driver.
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

    /// Copies to device memory, and returns when the data has arrived. `cuMemcpyHtoD` alone returns
    /// once pageable memory is staged ("API synchronization behavior" of the driver's reference),
    /// so that work on another stream can overtake it; on an H200 it did.
    ///
    /// # Safety
    /// Device memory of that length is valid at `to`.
    ///
    /// # Errors
    /// Those of the driver.
    pub unsafe fn write(&self, to: u64, data: &[u8]) -> Result<(), Error> {
        // SAFETY: the caller guarantees one range, the slice the other; the legacy stream always
        // exists.
        unsafe {
            self.memcpy_to_device(to, data.as_ptr().cast(), data.len())?;
            self.stream_synchronize(core::ptr::null_mut())
        }
    }

    /// Bytes of memory of the GPU with this ordinal, as the driver reports it to this process.
    /// Creates no context.
    ///
    /// # Errors
    /// Those of the driver.
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

    /// Makes threads sleep while they wait for the GPU with this ordinal, for programs with more
    /// threads than cores. By default they spin if the driver finds enough cores when it creates
    /// the context. The primary context must not have been retained yet.
    ///
    /// # Errors
    /// Those of the driver.
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
