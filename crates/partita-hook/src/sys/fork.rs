//! What a child of `fork` starts anew.
//!
//! A child has its parent's memory and none of its threads: locks may be held by nobody, and what
//! belongs to the parent must stay with it. A module that keeps state of the process says with
//! [`in_child!`] how a child makes the state good again. The linker collects what modules say in
//! one section, and [`follow`] has the child run it all. The order is not defined: each module
//! touches its own state only.

use core::sync::atomic::{AtomicBool, Ordering};

use partita_ledger::mutex::Mutex;

/// What a module has a child run.
pub type Reset = unsafe fn();

/// Has every child of `fork` run some statements, in its only thread. They may call what is safe
/// there alone.
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

// The linker defines both names. Hidden, so that the library does not export them.
core::arch::global_asm!(".hidden __start_partita_in_child", ".hidden __stop_partita_in_child");

/// Has the children of this process call what modules have named. Once for a process.
///
/// # Errors
/// The C library's error number.
pub fn follow() -> Result<(), i32> {
    static FOLLOWED: AtomicBool = AtomicBool::new(false);
    if FOLLOWED.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    // SAFETY: the handler stores to memory and closes descriptors.
    match unsafe { libc::pthread_atfork(None, None, Some(child)) } {
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
    // SAFETY: passed on to the caller.
    unsafe { mutex.reset_after_fork() };
    core::mem::forget(core::mem::replace(&mut *mutex.lock(), value));
}
