//! A lock for queries of the program's streams, events and contexts from outside of the program's
//! own calls.
//!
//! The hook's thread makes such queries and holds this lock meanwhile. Code that destroys what the
//! thread could query, or begins a capture that its queries would invalidate, holds it too. The
//! thread never waits for the lock: a call that destroys an object may itself wait for work that
//! the thread must release.

use core::sync::atomic::{AtomicBool, Ordering};

use partita_ledger::mutex::{Guard, Mutex};

use crate::sys::clock::sleep_ns;
use crate::sys::fork::in_child;

/// How often a thread of the program tries to ask, and how long it sleeps in between: together
/// longer than another thread that has the lock may have to wait for a processor.
const NAPS: u32 = 250;
const NAP_NS: u32 = 20_000;

static ASKING: Mutex<()> = Mutex::new(());
/// Whether the process exits: the lock is then held forever, and no other code needs it.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Keeps the hook's thread from asking until the guard is dropped.
pub fn keep() -> Option<Guard<'static, ()>> {
    // A call that ends the driver's state may call functions that take this lock.
    (!ENDING.load(Ordering::Acquire)).then(|| ASKING.lock())
}

/// The right to query, if the lock is free.
pub fn ask() -> Option<Guard<'static, ()>> {
    ASKING.try_lock()
}

/// The same, after a bounded wait for the hook's thread, whose questions take microseconds.
pub fn ask_soon() -> Option<Guard<'static, ()>> {
    (0..NAPS).find_map(|nap| {
        if nap > 0 {
            sleep_ns(NAP_NS);
        }
        ask()
    })
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
