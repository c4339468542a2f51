//! Device memory: reserved in the ledger before the driver is called.
//!
//! A request is charged with the bytes that the program requested (a pitched allocation with pitch
//! times height, an array with its elements), which is also what `cuMemGetAddressRange` reports.
//! Beyond the quota the call returns `CUDA_ERROR_OUT_OF_MEMORY` and the driver is not called.

use core::ffi::{c_uint, c_void};

use partita_abi::CuResult;
use partita_abi::prototypes;
use partita_abi::types::{
    CU_MEM_ATTACH_GLOBAL, CU_MEM_ATTACH_HOST, CUDA_ARRAY3D_DEFERRED_MAPPING, CUDA_ARRAY3D_DESCRIPTOR,
    CUDA_ARRAY3D_SPARSE, array_bytes, mipmapped_array_bytes,
};

use crate::account::gpu::{Account, Charge, Form, Gpu};
use crate::account::locate;
use crate::account::tenant::{self, Tenant};
use crate::driver::word::Word;
use crate::memory::allocations::{self, Kind};
use crate::memory::{holdings, pools, spill};

/// Charges `bytes` on the GPU of the current context, runs `allocate`, and records the result;
/// credits the bytes again if it failed. The driver decides about a request for 0 bytes.
pub fn charged(
    kind: Kind,
    bytes: u64,
    allocate: impl FnOnce() -> CuResult,
    handle: impl FnOnce() -> u64,
) -> CuResult {
    let Some(tenant) = tenant::current() else {
        return if tenant::is_refused() { CuResult::NOT_INITIALIZED } else { allocate() };
    };
    let gpu = match locate::gpu_now(tenant) {
        Ok(gpu) => gpu,
        Err(code) => return code,
    };
    if !holdings::reserve(tenant, gpu, bytes) {
        return CuResult::OUT_OF_MEMORY;
    }
    let here = holdings::here(tenant);
    let result = allocate();
    if result.is_ok() {
        holdings::hold(tenant, kind, handle(), Charge::own(gpu.index, bytes), here);
    } else {
        gpu.credit(bytes);
    }
    result
}

/// Runs `free`, and credits the handle's charge if the driver freed it.
///
/// The holding is removed first: once the driver has freed the memory, another thread may get the
/// same address.
pub fn released(kind: Kind, handle: u64, free: impl FnOnce() -> CuResult) -> CuResult {
    let Some(tenant) = tenant::current() else { return free() };
    let (holding, since) = {
        let mut allocations = allocations::lock();
        (allocations.remove(kind, handle), allocations.now())
    };
    let is_host = holding.is_some_and(|holding| matches!(holding.charge.account, Account::Host(_)));
    let result = if is_host { spill::free(handle) } else { free() };
    match holding {
        Some(holding) if result.is_ok() => holdings::credit(tenant, holding.charge),
        Some(holding) => holdings::restore(tenant, kind, handle, holding, since, result),
        // Another thread may have had the holding out, and put it back.
        None if result.is_ok() => holdings::bury(tenant, kind, handle, false),
        None => {}
    }
    result
}

/// Wraps `cuMemAlloc`.
pub unsafe fn alloc<P: Word, S: Word>(
    real: unsafe extern "C" fn(*mut P, S) -> CuResult,
    pointer: *mut P,
    bytes: S,
) -> CuResult {
    // SAFETY: the caller's arguments; on success the driver has written the pointer.
    let result = charged(
        Kind::Pointer,
        bytes.to_u64(),
        || unsafe { real(pointer, bytes) },
        || unsafe { *pointer }.to_u64(),
    );
    // SAFETY: the driver found nothing wrong with the pointer, or was not asked yet: then it is the
    // caller's word that it can be written to, as for the driver.
    unsafe { or_spilled(result, pointer, bytes.to_u64(), Form::Device) }
}

/// The outcome of an allocation: with memory of the host if there was no room, and the tenant has
/// that.
///
/// # Safety
/// The pointer can be written to.
unsafe fn or_spilled<P: Word>(result: CuResult, pointer: *mut P, bytes: u64, form: Form) -> CuResult {
    // A 32-bit pointer reaches no host memory.
    if result != CuResult::OUT_OF_MEMORY || size_of::<P>() < size_of::<u64>() || pointer.is_null() {
        return result;
    }
    let given = tenant::current()
        .and_then(|tenant| spill::allocate(tenant, locate::gpu_now(tenant).ok()?, bytes, form));
    given.map_or(result, |given| {
        // SAFETY: the caller's word.
        unsafe { *pointer = P::from_u64(given) };
        CuResult::SUCCESS
    })
}

/// Wraps `cuMemAllocManaged`.
pub unsafe fn alloc_managed(
    real: prototypes::cuMemAllocManaged,
    pointer: *mut u64,
    bytes: usize,
    flags: c_uint,
) -> CuResult {
    // SAFETY: the caller's arguments.
    let allocate = || unsafe { real(pointer, bytes, flags) };
    // SAFETY: on success the driver has written the pointer.
    let result = charged(Kind::Pointer, bytes as u64, allocate, || unsafe { *pointer });
    // The driver refuses invalid flags by itself; the hook may not even call it.
    if !matches!(flags, CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST) {
        return result;
    }
    // SAFETY: as in `alloc`.
    unsafe { or_spilled(result, pointer, bytes as u64, Form::Managed) }
}

