//! Resets in a child of `fork`.
//!
//! A child has its parent's memory and none of its threads: a lock may have no living holder, and
//! the parent's resources must stay with the parent. A module with state of the process registers
//! with [`in_child!`] how a child resets it. The linker collects these functions in one section,
//! and [`follow`] makes the child run them all. The order is undefined: each module touches only
//! its own state.

use core::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, c_void};
use partita_ledger::mutex::Mutex;

/// A module's function for the child.
pub type Reset = unsafe fn();

/// Makes every child of `fork` run some statements, in its only thread. They may only call
/// functions that are safe there.
macro_rules! in_child {
    ($($statement:tt)*) => {
        const _: () = {
            unsafe fn reset() {
                // SAFETY: follow() alone calls this, in the only thread of a forked child.
                #[allow(unused_unsafe, reason = "many modules only store")]
                unsafe {
                    $($statement)*
                }
            }
            #[used]
            #[unsafe(link_section = "partita_in_child")]
            static RESET: $crate::sys::fork::Reset = reset;
        };
    };
}
pub(crate) use in_child;

unsafe extern "C" {
    #[link_name = "__start_partita_in_child"]
    static FIRST: u8;
    #[link_name = "__stop_partita_in_child"]
    static END: u8;
}

unsafe extern "C" {
    /// The C library's part of `pthread_atfork`, since version 2.3.2. The function of that name is
    /// in the static part of newer C libraries and in libpthread.so of older ones, and a tenant's
    /// program may come with neither: then no program with a preloaded library starts.
    fn __register_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
        library: *const c_void,
    ) -> c_int;
    /// The compiler's name for this library, with which the C library forgets the handler when the
    /// library is unloaded.
    static __dso_handle: u8;
}

// The linker defines both names of the section. Hidden, so that the library does not export them.
core::arch::global_asm!(".hidden __start_partita_in_child", ".hidden __stop_partita_in_child");

/// Makes the children of this process run the registered functions. Once for a process.
///
/// # Errors
/// The C library's error number.
pub fn follow() -> Result<(), i32> {
    static FOLLOWED: AtomicBool = AtomicBool::new(false);
    if FOLLOWED.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    // SAFETY: the handler stores to memory and closes descriptors; of the library's name only the
    // address is used.
    match unsafe { __register_atfork(None, None, Some(child), (&raw const __dso_handle).cast()) } {
        0 => Ok(()),
        code => Err(code),
    }
}

unsafe extern "C" fn child() {
    let (mut at, end) = ((&raw const FIRST).cast::<Reset>(), (&raw const END).cast::<Reset>());
    while at < end {
        // SAFETY: the section holds functions of this type and nothing else; the handler runs in
        // the child's only thread.
        unsafe {
            (*at)();
            at = at.add(1);
        }
    }
}

/// Makes a lock usable in a child, around a new value. The old one is not dropped: its memory may
/// be in any state, for another thread of the parent may have been changing it.
///
/// # Safety
/// Called in the only thread of a forked child.
pub unsafe fn renew<T>(mutex: &Mutex<T>, value: T) {
    // SAFETY: the caller guarantees it.
    unsafe { mutex.reset_after_fork() };
    core::mem::forget(core::mem::replace(&mut *mutex.lock(), value));
}
