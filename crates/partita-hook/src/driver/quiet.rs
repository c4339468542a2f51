//! Locks for queries of the program's streams, events and contexts, and for commands in its
//! streams, from outside of the program's own calls.
//!
//! The hook's threads hold one of the locks meanwhile: one for queries, which return at once, and
//! one for commands, which may wait for room in a channel. Code that destroys what the threads
//! could use, or begins a capture that they would invalidate, holds both. The threads never wait
//! for a lock: a call that destroys an object may itself wait for work that a thread must release.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use partita_ledger::mutex::{Guard, Mutex};

use crate::sys::clock::sleep_ns;
use crate::sys::fork::{in_child, renew};

/// How often a thread of the program tries to ask, and how long it sleeps in between: together
/// longer than another thread that has the lock may have to wait for a processor.
const NAPS: u32 = 250;
const NAP_NS: u32 = 20_000;

static ASKING: Mutex<()> = Mutex::new(());
static PUTTING: Mutex<()> = Mutex::new(());
/// Whether the process exits: the locks are then held forever, and no other code needs them.
static ENDING: AtomicBool = AtomicBool::new(false);
/// What runs before that: the last look of the meter, and the last fences.
static BEFORE_EXIT: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

/// Keeps the hook's threads from the program's objects until the guards are dropped.
pub fn keep() -> Option<[Guard<'static, ()>; 2]> {
    // A call that ends the driver's state may call functions that take these locks. Queries go on
    // while a command waits: they open the gate for which it waits.
    (!ENDING.load(Ordering::Acquire)).then(|| {
        let putting = PUTTING.lock();
        [putting, ASKING.lock()]
    })
}

/// The right to query, if the lock is free.
pub fn ask() -> Option<Guard<'static, ()>> {
    ASKING.try_lock()
}

/// The same, after a bounded wait for the hook's thread, whose questions take microseconds.
pub fn ask_soon() -> Option<Guard<'static, ()>> {
    soon(ask)
}

/// The right to put commands into streams, if the lock is free.
pub fn put() -> Option<Guard<'static, ()>> {
    PUTTING.try_lock().filter(|_| !ENDING.load(Ordering::Acquire))
}

/// The same, after a bounded wait.
pub fn put_soon() -> Option<Guard<'static, ()>> {
    soon(put)
}

fn soon(get: fn() -> Option<Guard<'static, ()>>) -> Option<Guard<'static, ()>> {
    (0..NAPS).find_map(|nap| {
        if nap > 0 {
            sleep_ns(NAP_NS);
        }
        get()
    })
}

/// Has the process run this when it exits. After that nothing is asked or put any more, because the
/// driver's state ends. Call it when the driver has registered its own functions, which come later
/// then.
pub fn before_exit(run: fn()) {
    BEFORE_EXIT.lock().push(run);
    // SAFETY: a function that lives as long as the process.
    unsafe { libc::atexit(for_ever) };
}

extern "C" fn for_ever() {
    let before = core::mem::take(&mut *BEFORE_EXIT.lock());
    before.into_iter().for_each(|run| run());
    if !ENDING.swap(true, Ordering::AcqRel) {
        core::mem::forget(ASKING.lock());
        // A command may wait for room as long as a kernel runs. The exit does not wait so long.
        core::mem::forget(soon(|| PUTTING.try_lock()));
    }
}

// Makes it usable in a child of `fork`.
in_child! {
    ENDING.store(false, Ordering::Release);
    renew(&BEFORE_EXIT, Vec::new());
    ASKING.reset_after_fork();
    PUTTING.reset_after_fork();
}
