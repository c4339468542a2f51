//! `cuGetProcAddress`: how the CUDA runtime reaches every driver call.
//!
//! The driver is asked first, with the caller's version and flags, so that the
//! variant handed out (its version, its default stream) is the one asked for;
//! the address it answers with is then exchanged for the hook's function.

use core::ffi::{c_char, c_int, c_void};

use partita_abi::CuResult;

use crate::table;

type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> CuResult;
type GetProcAddressV2 =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> CuResult;

/// Wraps `cuGetProcAddress` of CUDA 11.3.
pub unsafe fn get_proc_address(
    real: GetProcAddress,
    name: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(name, function, version, flags) };
    // SAFETY: as above; on success the driver has written the pointer.
    unsafe { substitute(result, function) }
}

/// Wraps `cuGetProcAddress` of CUDA 12.
pub unsafe fn get_proc_address_v2(
    real: GetProcAddressV2,
    name: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(name, function, version, flags, status) };
    // SAFETY: as above; on success the driver has written the pointer.
    unsafe { substitute(result, function) }
}

unsafe fn substitute(result: CuResult, function: *mut *mut c_void) -> CuResult {
    if result.is_ok() && !function.is_null() && crate::is_tenant() {
        // SAFETY: the call succeeded, so `function` is valid and written.
        unsafe {
            if let Some(hook) = table::hook_for(*function) {
                *function = hook;
            }
        }
    }
    result
}
