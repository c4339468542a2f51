//! `dlsym` and `dlvsym`: how most programs reach libcuda.
//!
//! Where the hook has no answer, both *jump* to the C library's function ([`onward`]). A call
//! instead of a jump would make the hook the caller, and the meaning of `RTLD_NEXT` (and of
//! namespaces) depends on the caller: an allocator that looks for the next `malloc` would find its
//! own.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::account::origin;
use crate::driver::real;
use crate::driver::row::Row;
use crate::entry::{namespaces, nvml, table};
use crate::sys::elf;
use crate::sys::next::{REAL_DLSYM, REAL_DLVSYM, find_real, real_dlsym};
use crate::sys::onward::{Arguments, answered, onward};

/// Interposed dlsym(3).
///
/// # Safety
/// As for dlsym(3).
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    extern "C" fn look_up(arguments: &mut Arguments, caller: *const c_void) -> *mut c_void {
        answer_or(&REAL_DLSYM, arguments, caller)
    }
    onward!(look_up)
}

/// Interposed dlvsym(3).
///
/// # Safety
/// As for dlvsym(3).
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    extern "C" fn look_up(arguments: &mut Arguments, caller: *const c_void) -> *mut c_void {
        answer_or(&REAL_DLVSYM, arguments, caller)
    }
    onward!(look_up)
}

/// Where a look-up by the code at `caller` goes on: with the hook's answer, else in the C library.
fn answer_or(
    c_librarys: &AtomicPtr<c_void>,
    arguments: &mut Arguments,
    caller: *const c_void,
) -> *mut c_void {
    find_real();
    match hook_for(arguments[0], arguments[1].cast(), caller) {
        Some(hook) => {
            arguments[0] = hook;
            answered as *mut c_void
        }
        None => c_librarys.load(Ordering::Acquire),
    }
}

/// The hook for `name` as found through `handle` by the code at `caller`, or `None` when the C
/// library should answer.
///
/// Allocators and sanitizers look names up before they can be called themselves, and most programs
/// never use CUDA: so nothing happens unless the name is one that the hook wraps.
fn hook_for(handle: *mut c_void, name: *const c_char, caller: *const c_void) -> Option<*mut c_void> {
    if name.is_null() {
        return None;
    }
    // SAFETY: dlsym's contract: a NUL-terminated name.
    let name = unsafe { CStr::from_ptr(name) };
    match name.to_bytes() {
        [b'd', b'l', ..] => linkers_own(handle, name, caller),
        [b'c', b'u', ..] => table::row(name.to_bytes()).and_then(|row| of_driver(handle, row)),
        [b'n', b'v', b'm', b'l', ..] => nvml::hook_for(handle, name),
        _ => None,
    }
}

/// The replacement of one of the linker's functions, if the answer would be the C library's own: a
/// function of the hook that continues in the C library.
///
/// It never continues in a function that another library interposes, since that library may be the
/// caller: its next function would lead back to itself.
fn linkers_own(handle: *mut c_void, name: &CStr, caller: *const c_void) -> Option<*mut c_void> {
    let own = match name.to_bytes() {
        b"dlsym" => dlsym as *mut c_void,
        b"dlvsym" => dlvsym as *mut c_void,
        b"dlopen" => namespaces::dlopen_of_c_library as *mut c_void,
        b"dlmopen" => namespaces::dlmopen_of_c_library as *mut c_void,
        _ => return None,
    };
    let answer = match handle {
        // The hook's export comes before the C library's anyway.
        libc::RTLD_DEFAULT => return None,
        libc::RTLD_NEXT => elf::holder(caller)?.next_function(name)?,
        // SAFETY: the caller's handle, and a valid name.
        handle => unsafe { real_dlsym(handle, name) },
    };
    (!answer.is_null() && answer == elf::in_c_library(name)).then_some(own)
}

/// The function for an export of libcuda, if the handle leads to libcuda.
fn of_driver(handle: *mut c_void, row: &Row) -> Option<*mut c_void> {
    if !origin::may_be_tenant() {
        return None;
    }
    if handle == libc::RTLD_NEXT {
        return (table::load() && !row.real().is_null()).then_some(row.hook);
    }
    // The hook's export comes first in the global scope.
    let found = match handle {
        libc::RTLD_DEFAULT => row.hook,
        // SAFETY: the caller's handle, and a valid name.
        handle => unsafe { real_dlsym(handle, row.name) },
    };
    if found == row.hook {
        return stand_in(row);
    }
    let is_driver = !found.is_null() && table::load() && (found == row.real() || real::is_copy(found));
    is_driver.then_some(row.hook)
}

/// The function of a library that replaces the driver behind the hook: Nsight Compute preloads one,
/// and makes `dlopen` return the library whose `cuInit` comes first, which is the hook's. The
/// program calls the replacement, whose calls of the driver come to the hook.
fn stand_in(row: &Row) -> Option<*mut c_void> {
    let behind = elf::behind_this_library(row.name);
    (!behind.is_null() && table::load() && behind != row.real() && !real::is_copy(behind)).then_some(behind)
}
