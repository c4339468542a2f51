//! Physical memory of the virtual memory management calls (`cuMemCreate`).
//!
//! Charged when created. Credited when nothing keeps it any more: the driver
//! frees it once every handle is released and every mapping undone.

use core::ffi::c_void;

use partita_abi::CuResult;
use partita_abi::types::{CU_MEM_LOCATION_TYPE_DEVICE, CUmemAllocationProp};

use crate::allocations::Kind;
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
    let on_device = unsafe { properties.as_ref() }
        .is_some_and(|wanted| wanted.location.kind == CU_MEM_LOCATION_TYPE_DEVICE);
    let charge_bytes = if on_device { bytes as u64 } else { 0 };
    if !tenant.reserve(charge_bytes) {
        return CuResult::OUT_OF_MEMORY;
    }
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(handle, bytes, properties, flags) };
    if result.is_err() {
        tenant.credit(charge_bytes);
    } else if charge_bytes > 0 {
        // Physical memory belongs to no context, so none is recorded.
        // SAFETY: the driver has written the handle.
        let stale_bytes = tenant.allocations().insert(Kind::Physical, unsafe { *handle }, charge_bytes, 0);
        tenant.credit(stale_bytes);
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
        let freed_bytes = allocations.release_physical(handle);
        drop(allocations);
        tenant.credit(freed_bytes);
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
        let freed_bytes = allocations.unmap(address, bytes as u64);
        drop(allocations);
        tenant.credit(freed_bytes);
    }
    result
}
