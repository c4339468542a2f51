//! Physical memory of the virtual memory management calls (`cuMemCreate`).
//!
//! Charged when created. Credited when nothing keeps it any more: the driver frees it once every
//! handle is released and every mapping removed. A process makes these calls one at a time: the
//! driver's changes of a handle and their records have one order, whatever threads map, release and
//! retain it at the same time.

use core::ffi::{c_int, c_void};

use partita_abi::CuResult;
use partita_abi::prototypes;
use partita_abi::types::{
    CU_MEM_HANDLE_TYPE_FABRIC, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_LOCATION_TYPE_DEVICE,
    CUmemAllocationHandleType, CUmemAllocationProp,
};

use crate::account::gpu::{Account, Charge};
use crate::account::{locate, tenant};
use crate::memory::allocations::{self, Kind};
use crate::memory::holdings;
use crate::memory::shares::{self, Mark};

/// Wraps `cuMemCreate`. Host memory (`CU_MEM_LOCATION_TYPE_HOST*`) is not
/// device memory and passes.
pub unsafe fn create(
    real: prototypes::cuMemCreate,
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
    let Some(gpu) = on_device.and_then(|location| locate::gpu_of_device(tenant, location.id).ok()) else {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { real(handle, bytes, properties, flags) };
    };
    let charge = Charge::own(gpu.index, bytes as u64);
    if !holdings::reserve(tenant, gpu, charge.bytes) {
        return CuResult::OUT_OF_MEMORY;
    }
    let _references = holdings::references();
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(handle, bytes, properties, flags) };
    if result.is_err() {
        gpu.credit(charge.bytes);
    } else if charge.bytes > 0 {
        // Physical memory belongs to no context, so none is recorded.
        // SAFETY: the driver has written the handle.
        let stale = allocations::lock().insert(Kind::Physical, unsafe { *handle }, charge, 0, || None);
        stale.into_iter().for_each(|stale| holdings::credit(tenant, stale));
    }
    result
}

/// Wraps `cuMemRelease`.
pub unsafe fn release(real: prototypes::cuMemRelease, handle: u64) -> CuResult {
    let Some(tenant) = tenant::current() else {
        // SAFETY: the caller's handle, passed on.
        return unsafe { real(handle) };
    };
    let _references = holdings::references();
    // SAFETY: the caller's handle, passed on.
    let result = unsafe { real(handle) };
    if result.is_ok() {
        let freed = allocations::lock().release_physical(handle);
        freed.into_iter().for_each(|freed| holdings::credit(tenant, freed));
    }
    result
}

/// Wraps `cuMemRetainAllocationHandle`.
pub unsafe fn retain(
    real: prototypes::cuMemRetainAllocationHandle,
    handle: *mut u64,
    address: *mut c_void,
) -> CuResult {
    let tenant = tenant::current();
    let _references = tenant.map(|_| holdings::references());
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(handle, address) };
    if result.is_ok() && tenant.is_some() {
        // SAFETY: the driver has written the handle.
        allocations::lock().retain(Kind::Physical, unsafe { *handle });
    }
    result
}

/// Wraps `cuMemMap`.
pub unsafe fn map(
    real: prototypes::cuMemMap,
    address: u64,
    bytes: usize,
    offset: usize,
    handle: u64,
    flags: u64,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let map = || unsafe { real(address, bytes, offset, handle, flags) };
    let Some(tenant) = tenant::current() else { return map() };
    let _references = holdings::references();
    let held = allocations::lock().charge(Kind::Physical, handle);
    // Imported without a size, or with a mark that understates it: mapped memory beyond the charge
    // is charged, for as long as it is mapped.
    let end = (offset as u64).saturating_add(bytes as u64);
    let charge = held.filter(|held| held.bytes < end).map(|held| Charge::own(held.gpu, end - held.bytes));
    if let Some(charge) = charge
        && !holdings::reserve_on(tenant, charge)
    {
        return CuResult::OUT_OF_MEMORY;
    }
    let result = map();
    if result.is_ok() {
        allocations::lock().map(address, handle, charge);
    } else if let Some(charge) = charge {
        holdings::credit(tenant, charge);
    }
    result
}

