//! Memory of other processes and of other programming interfaces.

use core::ffi::{c_int, c_uint, c_void};

use partita_abi::CuResult;
use partita_abi::prototypes;
use partita_abi::types::{CUDA_EXTERNAL_MEMORY_HANDLE_DESC, CUipcMemHandle};

use crate::account::gpu::Charge;
use crate::account::locate;
use crate::account::tenant::{self, Tenant};
use crate::memory::allocations::{self, Kind};
use crate::memory::{device, driver_memory, holdings, shares};

/// Wraps `cuIpcGetMemHandle`: memory that another process can now open moves to an account that it
/// can share.
pub unsafe fn export(
    real: prototypes::cuIpcGetMemHandle,
    handle: *mut CUipcMemHandle,
    pointer: u64,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(handle, pointer) };
    if result.is_err() {
        return result;
    }
    if let Some(tenant) = tenant::current()
        && let Some((base, _)) = tenant.driver().range_of(pointer)
    {
        // SAFETY: the driver has written the handle.
        let key = shares::key_of_bytes(unsafe { &(*handle).reserved });
        allocations::lock().change(Kind::Pointer, base, |charge| shares::share(tenant, charge, key));
    }
    result
}

/// Wraps `cuIpcOpenMemHandle`. Its size is known only once it is open; opening takes no device
/// memory, so it is charged then, and closed again if the quota has no room for it
/// (`CUDA_ERROR_MAP_FAILED`). Memory of another of the tenant's GPUs is charged there.
pub unsafe fn open(
    real: prototypes::cuIpcOpenMemHandle,
    pointer: *mut u64,
    handle: CUipcMemHandle,
    flags: c_uint,
) -> CuResult {
    let Some(tenant) = tenant::current() else {
        if tenant::is_refused() {
            return CuResult::NOT_INITIALIZED;
        }
        // SAFETY: the caller's arguments, passed on.
        return unsafe { real(pointer, handle, flags) };
    };
    let here = holdings::here(tenant);
    // Held across the call, so that no other thread closes it before it is noted.
    let references = holdings::references();
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(pointer, handle, flags) };
    if result.is_err() {
        return result;
    }
    // SAFETY: the driver has written the pointer.
    let given = unsafe { *pointer };
    if allocations::lock().retain(Kind::Opened, given) {
        return result;
    }
    match charge_opened(tenant, given, shares::key_of_bytes(&handle.reserved)) {
        Ok(charge) => {
            holdings::hold(tenant, Kind::Opened, given, charge, here);
            result
        }
        Err(_) => {
            tenant.driver().close(given);
            drop(references);
            CuResult::MAP_FAILED
        }
    }
}

fn charge_opened(tenant: &Tenant, given: u64, key: partita_ledger::Key) -> Result<Charge, CuResult> {
    if tenant.is_charged_unseen(key) {
        // It lies on another GPU of the tenant, where its owner has it.
        return Ok(Charge::own(0, 0));
    }
    let (_, bytes) = tenant.driver().range_of(given).ok_or(CuResult::MAP_FAILED)?;
    let gpu = locate::gpu_of_pointer(tenant, given).ok_or(CuResult::MAP_FAILED)?;
    holdings::with_room(tenant, gpu, || shares::join(gpu, key, bytes))
}

/// Wraps `cuIpcCloseMemHandle`.
pub unsafe fn close(real: prototypes::cuIpcCloseMemHandle, pointer: u64) -> CuResult {
    let Some(tenant) = tenant::current() else {
        // SAFETY: the caller's pointer, passed on.
        return unsafe { real(pointer) };
    };
    let _references = holdings::references();
    // SAFETY: the caller's pointer, passed on.
    let result = unsafe { real(pointer) };
    if result.is_ok() {
        let freed = allocations::lock().release(Kind::Opened, pointer);
        freed.into_iter().for_each(|freed| holdings::credit(tenant, freed));
    }
    result
}

/// Wraps `cuImportExternalMemory`: device memory that a graphics interface has allocated, which
/// nothing charges before. Over the quota it fails with `CUDA_ERROR_OPERATING_SYSTEM`, as where the
/// import itself does.
pub unsafe fn import_external(
    real: prototypes::cuImportExternalMemory,
    memory: *mut *mut c_void,
    wanted: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
) -> CuResult {
    // SAFETY: the caller's description, null or valid.
    let bytes = unsafe { wanted.as_ref() }.map_or(0, |wanted| wanted.size);
    // SAFETY: the caller's arguments; on success the driver has written the handle.
    let import = || unsafe { real(memory, wanted) };
    // SAFETY: as above.
    match device::charged(Kind::External, bytes, import, || unsafe { *memory } as u64) {
        CuResult::OUT_OF_MEMORY => CuResult::OPERATING_SYSTEM,
        result => result,
    }
}

