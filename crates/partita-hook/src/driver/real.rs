//! The driver's own libcuda, which the hook's functions call.

use core::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use partita_ledger::mutex::Mutex;

use crate::driver::row::Row;
use crate::sys::elf;
use crate::sys::fork::in_child;
use crate::sys::next::{Ioctl, next_ioctl, real_dlsym};

/// The library's handle; null until it is loaded and every row is resolved.
static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// The rows that were resolved in it. Locked while it is loaded.
static ROWS: Mutex<&'static [&'static Row]> = Mutex::new(&[]);

/// The name by which programs ask the linker for the driver, which it also gives itself.
const NAME: &CStr = c"libcuda.so.1";

/// Resolves every row once, in the library that the linker finds by the driver's name: the
/// one that the program has opened by whatever path, if it calls itself so. A library that merely
/// exports a `cuInit` is not the driver.
///
/// Returns whether a driver was found.
pub fn load(rows: &'static [&'static Row]) -> bool {
    if !HANDLE.load(Ordering::Acquire).is_null() {
        return true;
    }
    let mut known = ROWS.lock();
    if !HANDLE.load(Ordering::Acquire).is_null() {
        return true;
    }
    // The C library's own function: tools that interpose it may return the hook.
    let dlopen = elf::in_c_library(c"dlopen");
    if dlopen.is_null() {
        return false;
    }
    type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    // SAFETY: dlopen's address has this type; a constant name; the handle is kept for ever.
    let handle = unsafe {
        let dlopen = core::mem::transmute::<*mut c_void, Dlopen>(dlopen);
        dlopen(NAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL)
    };
    if handle.is_null() || !is_driver(handle, rows) {
        return false;
    }
    for row in rows {
        // SAFETY: a live handle and a constant name.
        row.set_real(unsafe { real_dlsym(handle, row.name) });
    }
    *known = rows;
    HANDLE.store(handle, Ordering::Release);
    true
}

/// Whether the handle gives a `cuInit` that is not the hook's own.
fn is_driver(handle: *mut c_void, rows: &[&Row]) -> bool {
    // SAFETY: the handle came from dlopen, here or in the program.
    let init = unsafe { real_dlsym(handle, c"cuInit") };
    !init.is_null() && rows.iter().any(|row| row.name == c"cuInit" && row.hook != init)
}

/// Whether an address that is not the driver's belongs to another copy of it. Two drivers in one
/// process are independent; the hook's functions call the one that the linker finds.
pub fn is_copy(address: *const c_void) -> bool {
    elf::holder(address).is_some_and(|object| object.soname() == Some(NAME))
}

/// The rows whose function in the driver is at an address.
pub fn rows_at(address: *mut c_void) -> impl Iterator<Item = &'static Row> {
    let rows = *ROWS.lock();
    rows.iter().copied().filter(move |row| !address.is_null() && row.real() == address)
}

/// The address of a driver function that the hook calls but does not wrap. The caller is called by
/// a row's function, so the driver is loaded, or another thread is about to have loaded it.
pub fn symbol(name: &CStr) -> *mut c_void {
    if HANDLE.load(Ordering::Acquire).is_null() {
        drop(ROWS.lock());
    }
    symbol_if_loaded(name)
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

/// Passes a request on to the kernel: a simulated libcuda brings it along, as everywhere
/// (`partita-driver`, `control::nodes`).
///
/// # Safety
/// As for ioctl(2), with a request of the driver's.
pub unsafe fn ask(node: c_int, wanted: c_ulong, argument: *mut c_void) -> c_int {
    const SIMULATED: &CStr = c"partita_sim_control_ioctl";
    let simulated = symbol_if_loaded(SIMULATED);
    if simulated.is_null() {
        // SAFETY: the caller guarantees it.
        return unsafe { next_ioctl(node, wanted, argument) };
    }
    // SAFETY: the simulated libcuda's function has this type.
    let simulated: Ioctl = unsafe { core::mem::transmute(simulated) };
    // SAFETY: the caller guarantees it.
    unsafe { simulated(node, wanted, argument) }
}

// Makes the loader's lock usable in a forked child.
in_child! {
    ROWS.reset_after_fork();
}
