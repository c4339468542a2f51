//! `cuGetProcAddress`: how the CUDA runtime reaches every driver call.
//!
//! The driver is asked first, with the caller's version and flags, so that the
//! variant handed out (its version, its default stream) is the one asked for;
//! the address it answers with is then exchanged for the hook's function of that
//! name. Neither is enough alone: a name has several variants, and a driver may
//! answer several calls that it lacks with one function.

use alloc::ffi::CString;
use alloc::format;
use core::ffi::{CStr, c_char, c_int, c_void};

use partita_abi::CuResult;
use partita_abi::prototypes;

use crate::account::origin;
use crate::driver::real;

/// Wraps `cuGetProcAddress` of CUDA 11.3.
pub unsafe fn get_proc_address(
    real: prototypes::cuGetProcAddress,
    name: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(name, function, version, flags) };
    // SAFETY: as above; on success the driver has written the pointer.
    unsafe { substitute(result, name, function) }
}

/// Wraps `cuGetProcAddress` of CUDA 12.
pub unsafe fn get_proc_address_v2(
    real: prototypes::cuGetProcAddress_v2,
    name: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut u32,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(name, function, version, flags, status) };
    // SAFETY: as above; on success the driver has written the pointer.
    unsafe { substitute(result, name, function) }
}

unsafe fn substitute(result: CuResult, name: *const c_char, function: *mut *mut c_void) -> CuResult {
    if result.is_ok() && !name.is_null() && !function.is_null() && origin::may_be_tenant() {
        // SAFETY: the call succeeded, so the name is a string, and `function` is valid and written.
        unsafe {
            if let Some(hook) = hook_for(CStr::from_ptr(name), *function) {
                *function = hook;
            }
        }
    }
    result
}

/// The hook for the address that the driver answers a name with.
fn hook_for(name: &CStr, address: *mut c_void) -> Option<*mut c_void> {
    let rows = || real::rows_at(address);
    let first = rows().next()?;
    let of_name = rows().find(|row| row.name == name);
    if let Some(row) = of_name.or_else(|| rows().find(|row| is_variant(row.name, name.to_bytes()))) {
        return Some(row.hook);
    }
    // CUDA gives some calls a new name (cuGraphInstantiate became cuGraphInstantiateWithFlags): the
    // one call that has the address is meant. Unless the address is that of a variant which is not
    // wrapped.
    let is_one_call = rows().all(|row| is_variant(row.name, base(first.name)));
    (is_one_call && !is_export(name, address)).then_some(first.hook)
}

/// An export's name without its version and its default stream.
fn base(export: &CStr) -> &[u8] {
    let name = export.to_bytes();
    let plain = name.strip_suffix(b"_ptsz").or_else(|| name.strip_suffix(b"_ptds")).unwrap_or(name);
    match plain {
        [base @ .., b'_', b'v', b'2'..=b'9'] => base,
        _ => plain,
    }
}

fn is_variant(export: &CStr, of: impl AsRef<[u8]>) -> bool {
    base(export) == of.as_ref()
}

/// Whether the driver exports a variant of a call at an address.
fn is_export(name: &CStr, address: *mut c_void) -> bool {
    const VERSIONS: [&str; 6] = ["", "_v2", "_v3", "_v4", "_v5", "_v6"];
    const STREAMS: [&str; 3] = ["", "_ptsz", "_ptds"];
    let Ok(name) = name.to_str() else { return false };
    VERSIONS
        .iter()
        .flat_map(|version| STREAMS.map(|stream| format!("{name}{version}{stream}")))
        .any(|export| CString::new(export).is_ok_and(|export| real::symbol_if_loaded(&export) == address))
}
