//! The functions behind this library's own exports.
//!
//! The library exports `dlsym`, `dlvsym` and `ioctl` ([`linker`](crate::entry::linker),
//! [`ioctl`](crate::entry::ioctl)). Its own code must reach the functions behind them.

use core::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::sys::elf;

/// The C library's `dlsym`; the exported one goes on there.
pub static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// The C library's `dlvsym`.
pub static REAL_DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// The C library's `dlsym`, called without going through the filter.
///
/// # Safety
/// As for dlsym(3).
pub unsafe fn real_dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    find_real();
    let address = REAL_DLSYM.load(Ordering::Acquire);
    // SAFETY: the address is that of dlsym, whose type this is.
    let dlsym: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void =
        unsafe { core::mem::transmute(address) };
    // SAFETY: the caller guarantees it.
    unsafe { dlsym(handle, name.as_ptr()) }
}

/// Finds both, once.
pub fn find_real() {
    if !REAL_DLSYM.load(Ordering::Acquire).is_null() {
        return;
    }
    // Two threads that come here at once find and store the same addresses. The first of them is
    // stored last, since it is the one that is looked at.
    for (real, name) in [(&REAL_DLVSYM, c"dlvsym"), (&REAL_DLSYM, c"dlsym")] {
        let found = elf::in_c_library(name);
        let found = if found.is_null() { not_found as *mut c_void } else { found };
        real.store(found, Ordering::Release);
    }
}

/// Stands in where the C library exports no such function.
extern "C" fn not_found() -> *mut c_void {
    core::ptr::null_mut()
}

/// ioctl(2).
pub type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;

/// The next `ioctl` behind this library's; null before it is known.
static NEXT_IOCTL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Finds the next `ioctl` at load time: later a forked child may be the first to call it, without
/// the linker's lock.
pub fn find_next_ioctl() {
    NEXT_IOCTL.store(elf::behind_this_library(c"ioctl"), Ordering::Release);
}

/// Passes a request on to the next `ioctl` behind this library.
///
/// # Safety
/// As for ioctl(2).
pub unsafe fn next_ioctl(node: c_int, wanted: c_ulong, argument: *mut c_void) -> c_int {
    let next = NEXT_IOCTL.load(Ordering::Acquire);
    if next.is_null() {
        // Before this library was initialised, or without a C library that has it.
        // SAFETY: the caller guarantees it.
        return unsafe { libc::syscall(libc::SYS_ioctl, node, wanted, argument) as c_int };
    }
    // SAFETY: the address is that of an ioctl, which both processors call like this.
    let next: Ioctl = unsafe { core::mem::transmute(next) };
    // SAFETY: the caller guarantees it.
    unsafe { next(node, wanted, argument) }
}
