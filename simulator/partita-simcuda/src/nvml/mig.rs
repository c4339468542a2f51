//! MIG: the instances into which a GPU is divided, which are devices with their own handles.

use std::ffi::c_uint;

use super::{Device, Handle, NvmlReturn, device, devices, handle_of, put};
use crate::shared::place::INSTANCES_MAX;

fn is_instance(device: &Device) -> Result<(), NvmlReturn> {
    if device.place.gpu_instance().is_some() { Ok(()) } else { Err(NvmlReturn::NOT_SUPPORTED) }
}

nvml_api! {
    /// Whether the GPU is divided, now and after the next reset.
    fn nvmlDeviceGetMigMode(handle: Handle, current: *mut c_uint, pending: *mut c_uint) {
        let device = device(handle)?;
        if device.place.profiles().is_empty() {
            return Err(NvmlReturn::NOT_SUPPORTED);
        }
        let on = u32::from(device.place.division_store().is_some());
        put(current, on)?;
        put(pending, on)
    }
    /// An instance of a GPU by its place in the list.
    fn nvmlDeviceGetMigDeviceHandleByIndex(handle: Handle, index: c_uint, to: *mut Handle) {
        let instances = device(handle)?.instances()?.ok_or(NvmlReturn::NOT_SUPPORTED)?;
        put(to, handle_of(instances.get(index as usize).ok_or(NvmlReturn::NOT_FOUND)?))
    }
    /// The GPU of an instance.
    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle: Handle, to: *mut Handle) {
        let instance = device(handle)?;
        is_instance(&instance)?;
        let gpu = devices()?.into_iter().find(|gpu| gpu.place.index == instance.place.index);
        put(to, handle_of(&*gpu.ok_or(NvmlReturn::NOT_FOUND)?))
    }
}

nvml_getters! {
    /// Whether the handle is that of an instance.
    fn nvmlDeviceIsMigDeviceHandle -> u32 = |device| u32::from(device.place.gpu_instance().is_some());
    /// How many instances there can be.
    fn nvmlDeviceGetMaxMigDeviceCount -> u32 = |device| {
        if device.place.profiles().is_empty() { 0 } else { INSTANCES_MAX as u32 }
    };
    /// The number of an instance's GPU instance.
    fn nvmlDeviceGetGpuInstanceId -> u32 = |device| {
        device.place.gpu_instance().ok_or(NvmlReturn::NOT_SUPPORTED)?
    };
    /// The number of an instance's compute instance in that.
    fn nvmlDeviceGetComputeInstanceId -> u32 = |device| {
        is_instance(&device)?;
        0
    };
}
