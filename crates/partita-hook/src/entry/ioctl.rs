//! libcuda's requests to the kernel driver that concern a tenant.
//!
//! libcuda reaches the kernel through `ioctl`, which this library exports as well. Three requests
//! are checked: a command, which may set a time slice ([`slices`]); the creation of an object,
//! which may be device memory ([`driver_memory`]); and a release. All others pass through.

use core::ffi::{c_int, c_ulong, c_void};

use partita_abi::control::{RM_ALLOC, RM_ALLOC_BYTES, RM_ALLOC_LONG_BYTES, RM_FREE, RM_FREE_BYTES, request};

use crate::account::origin;
use crate::driver::real::ask;
use crate::gate::slices::{self, CONTROL};
use crate::memory::driver_memory;
use crate::sys::next::next_ioctl;

const FREE: u32 = request(RM_FREE, RM_FREE_BYTES);
const ALLOC: u32 = request(RM_ALLOC, RM_ALLOC_BYTES);
const ALLOC_LONG: u32 = request(RM_ALLOC, RM_ALLOC_LONG_BYTES);

/// `NVOS00_PARAMETERS`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Free {
    client: u32,
    parent: u32,
    object: u32,
    status: u32,
}

const _: () = assert!(size_of::<Free>() == RM_FREE_BYTES);

/// Interposed ioctl(2). The third argument is passed in the same register whether a function is
/// variadic or not.
///
/// # Safety
/// As for ioctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(node: c_int, wanted: c_ulong, argument: *mut c_void) -> c_int {
    // Any other request, such as other programs', passes through after some comparisons.
    let Ok(request @ (CONTROL | FREE | ALLOC | ALLOC_LONG)) = u32::try_from(wanted) else {
        // SAFETY: the caller guarantees it.
        return unsafe { next_ioctl(node, wanted, argument) };
    };
    if argument.is_null() || !origin::is_tenant() {
        // SAFETY: as above.
        return unsafe { next_ioctl(node, wanted, argument) };
    }
    match request {
        // SAFETY: passed on to the caller; the request says what the argument is.
        CONTROL => unsafe { slices::on_control(node, wanted, argument) },
        FREE => {
            // SAFETY: as above. It may have any alignment.
            let Free { client, object, .. } = unsafe { argument.cast::<Free>().read_unaligned() };
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
