//! Host memory beyond the quota (`--spill host`): pinned, and mapped to the device, which reaches
//! it over the bus.
//!
//! Chosen for each allocation for which the quota, or the device, has no room: plain, pitched,
//! managed and stream-ordered ones. Arrays, physical memory (`cuMemCreate`) and what graphs own
//! have no form on the host that the calls about them take. The program is given its device address
//! and frees it like any other; how many bytes there are is shown in the ledger and is no part of
//! the account. The driver's answers about it (`cuPointerGetAttribute`) are left as they are:
//! libraries that ask for the kind of memory must hear that it is the host's.
//!
//! Managed memory beyond the quota is of this kind too, not the driver's managed memory with the
//! host as its preferred location. That location is advice: the driver may override it, and the
//! program may withdraw it. Pages that then move to the device would be charged to no tenant. The
//! program can use this memory like managed memory: one address for both sides, at the same time.
//! It cannot be moved, so calls that ask for that do nothing ([`crate::memory::managed`]).

use core::ffi::{c_uint, c_void};

use partita_abi::CuResult;
use partita_abi::attribute::{
    CU_DEVICE_ATTRIBUTE_MAX_PITCH, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT,
    CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT,
};
use partita_ledger::Spill;

use crate::account::gpu::{Account, Charge, Form, Gpu};
use crate::account::tenant::Tenant;
use crate::driver::calls::calls;
use crate::memory::allocations::{self, Kind};
use crate::memory::{holdings, spilled};

calls! {
    /// Entry points that allocate host memory.
    struct HostCalls;
    allocate = cuMemHostAlloc;
    address = cuMemHostGetDevicePointer_v2;
    free = cuMemFreeHost;
    synchronize = cuStreamSynchronize;
}

calls! {
    /// Entry points for the alignment of rows of memory.
    struct PitchCalls;
    device = cuCtxGetDevice;
    attribute = cuDeviceGetAttribute;
}

/// `CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTALLOC_DEVICEMAP`.
const PORTABLE_AND_MAPPED: c_uint = 1 | 2;

/// Allocates host memory for a request that the quota cannot serve; `None` if the tenant may not
/// spill.
pub fn allocate(tenant: &Tenant, gpu: &Gpu, bytes: u64, form: Form) -> Option<u64> {
    let spills = gpu.limits_now().is_some_and(|limits| Spill::of(&limits) == Spill::Host);
    if !spills || bytes == 0 {
        return None;
    }
    let calls = HostCalls::resolve().ok()?;
    let here = holdings::here(tenant);
    let (mut host, mut address) = (core::ptr::null_mut(), 0);
    // SAFETY: valid pointers.
    unsafe { (calls.allocate)(&mut host, usize::try_from(bytes).ok()?, PORTABLE_AND_MAPPED) }.ok().ok()?;
    // SAFETY: the memory was just allocated.
    let mapped = unsafe { (calls.address)(&mut address, host, 0) };
    // It is freed by its device address, so both must be one, as they are wherever addresses are
    // unified.
    if mapped.is_err() || address != host as u64 {
        // SAFETY: as above.
        let _ = unsafe { (calls.free)(host) };
        return None;
    }
    spilled::began(gpu, bytes);
    let charge = Charge { gpu: gpu.index, bytes, account: Account::Host(form) };
    holdings::hold(tenant, Kind::Pointer, address, charge, here);
    Some(address)
}

/// Allocates rows of host memory, and returns the bytes between their beginnings: as many as on the
/// device, so that this pitch has the properties of the driver's. The driver aligns rows to its
/// textures' alignment (512 bytes on all devices seen) and returns no pitch beyond its limit for
/// copies.
pub fn allocate_rows(tenant: &Tenant, gpu: &Gpu, width: u64, height: u64) -> Option<(u64, u64)> {
    let calls = PitchCalls::resolve().ok()?;
    let mut device = 0;
    // SAFETY: a valid pointer.
    unsafe { (calls.device)(&mut device) }.ok().ok()?;
    let attribute = |attribute| {
        let mut value = 0;
        // SAFETY: a valid pointer.
        unsafe { (calls.attribute)(&mut value, attribute, device) }.ok().ok()?;
        u64::try_from(value).ok()
    };
    let alignment = attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT)?
        .max(attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT)?)
        .max(1);
    let pitch = width.checked_next_multiple_of(alignment)?;
    if pitch > attribute(CU_DEVICE_ATTRIBUTE_MAX_PITCH)? {
        return None;
    }
    let address = allocate(tenant, gpu, pitch.checked_mul(height)?, Form::Device)?;
    Some((address, pitch))
}

/// Whether a range is inside one piece of host memory that the program got as managed memory.
pub fn is_managed(address: u64, bytes: u64) -> bool {
    if spilled::bytes() == 0 {
        return false;
    }
    let end = address.checked_add(bytes);
    allocations::lock().any(|kind, start, charge| {
        kind == Kind::Pointer
            && charge.account == Account::Host(Form::Managed)
            && address >= start
            && end.is_some_and(|end| end <= start + charge.bytes)
    })
}

/// Frees such memory, once the device is done with it.
pub fn free(address: u64) -> CuResult {
    match HostCalls::resolve() {
        // SAFETY: allocate() gave the address, and the program gives it up.
        Ok(calls) => unsafe { (calls.free)(address as *mut c_void) },
        Err(_) => CuResult::NOT_SUPPORTED,
    }
}

/// Waits for the stream in whose order such memory is freed; host memory has no such order.
pub fn settle(pointer: u64, stream: *mut c_void) {
    if spilled::bytes() == 0 {
        return;
    }
    let charge = allocations::lock().charge(Kind::Pointer, pointer);
    if charge.is_some_and(|charge| matches!(charge.account, Account::Host(_)))
        && let Ok(calls) = HostCalls::resolve()
    {
        // SAFETY: the caller's stream; the driver checks it.
        let _ = unsafe { (calls.synchronize)(stream) };
    }
}
