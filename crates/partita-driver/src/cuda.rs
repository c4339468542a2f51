//! libcuda's entry points, as far as Partita itself launches work.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};

use partita_abi::types::{CUlaunchConfig, CUuuid};

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
    fn ctx_set_current = "cuCtxSetCurrent"(context: *mut c_void);
    fn ctx_synchronize = "cuCtxSynchronize"();
    fn module_load_data = "cuModuleLoadData"(module: *mut *mut c_void, image: *const c_void);
    fn module_get_function = "cuModuleGetFunction"(function: *mut *mut c_void, module: *mut c_void, name: *const c_char);
    fn func_set_attribute = "cuFuncSetAttribute"(function: *mut c_void, attribute: c_uint, value: c_int);
    fn stream_create = "cuStreamCreate"(stream: *mut *mut c_void, flags: c_uint);
    fn stream_query = "cuStreamQuery"(stream: *mut c_void);
    fn stream_synchronize = "cuStreamSynchronize"(stream: *mut c_void);
    fn mem_get_info = "cuMemGetInfo_v2"(free: *mut usize, total: *mut usize);
    fn mem_alloc = "cuMemAlloc_v2"(pointer: *mut u64, bytes: usize);
    fn mem_free = "cuMemFree_v2"(pointer: u64);
    fn memcpy_to_device = "cuMemcpyHtoD_v2"(to: u64, from: *const c_void, bytes: usize);
    fn memcpy_to_host = "cuMemcpyDtoH_v2"(to: *mut c_void, from: u64, bytes: usize);
    fn memset_d8 = "cuMemsetD8_v2"(to: u64, value: u8, count: usize);
    fn launch_kernel = "cuLaunchKernel"(
        function: *mut c_void,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: *mut c_void,
        parameters: *mut *mut c_void, extra: *mut *mut c_void,
    );
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

    /// `cuGetExportTable`, for the launch callback.
    ///
    /// # Errors
    /// [`Error::MissingSymbol`].
    pub fn export_table(&self) -> Result<GetExportTable, Error> {
        let address = self.library().symbol(c"cuGetExportTable");
        if address.is_null() {
            return Err(Error::MissingSymbol("cuGetExportTable"));
        }
        // SAFETY: the prototype of that name in cuda.h.
        Ok(unsafe { core::mem::transmute::<*mut c_void, GetExportTable>(address) })
    }
}
