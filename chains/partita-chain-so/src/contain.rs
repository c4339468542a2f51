//! Where a panic ends, which would be a bug of this library: the call that it happened in fails,
//! and the C program goes on.
//!
//! That needs a build in which panics unwind: the workspace's profiles `unwinding` and
//! `dev-unwinding`. In the others a panic ends the process.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::text;

thread_local! {
    /// Why this thread's component cannot be used any more.
    static FAULT: RefCell<Option<String>> = const { RefCell::new(None) };
    /// Whether this thread is in a call from C.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Does the work of a call from C, and returns `failed` if that panics, or if an earlier call of
/// this thread has: what that one was changing may be half changed.
pub fn contained<T>(failed: T, work: impl FnOnce() -> T) -> T {
    // A thread that is ending has no component.
    let fault = FAULT.try_with(|fault| fault.borrow().clone()).unwrap_or(None);
    if let Some(fault) = fault {
        text::fail(format!(
            "an earlier call of this thread failed by a fault of libpartita_chain ({fault}), so the component is of no use any more: end this \
             process, which `partita chain` starts anew"
        ));
        return failed;
    }
    #[cfg(panic = "unwind")]
    keep_quiet();
    IS_INSIDE.set(true);
    // Whatever is half changed is this thread's alone, and out of reach from here on.
    let done = catch_unwind(AssertUnwindSafe(work));
    IS_INSIDE.set(false);
    done.unwrap_or_else(|payload| {
        // To drop it could panic again.
        std::mem::forget(payload);
        let unknown = || "a panic".to_owned();
        // On a thread that is ending nobody is left to tell.
        let fault = FAULT.try_with(|fault| fault.borrow_mut().get_or_insert_with(unknown).clone());
        let fault = fault.unwrap_or_else(|_| unknown());
        text::fail(format!("a fault of libpartita_chain: {fault}; please report it"));
        failed
    })
}

/// Has what this library's panics say kept for the caller instead of printed.
#[cfg(panic = "unwind")]
fn keep_quiet() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_INSIDE.try_with(Cell::get).unwrap_or(false) {
                return before(info);
            }
            let what = info.payload_as_str().unwrap_or("a panic");
            let place = info.location().map_or_else(String::new, |place| format!(" at {place}"));
            let _ = FAULT.try_with(|fault| {
                if let Ok(mut fault) = fault.try_borrow_mut() {
                    fault.get_or_insert_with(|| format!("{what}{place}"));
                }
            });
        }));
    });
}
