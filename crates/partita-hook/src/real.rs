//! The driver's own libcuda, which the hook's functions call.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::linker::real_dlsym;
use crate::lock::Mutex;
use crate::table;

/// The library's handle; null until it is loaded and every row is resolved.
static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static LOADING: Mutex<()> = Mutex::new(());

/// Resolves every wrapped name once: in the library behind `handle` if the
/// program opened one, else in `libcuda.so.1` as the linker finds it.
///
/// Returns whether a driver was found.
pub fn load(handle: Option<*mut c_void>) -> bool {
    if !HANDLE.load(Ordering::Acquire).is_null() {
        return true;
    }
    let _loading = LOADING.lock();
    if !HANDLE.load(Ordering::Acquire).is_null() {
        return true;
    }
    let given = handle.filter(|&handle| is_driver(handle));
    let handle = given.unwrap_or_else(|| {
        // SAFETY: a constant name; the handle is kept for ever.
        unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) }
    });
    if handle.is_null() || !is_driver(handle) {
        return false;
    }
    for row in table::ROWS {
        // SAFETY: a live handle and a constant name.
        row.set_real(unsafe { real_dlsym(handle, row.name) });
    }
    HANDLE.store(handle, Ordering::Release);
    true
}

/// Whether the handle gives a `cuInit` that is not the hook's own.
fn is_driver(handle: *mut c_void) -> bool {
    // SAFETY: the handle came from dlopen, here or in the program.
    let init = unsafe { real_dlsym(handle, c"cuInit") };
    !init.is_null() && table::row(b"cuInit").is_some_and(|row| row.hook != init)
}

/// The address of a driver function that the hook calls but does not wrap.
pub fn symbol(name: &CStr) -> *mut c_void {
    if !load(None) {
        return core::ptr::null_mut();
    }
    // SAFETY: load() has stored a live handle, and the name is valid.
    unsafe { real_dlsym(HANDLE.load(Ordering::Acquire), name) }
}

/// The same, null where no wrapped call has needed the driver yet.
pub fn symbol_if_loaded(name: &CStr) -> *mut c_void {
    let handle = HANDLE.load(Ordering::Acquire);
    if handle.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: a live handle, and the name is valid.
    unsafe { real_dlsym(handle, name) }
}

/// Makes the loader's lock usable in a forked child.
///
/// # Safety
/// Called in the only thread of a forked child.
pub unsafe fn reset_after_fork() {
    // SAFETY: passed on to the caller.
    unsafe { LOADING.reset_after_fork() };
}
