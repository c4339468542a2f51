//! Physical memory of the virtual memory management calls (`cuMemCreate`).
//!
//! Charged when created. Credited when nothing keeps it any more: the driver
//! frees it once every handle is released and every mapping undone.

use core::ffi::c_void;

use partita_abi::CuResult;
use partita_abi::types::{CU_MEM_LOCATION_TYPE_DEVICE, CUmemAllocationProp};

use crate::allocations::Kind;
use crate::gpu::Charge;
use crate::tenant;

type Create = unsafe extern "C" fn(*mut u64, usize, *const CUmemAllocationProp, u64) -> CuResult;

/// Wraps `cuMemCreate`. Host memory (`CU_MEM_LOCATION_TYPE_HOST*`) is not
/// device memory and passes.
pub unsafe fn create(
    real: Create,
    handle: *mut u64,
    bytes: usize,
    properties: *const CUmemAllocationProp,
    flags: u64,
) -> CuResult {
    let Some(tenant) = tenant::current() else {
        if tenant::is_refused() {
            return CuResult::NOT_INITIALIZED;
        }
        // SAFETY: the caller's arguments, passed on.
        return unsafe { real(handle, bytes, properties, flags) };
    };
    // SAFETY: the caller's properties, null or valid.
    let location = unsafe { properties.as_ref() }.map(|wanted| wanted.location);
    let on_device = location.filter(|location| location.kind == CU_MEM_LOCATION_TYPE_DEVICE);
    // Of a device that is not there the driver says so.
    let Some(gpu) = on_device.and_then(|location| tenant.gpu_of_device(location.id).ok()) else {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { real(handle, bytes, properties, flags) };
    };
    let charge = Charge { gpu: gpu.index, bytes: bytes as u64 };
    if !gpu.reserve(charge.bytes) {
        return CuResult::OUT_OF_MEMORY;
    }
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(handle, bytes, properties, flags) };
    if result.is_err() {
        gpu.credit(charge.bytes);
    } else if charge.bytes > 0 {
        // Physical memory belongs to no context, so none is recorded.
        // SAFETY: the driver has written the handle.
        let stale = tenant.allocations().insert(Kind::Physical, unsafe { *handle }, charge, 0);
        stale.into_iter().for_each(|stale| tenant.credit(stale));
    }
    result
}

/// Wraps `cuMemRelease`.
pub unsafe fn release(real: unsafe extern "C" fn(u64) -> CuResult, handle: u64) -> CuResult {
    let Some(tenant) = tenant::current() else {
        // SAFETY: the caller's handle, passed on.
        return unsafe { real(handle) };
    };
    // Held across the call, so that no other thread can be given the handle's
    // number between the driver's release and the credit.
    let mut allocations = tenant.allocations();
    // SAFETY: the caller's handle, passed on.
    let result = unsafe { real(handle) };
    if result.is_ok() {
        let freed = allocations.release_physical(handle);
        drop(allocations);
        freed.into_iter().for_each(|freed| tenant.credit(freed));
    }
    result
}

/// Wraps `cuMemRetainAllocationHandle`.
pub unsafe fn retain(
    real: unsafe extern "C" fn(*mut u64, *mut c_void) -> CuResult,
    handle: *mut u64,
    address: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(handle, address) };
    if result.is_ok()
        && let Some(tenant) = tenant::current()
    {
        // SAFETY: the driver has written the handle.
        tenant.allocations().retain_physical(unsafe { *handle });
    }
    result
}

/// Wraps `cuMemMap`.
pub unsafe fn map(
    real: unsafe extern "C" fn(u64, usize, usize, u64, u64) -> CuResult,
    address: u64,
    bytes: usize,
    offset: usize,
    handle: u64,
    flags: u64,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(address, bytes, offset, handle, flags) };
    if result.is_ok()
        && let Some(tenant) = tenant::current()
    {
        tenant.allocations().map(address, handle);
    }
    result
}

/// Wraps `cuMemUnmap`.
pub unsafe fn unmap(
    real: unsafe extern "C" fn(u64, usize) -> CuResult,
    address: u64,
    bytes: usize,
) -> CuResult {
    let Some(tenant) = tenant::current() else {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { real(address, bytes) };
    };
    let mut allocations = tenant.allocations();
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(address, bytes) };
    if result.is_ok() {
        let freed = allocations.unmap(address, bytes as u64);
        drop(allocations);
        freed.into_iter().for_each(|freed| tenant.credit(freed));
    }
    result
}
