//! `dlsym` and `dlvsym`: how most programs reach libcuda.
//!
//! Both are trampolines that ask a filter first and otherwise *jump* to the C
//! library's function with the caller's arguments and return address in place.
//! A call instead of a jump would make the hook the caller, and the meaning of
//! `RTLD_NEXT` (and of namespaces) depends on who calls: an allocator that looks
//! for the next `malloc` would find its own.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::elf;
use crate::nvml;
use crate::real;
use crate::table;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the dlsym trampolines are written for x86_64 only");

/// The C library's `dlsym`; the trampoline jumps through it.
static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// The C library's `dlvsym`.
static REAL_DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// The C library's `dlsym`, called without going through the filter.
///
/// # Safety
/// As for dlsym(3).
pub unsafe fn real_dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    find_real();
    let address = REAL_DLSYM.load(Ordering::Acquire);
    if address.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: the address is that of dlsym, whose type this is.
    let dlsym: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void =
        unsafe { core::mem::transmute(address) };
    // SAFETY: passed on to the caller.
    unsafe { dlsym(handle, name.as_ptr()) }
}

fn find_real() {
    if !REAL_DLSYM.load(Ordering::Acquire).is_null() {
        return;
    }
    // Two threads that come here at once find and store the same addresses.
    if let Some(linker) = elf::libc_linker() {
        REAL_DLVSYM.store(linker.dlvsym, Ordering::Release);
        REAL_DLSYM.store(linker.dlsym, Ordering::Release);
    }
    if REAL_DLVSYM.load(Ordering::Relaxed).is_null() {
        REAL_DLVSYM.store(not_found as *mut c_void, Ordering::Release);
    }
    if REAL_DLSYM.load(Ordering::Relaxed).is_null() {
        REAL_DLSYM.store(not_found as *mut c_void, Ordering::Release);
    }
}

/// Stands in where the C library exports no such function.
extern "C" fn not_found() -> *mut c_void {
    core::ptr::null_mut()
}

/// Interposed dlsym(3).
///
/// # Safety
/// As for dlsym(3).
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {filter}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jne 2f",
        "jmp qword ptr [rip + {real}]",
        "2:",
        "ret",
        filter = sym filter,
        real = sym REAL_DLSYM,
    )
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
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "call {filter}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jne 2f",
        "jmp qword ptr [rip + {real}]",
        "2:",
        "ret",
        filter = sym filter,
        real = sym REAL_DLVSYM,
    )
}

/// The hook for `name` as found through `handle`, or null when the C library
/// should answer.
extern "C" fn filter(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    find_real();
    if name.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: dlsym's contract: a NUL-terminated name.
    let name = unsafe { CStr::from_ptr(name) };
    // Most names are neither, and whoever asks for those may be an allocator that is not ready yet.
    let is_nvml = name.to_bytes().starts_with(b"nvml");
    if !(is_nvml || name.to_bytes().starts_with(b"cu")) || !crate::is_tenant() {
        return core::ptr::null_mut();
    }
    if is_nvml {
        return nvml::hook_for(handle, name);
    }
    let Some(row) = table::row(name.to_bytes()) else { return core::ptr::null_mut() };
    if handle == libc::RTLD_DEFAULT {
        // The hook's export stands first in the global scope anyway.
        return core::ptr::null_mut();
    }
    if handle == libc::RTLD_NEXT {
        return if real::load(None) && !row.real().is_null() { row.hook } else { core::ptr::null_mut() };
    }
    // SAFETY: the caller's handle, and a valid name.
    let found = unsafe { real_dlsym(handle, name) };
    if found.is_null() || !real::load(Some(handle)) {
        return core::ptr::null_mut();
    }
    if found == row.real() { row.hook } else { core::ptr::null_mut() }
}
