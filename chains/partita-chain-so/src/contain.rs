//! Containment of panics, which would be bugs of this library: the call with the panic fails, and
//! the C program continues.
//!
//! This needs a build in which panics unwind: the workspace's profiles `unwinding` and
//! `dev-unwinding`. With other profiles a panic ends the process.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::text;

thread_local! {
    /// Why this thread's component is no longer usable.
    static FAULT: RefCell<Option<String>> = const { RefCell::new(None) };
    /// Whether this thread is in a call from C.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call from C, and returns `failed` if that panics, or if an earlier call of this thread
/// has panicked: its data may be inconsistent.
pub fn contained<T>(failed: T, work: impl FnOnce() -> T) -> T {
    // An ending thread has no component.
    let fault = FAULT.try_with(|fault| fault.borrow().clone()).unwrap_or(None);
    if let Some(fault) = fault {
        text::fail(format!(
            "an earlier call of this thread failed by a fault of libpartita_chain ({fault}), so the \
             component is unusable: end this process, which `partita chain` restarts"
        ));
        return failed;
    }
    #[cfg(panic = "unwind")]
    keep_quiet();
    IS_INSIDE.set(true);
    // The inconsistent data belongs to this thread, and is out of reach from here on.
    let done = catch_unwind(AssertUnwindSafe(work));
    IS_INSIDE.set(false);
    done.unwrap_or_else(|payload| {
        // Dropping it could panic again.
        std::mem::forget(payload);
        let unknown = || "a panic".to_owned();
        // An ending thread has no caller to report to.
        let fault = FAULT.try_with(|fault| fault.borrow_mut().get_or_insert_with(unknown).clone());
        let fault = fault.unwrap_or_else(|_| unknown());
        text::fail(format!("a fault of libpartita_chain: {fault}; please report it"));
        failed
    })
}

/// Keeps the messages of this library's panics for the caller instead of printing them.
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