/// Wraps `cuMemAllocPitch`.
pub unsafe fn alloc_pitch<P: Word, S: Word>(
    real: unsafe extern "C" fn(*mut P, *mut S, S, S, c_uint) -> CuResult,
    pointer: *mut P,
    pitch: *mut S,
    width: S,
    height: S,
    element: c_uint,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let allocate = || unsafe { real(pointer, pitch, width, height, element) };
    let Some(tenant) = tenant::current() else { return charged(Kind::Pointer, 0, allocate, || 0) };
    let gpu = match locate::gpu_now(tenant) {
        Ok(gpu) => gpu,
        Err(code) => return code,
    };
    let rows = (width.to_u64(), height.to_u64());
    // SAFETY: the driver has written both when it is asked.
    let given = || unsafe { ((*pointer).to_u64(), (*pitch).to_u64()) };
    let result = charged_rows(tenant, gpu, rows, allocate, given);
    let can_spill = size_of::<P>() == size_of::<u64>() && !pointer.is_null() && !pitch.is_null();
    // Elements of other sizes are refused by the driver, which may not have been asked.
    if result != CuResult::OUT_OF_MEMORY || !can_spill || !matches!(element, 4 | 8 | 16) {
        return result;
    }
    spill::allocate_rows(tenant, gpu, rows.0, rows.1).map_or(result, |(address, pitch_bytes)| {
        // SAFETY: as in `alloc`.
        unsafe {
            *pointer = P::from_u64(address);
            *pitch = S::from_u64(pitch_bytes);
        }
        CuResult::SUCCESS
    })
}

/// Allocates rows. The pitch is the driver's choice, so the padding is charged after the call, and
/// the call undone if the quota has no room for it.
fn charged_rows(
    tenant: &Tenant,
    gpu: &Gpu,
    (width, height): (u64, u64),
    allocate: impl FnOnce() -> CuResult,
    given: impl FnOnce() -> (u64, u64),
) -> CuResult {
    let asked_bytes = width.saturating_mul(height);
    if !holdings::reserve(tenant, gpu, asked_bytes) {
        return CuResult::OUT_OF_MEMORY;
    }
    let here = holdings::here(tenant);
    let result = allocate();
    if result.is_err() {
        gpu.credit(asked_bytes);
        return result;
    }
    let (address, pitch_bytes) = given();
    let padding_bytes = pitch_bytes.saturating_mul(height).saturating_sub(asked_bytes);
    if holdings::reserve(tenant, gpu, padding_bytes) {
        holdings::hold(
            tenant,
            Kind::Pointer,
            address,
            Charge::own(gpu.index, asked_bytes + padding_bytes),
            here,
        );
        result
    } else {
        gpu.credit(asked_bytes);
        tenant.driver().free(address);
        CuResult::OUT_OF_MEMORY
    }
}

/// Wraps `cuMemFree`.
pub unsafe fn free<P: Word>(real: unsafe extern "C" fn(P) -> CuResult, pointer: P) -> CuResult {
    // SAFETY: the caller's pointer, passed on.
    let result = released(Kind::Pointer, pointer.to_u64(), || unsafe { real(pointer) });
    // It waits for the device, so memory from a pool has left the pool.
    if result.is_ok()
        && let Some(tenant) = tenant::current()
    {
        pools::look_after(tenant);
    }
    result
}

/// Creates an array from a descriptor of one of the driver's four kinds.
type Create<D> = unsafe extern "C" fn(*mut *mut c_void, *const D) -> CuResult;

/// Whether an array of that shape comes with memory. That of sparse ones, and of those that are to
/// be mapped later, is made by `cuMemCreate`.
fn has_memory(shape: &CUDA_ARRAY3D_DESCRIPTOR) -> bool {
    shape.flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) == 0
}

/// Wraps `cuArrayCreate` and `cuArray3DCreate` in all their versions.
pub unsafe fn array<D: Copy + Into<CUDA_ARRAY3D_DESCRIPTOR>>(
    real: Create<D>,
    array: *mut *mut c_void,
    shape: *const D,
) -> CuResult {
    // SAFETY: the caller's descriptor, null or valid.
    let wanted = unsafe { shape.as_ref() }.map(|&shape| shape.into());
    let bytes = wanted.filter(has_memory).and_then(|shape| array_bytes(&shape)).unwrap_or(0);
    // SAFETY: the caller's arguments; on success the driver has written the handle.
    charged(Kind::Array, bytes, || unsafe { real(array, shape) }, || unsafe { *array } as u64)
}

/// Wraps `cuMipmappedArrayCreate`.
pub unsafe fn mipmapped_array(
    real: prototypes::cuMipmappedArrayCreate,
    array: *mut *mut c_void,
    shape: *const CUDA_ARRAY3D_DESCRIPTOR,
    levels: c_uint,
) -> CuResult {
    // SAFETY: the caller's descriptor, null or valid.
    let shape_ref = unsafe { shape.as_ref() };
    let bytes = shape_ref.filter(|shape| has_memory(shape));
    let bytes = bytes.and_then(|shape| mipmapped_array_bytes(shape, levels)).unwrap_or(0);
    // SAFETY: the caller's arguments; on success the driver has written the handle.
    let allocate = || unsafe { real(array, shape, levels) };
    // SAFETY: as above.
    charged(Kind::MipmappedArray, bytes, allocate, || unsafe { *array } as u64)
}

/// Wraps `cuArrayDestroy`.
pub unsafe fn destroy_array(real: prototypes::cuArrayDestroy, array: *mut c_void) -> CuResult {
    // SAFETY: the caller's handle, passed on.
    released(Kind::Array, array as u64, || unsafe { real(array) })
}

/// Wraps `cuMipmappedArrayDestroy`.
pub unsafe fn destroy_mipmapped_array(
    real: prototypes::cuMipmappedArrayDestroy,
    array: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's handle, passed on.
    released(Kind::MipmappedArray, array as u64, || unsafe { real(array) })
}
