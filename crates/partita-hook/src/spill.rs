//! Host memory beyond the quota (`--spill host`): pinned, and mapped to the device, which reaches it over the bus.
//!
//! Chosen for each allocation for which the quota, or the device, has no room. The program is given its device address
//! and frees it like any other; how many bytes there are is shown in the ledger and is no part of the account.

use core::ffi::{c_uint, c_void};
use core::sync::atomic::{AtomicU64, Ordering};

use partita_abi::CuResult;
use partita_ledger::{FLAG_SPILL_HOST, GPUS_MAX};

use crate::allocations::Kind;
use crate::driver::calls;
use crate::gpu::{Account, Charge, Gpu};
use crate::tenant::Tenant;

calls! {
    /// Entry points that allocate host memory.
    struct HostCalls;
    allocate = c"cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint);
    address = c"cuMemHostGetDevicePointer_v2": fn(*mut u64, *mut c_void, c_uint);
    free = c"cuMemFreeHost": fn(*mut c_void);
    synchronize = c"cuStreamSynchronize": fn(*mut c_void);
}

/// `CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTALLOC_DEVICEMAP`.
const PORTABLE_AND_MAPPED: c_uint = 1 | 2;

/// Bytes on each GPU.
static BYTES: [AtomicU64; GPUS_MAX] = [const { AtomicU64::new(0) }; GPUS_MAX];

fn show(gpu: &Gpu, bytes: u64) {
    gpu.slot.show_spilled(bytes);
}

/// Allocates host memory for a request that there is no room for; none if the tenant has no such thing.
pub fn allocate(tenant: &Tenant, gpu: &Gpu, bytes: u64) -> Option<u64> {
    let spills = gpu.limits_now().is_some_and(|limits| limits.flags & FLAG_SPILL_HOST != 0);
    if !spills || bytes == 0 {
        return None;
    }
    let calls = HostCalls::resolve().ok()?;
    let (mut host, mut address) = (core::ptr::null_mut(), 0);
    // SAFETY: valid pointers.
    unsafe { (calls.allocate)(&mut host, usize::try_from(bytes).ok()?, PORTABLE_AND_MAPPED) }.ok().ok()?;
    // SAFETY: the memory was just allocated.
    let mapped = unsafe { (calls.address)(&mut address, host, 0) };
    // It is freed by its device address, so both must be one, as they are wherever addresses are unified.
    if mapped.is_err() || address != host as u64 {
        // SAFETY: as above.
        let _ = unsafe { (calls.free)(host) };
        return None;
    }
    let all = BYTES.get(usize::from(gpu.index))?.fetch_add(bytes, Ordering::Relaxed) + bytes;
    show(gpu, all);
    tenant.hold(Kind::Pointer, address, Charge { gpu: gpu.index, bytes, account: Account::Host });
    Some(address)
}

/// Frees such memory, once the device is done with it.
pub fn free(address: u64) -> CuResult {
    match HostCalls::resolve() {
        // SAFETY: allocate() gave the address, and the program gives it up.
        Ok(calls) => unsafe { (calls.free)(address as *mut c_void) },
        Err(_) => CuResult::NOT_SUPPORTED,
    }
}

/// Waits for a stream in whose order such memory is to be freed; host memory has no such order.
pub fn settle(tenant: &Tenant, pointer: u64, stream: *mut c_void) {
    if BYTES.iter().all(|bytes| bytes.load(Ordering::Relaxed) == 0) {
        return;
    }
    let charge = tenant.allocations().charge(Kind::Pointer, pointer);
    if charge.is_some_and(|charge| charge.account == Account::Host)
        && let Ok(calls) = HostCalls::resolve()
    {
        // SAFETY: the caller's stream; the driver checks it.
        let _ = unsafe { (calls.synchronize)(stream) };
    }
}

/// Notes that such memory is gone.
pub fn ended(gpu: &Gpu, bytes: u64) {
    if let Some(all) = BYTES.get(usize::from(gpu.index)) {
        show(gpu, all.fetch_sub(bytes, Ordering::Relaxed).saturating_sub(bytes));
    }
}

/// Forgets the parent's in a child of `fork`.
pub fn reset_after_fork() {
    BYTES.iter().for_each(|bytes| bytes.store(0, Ordering::Relaxed));
}
