//! Multicast objects: they have no memory themselves, but memory that is bound to them stays alive
//! after its handle is released and its mappings are removed, so it stays charged until it is
//! unbound.

use core::ffi::c_int;

use partita_abi::CuResult;
use partita_abi::prototypes;
use partita_ledger::mutex::Mutex;

use crate::account::gpu::Charge;
use crate::account::tenant;
use crate::memory::allocations::{self, Kind};
use crate::memory::holdings;
use crate::sys::fork::{in_child, renew};

/// Memory bound to a multicast object.
struct Bound {
    object: u64,
    offset: usize,
    gpu: u8,
    memory: u64,
}

static BOUND: Mutex<alloc::vec::Vec<Bound>> = Mutex::new(alloc::vec::Vec::new());

// Forgets all in a child of `fork`.
in_child! {
    renew(&BOUND, alloc::vec::Vec::new());
}

/// Notes that the memory behind a handle was bound.
fn note(
    object: u64,
    offset: usize,
    memory: impl FnOnce(&mut crate::memory::allocations::Allocations) -> Option<u64>,
) {
    if tenant::current().is_none() {
        return;
    }
    let mut allocations = allocations::lock();
    if let Some(memory) = memory(&mut allocations)
        && let Some(Charge { gpu, .. }) = allocations.charge(Kind::Physical, memory)
        && allocations.add_mapping(memory)
    {
        BOUND.lock().push(Bound { object, offset, gpu, memory });
    }
}

/// Wraps `cuMulticastBindMem`.
pub unsafe fn bind_memory(
    real: prototypes::cuMulticastBindMem,
    object: u64,
    offset: usize,
    memory: u64,
    memory_offset: usize,
    bytes: usize,
    flags: u64,
) -> CuResult {
    let _references = tenant::current().map(|_| holdings::references());
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(object, offset, memory, memory_offset, bytes, flags) };
    if result.is_ok() {
        note(object, offset, |_| Some(memory));
    }
    result
}

/// Wraps `cuMulticastBindAddr`.
pub unsafe fn bind_address(
    real: prototypes::cuMulticastBindAddr,
    object: u64,
    offset: usize,
    address: u64,
    bytes: usize,
    flags: u64,
) -> CuResult {
    let _references = tenant::current().map(|_| holdings::references());
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(object, offset, address, bytes, flags) };
    if result.is_ok() {
        note(object, offset, |allocations| allocations.mapped_at(address));
    }
    result
}

/// Wraps `cuMulticastBindMem_v2`, which names the device.
#[expect(clippy::too_many_arguments, reason = "the driver's prototype")]
pub unsafe fn bind_memory_on(
    real: prototypes::cuMulticastBindMem_v2,
    object: u64,
    device: c_int,
    offset: usize,
    memory: u64,
    memory_offset: usize,
    bytes: usize,
    flags: u64,
) -> CuResult {
    let _references = tenant::current().map(|_| holdings::references());
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(object, device, offset, memory, memory_offset, bytes, flags) };
    if result.is_ok() {
        note(object, offset, |_| Some(memory));
    }
    result
}

/// Wraps `cuMulticastBindAddr_v2`, which names the device.
pub unsafe fn bind_address_on(
    real: prototypes::cuMulticastBindAddr_v2,
    object: u64,
    device: c_int,
    offset: usize,
    address: u64,
    bytes: usize,
    flags: u64,
) -> CuResult {
    let _references = tenant::current().map(|_| holdings::references());
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(object, device, offset, address, bytes, flags) };
    if result.is_ok() {
        note(object, offset, |allocations| allocations.mapped_at(address));
    }
    result
}

/// Wraps `cuMulticastUnbind`.
pub unsafe fn unbind(
    real: prototypes::cuMulticastUnbind,
    object: u64,
    device: c_int,
    offset: usize,
    bytes: usize,
) -> CuResult {
    let _references = tenant::current().map(|_| holdings::references());
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(object, device, offset, bytes) };
    let Some(tenant) = tenant::current().filter(|_| result.is_ok()) else { return result };
    let mut allocations = allocations::lock();
    let mut freed = alloc::vec::Vec::new();
    let end = offset.saturating_add(bytes);
    BOUND.lock().retain(|bound| {
        let gone = bound.object == object
            && c_int::from(bound.gpu) == device
            && (offset..end).contains(&bound.offset);
        if gone {
            freed.extend(allocations.drop_mapping(bound.memory));
        }
        !gone
    });
    drop(allocations);
    freed.into_iter().for_each(|freed| holdings::credit(tenant, freed));
    result
}
