//! What libcuda asks of the kernel driver, where it concerns a tenant.
//!
//! libcuda reaches the kernel through `ioctl`, which this library exports as well. Three requests
//! are looked at: a command, which may set a time slice ([`slices`]); an object that is made, which
//! may be device memory ([`driver_memory`]); and one that is freed. Everything else goes on.

use core::ffi::{CStr, c_int, c_ulong, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use partita_abi::control::{
    RM_ALLOC, RM_ALLOC_BYTES, RM_ALLOC_LONG_BYTES, RM_CONTROL, RM_CONTROL_BYTES, RM_FREE, RM_FREE_BYTES,
    request,
};

use crate::{driver_memory, elf, real, slices};

/// The request of a command.
pub const CONTROL: u32 = request(RM_CONTROL, RM_CONTROL_BYTES);
const FREE: u32 = request(RM_FREE, RM_FREE_BYTES);
const ALLOC: u32 = request(RM_ALLOC, RM_ALLOC_BYTES);
const ALLOC_LONG: u32 = request(RM_ALLOC, RM_ALLOC_LONG_BYTES);

/// `NVOS00_PARAMETERS`.
#[repr(C)]
struct Free {
    client: u32,
    parent: u32,
    object: u32,
    status: u32,
}

const _: () = assert!(size_of::<Free>() == RM_FREE_BYTES);

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;

/// The next `ioctl` behind this library's; null before it is known.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Finds what `ioctl` passes on to. At load: later a forked child may be the first to ask, without
/// the linker's lock.
pub fn find_next() {
    NEXT.store(elf::behind_this_library(c"ioctl"), Ordering::Release);
}

/// Interposed ioctl(2). The third argument is passed in the same register whether a function is
/// variadic or not.
///
/// # Safety
/// As for ioctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(node: c_int, wanted: c_ulong, argument: *mut c_void) -> c_int {
    // Anything else, which is what other programs ask, goes on after some comparisons.
    let Ok(request @ (CONTROL | FREE | ALLOC | ALLOC_LONG)) = u32::try_from(wanted) else {
        // SAFETY: passed on to the caller.
        return unsafe { next(node, wanted, argument) };
    };
    if argument.is_null() || !crate::is_tenant() {
        // SAFETY: as above.
        return unsafe { next(node, wanted, argument) };
    }
    match request {
        // SAFETY: passed on to the caller; the request says what the argument is.
        CONTROL => unsafe { slices::on_control(node, wanted, argument) },
        FREE => {
            // SAFETY: as above.
            let (client, object) =
                unsafe { ((*argument.cast::<Free>()).client, (*argument.cast::<Free>()).object) };
            slices::on_free(client, object);
            let is_taken = driver_memory::on_free(client, object);
            // SAFETY: as above.
            let freed = unsafe { ask(node, wanted, argument) };
            if is_taken {
                driver_memory::freed();
            }
            freed
        }
        // SAFETY: as above.
        _ => unsafe { driver_memory::on_alloc(node, wanted, argument) },
    }
}

/// Passes a request on.
///
/// # Safety
/// As for ioctl(2).
pub unsafe fn next(node: c_int, wanted: c_ulong, argument: *mut c_void) -> c_int {
    let next = NEXT.load(Ordering::Acquire);
    if next.is_null() {
        // Before this library was initialised, or without a C library that has it.
        // SAFETY: passed on to the caller.
        return unsafe { libc::syscall(libc::SYS_ioctl, node, wanted, argument) as c_int };
    }
    // SAFETY: the address is that of an ioctl, which is called like this on x86-64.
    let next: Ioctl = unsafe { core::mem::transmute(next) };
    // SAFETY: passed on to the caller.
    unsafe { next(node, wanted, argument) }
}

/// Passes a request on to the kernel: a simulated libcuda brings it along, as everywhere
/// (`partita-driver`, `control::nodes`).
///
/// # Safety
/// As for ioctl(2), with a request of the driver's.
pub unsafe fn ask(node: c_int, wanted: c_ulong, argument: *mut c_void) -> c_int {
    const SIMULATED: &CStr = c"partita_sim_control_ioctl";
    let simulated = real::symbol_if_loaded(SIMULATED);
    if simulated.is_null() {
        // SAFETY: passed on to the caller.
        return unsafe { next(node, wanted, argument) };
    }
    // SAFETY: the simulated libcuda's function has this type.
    let simulated: Ioctl = unsafe { core::mem::transmute(simulated) };
    // SAFETY: passed on to the caller.
    unsafe { simulated(node, wanted, argument) }
}
