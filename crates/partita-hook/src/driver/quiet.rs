//! Who asks the driver about streams, events and contexts of the program, beside the program
//! itself.
//!
//! The hook's thread does, and holds this lock meanwhile. Whoever ends what it could ask about, or
//! begins a capture that its questions would spoil, holds it too. The thread never waits for it:
//! what ends may itself wait for work that the thread is to let go on.

use core::sync::atomic::{AtomicBool, Ordering};

use partita_ledger::mutex::{Guard, Mutex};

use crate::sys::fork::in_child;

static ASKING: Mutex<()> = Mutex::new(());
/// Whether the process exits: the lock is held for ever, and nobody else needs it.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Keeps the hook's thread from asking until the guard is dropped.
pub fn keep() -> Option<Guard<'static, ()>> {
    // What ends the driver's state may call what keeps quiet.
    (!ENDING.load(Ordering::Acquire)).then(|| ASKING.lock())
}

/// The right to ask, if nobody keeps from it.
pub fn ask() -> Option<Guard<'static, ()>> {
    ASKING.try_lock()
}

/// Nothing is asked while the process exits: the driver's state ends under it.
pub extern "C" fn for_ever() {
    core::mem::forget(keep());
    ENDING.store(true, Ordering::Release);
}

// Makes it usable in a child of `fork`.
in_child! {
    ENDING.store(false, Ordering::Release);
    ASKING.reset_after_fork();
}