/// Wraps `cuDestroyExternalMemory`.
pub unsafe fn destroy_external(real: prototypes::cuDestroyExternalMemory, memory: *mut c_void) -> CuResult {
    // SAFETY: the caller's handle, passed on.
    device::released(Kind::External, memory as u64, || unsafe { real(memory) })
}

/// Wraps `cuMemMapArrayAsync`, with which memory outlives its handle inside of sparse arrays: the
/// hook does not track this yet, so a tenant with a quota is refused (`CUDA_ERROR_INVALID_VALUE`,
/// which the call documents).
pub unsafe fn map_array(
    real: prototypes::cuMemMapArrayAsync,
    list: *mut c_void,
    count: c_uint,
    stream: *mut c_void,
) -> CuResult {
    if tenant::current().is_some_and(Tenant::has_quota) {
        return CuResult::INVALID_VALUE;
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real(list, count, stream) }
}

/// Wraps `cuLogicalEndpointBindAddr` of CUDA 13.3. Memory bound to an endpoint outlives its handle,
/// which the hook does not track yet: a tenant with a quota is refused
/// (`CUDA_ERROR_NOT_SUPPORTED`).
pub unsafe fn bind_endpoint_address(
    real: prototypes::cuLogicalEndpointBindAddr,
    endpoint: c_uint,
    device: c_int,
    offset: u64,
    address: *mut c_void,
    bytes: u64,
    flags: u64,
) -> CuResult {
    if tenant::current().is_some_and(Tenant::has_quota) {
        return CuResult::NOT_SUPPORTED;
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real(endpoint, device, offset, address, bytes, flags) }
}

/// Wraps `cuLogicalEndpointBindMem`, as [`bind_endpoint_address`].
#[expect(clippy::too_many_arguments, reason = "the driver's prototype")]
pub unsafe fn bind_endpoint_memory(
    real: prototypes::cuLogicalEndpointBindMem,
    endpoint: c_uint,
    device: c_int,
    offset: u64,
    memory: u64,
    memory_offset: u64,
    bytes: u64,
    flags: u64,
) -> CuResult {
    if tenant::current().is_some_and(Tenant::has_quota) {
        return CuResult::NOT_SUPPORTED;
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real(endpoint, device, offset, memory, memory_offset, bytes, flags) }
}

/// `CU_LIMIT_PRINTF_FIFO_SIZE`.
const LIMIT_PRINTF: c_uint = 1;
/// `CU_LIMIT_MALLOC_HEAP_SIZE`.
const LIMIT_HEAP: c_uint = 2;

/// Wraps `cuCtxSetLimit`: the heap of kernels and their output are device memory of the size that
/// is set here. The part above the initial size is charged until the context ends.
pub unsafe fn set_limit(real: prototypes::cuCtxSetLimit, limit: c_uint, value: usize) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let set = || unsafe { real(limit, value) };
    let Some(tenant) = tenant::current().filter(|_| matches!(limit, LIMIT_PRINTF | LIMIT_HEAP)) else {
        return set();
    };
    // Two threads that set it at once would both pay, or be credited, for the difference to the
    // same value.
    let _contexts = holdings::contexts();
    let (Some(now), Ok(gpu)) = (tenant.driver().context_limit(limit), locate::gpu_now(tenant)) else {
        return set();
    };
    let context = tenant.driver().current_context();
    let (first, held) = allocations::lock().context_limit(context, limit, now);
    let wanted = (value as u64).saturating_sub(first);
    if !holdings::reserve(tenant, gpu, wanted.saturating_sub(held)) {
        return CuResult::OUT_OF_MEMORY;
    }
    let result = set();
    if result.is_err() {
        gpu.credit(wanted.saturating_sub(held));
        return result;
    }
    allocations::lock().set_context_limit(context, limit, first, Charge::own(gpu.index, wanted));
    driver_memory::limits_charged(held, wanted);
    gpu.credit(held.saturating_sub(wanted));
    result
}