/// Wraps `cuMemUnmap`.
pub unsafe fn unmap(real: prototypes::cuMemUnmap, address: u64, bytes: usize) -> CuResult {
    let Some(tenant) = tenant::current() else {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { real(address, bytes) };
    };
    let _references = holdings::references();
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(address, bytes) };
    if result.is_ok() {
        let freed = allocations::lock().unmap(address, bytes as u64);
        freed.into_iter().for_each(|freed| holdings::credit(tenant, freed));
    }
    result
}

/// Wraps `cuMemExportToShareableHandle`: memory that another process can now import moves to an
/// account that it can share.
pub unsafe fn export(
    real: prototypes::cuMemExportToShareableHandle,
    shareable: *mut c_void,
    handle: u64,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> CuResult {
    let tenant = tenant::current();
    let _references = tenant.map(|_| holdings::references());
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(shareable, handle, kind, flags) };
    let Some(tenant) = tenant.filter(|_| result.is_ok()) else { return result };
    let mut allocations = allocations::lock();
    let Some(charge) = allocations.charge(Kind::Physical, handle).filter(|charge| charge.bytes > 0) else {
        return result;
    };
    let key = match kind {
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => {
            let mark = match charge.account {
                Account::Shared(key) => Mark::again(key, charge.bytes),
                _ => Mark::new(charge.bytes),
            };
            // SAFETY: the driver has written a descriptor there.
            let descriptor = unsafe { *shareable.cast::<c_int>() };
            mark.filter(|mark| mark.put_on(descriptor)).map(|mark| mark.key())
        }
        // SAFETY: the driver has written as many bytes there.
        CU_MEM_HANDLE_TYPE_FABRIC => Some(shares::key_of_bytes(unsafe { &*shareable.cast::<[u8; 64]>() })),
        _ => None,
    };
    // Without a key, every process that imports the memory is charged as well.
    if let Some(key) = key {
        allocations.change(Kind::Physical, handle, |charge| shares::share(tenant, charge, key));
    }
    result
}

/// Wraps `cuMemImportFromShareableHandle`. Importing takes no device memory, so memory that the
/// tenant does not hold yet is charged after it; beyond the quota it is undone
/// (`CUDA_ERROR_NOT_PERMITTED`, which the call documents).
pub unsafe fn import(
    real: prototypes::cuMemImportFromShareableHandle,
    handle: *mut u64,
    shareable: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let import = || unsafe { real(handle, shareable, kind) };
    let Some(tenant) = tenant::current() else {
        return if tenant::is_refused() { CuResult::NOT_INITIALIZED } else { import() };
    };
    // Before the call: the descriptor stays the caller's, but the driver owns the memory behind it.
    let mark = match kind {
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => c_int::try_from(shareable.addr()).ok().and_then(Mark::of),
        _ => None,
    };
    let _references = holdings::references();
    let result = import();
    if result.is_err() {
        return result;
    }
    // SAFETY: the driver has written the handle.
    let given = unsafe { *handle };
    if allocations::lock().retain(Kind::Physical, given) {
        return result;
    }
    let Some(gpu) =
        tenant.driver().device_of_handle(given).and_then(|device| locate::gpu_of_device(tenant, device).ok())
    else {
        // Host memory.
        return result;
    };
    let charge = match mark {
        Some(mark) => holdings::with_room(tenant, gpu, || shares::join(gpu, mark.key(), mark.bytes)),
        None => Ok(Charge::own(gpu.index, 0)),
    };
    match charge {
        Ok(charge) => {
            let stale = allocations::lock().insert(Kind::Physical, given, charge, 0, || None);
            stale.into_iter().for_each(|stale| holdings::credit(tenant, stale));
            result
        }
        Err(_) => {
            tenant.driver().release_handle(given);
            CuResult::NOT_PERMITTED
        }
    }
}
