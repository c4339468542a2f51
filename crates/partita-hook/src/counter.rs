//! Which of the slot's launch counters a thread counts in.
//!
//! An atomic addition waits until the stores before it have left the core, and a
//! launch has just stored a whole descriptor. So the first threads that launch get
//! a counter each, which they give back when they end; the others share one.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};

use partita_ledger::LAUNCH_COUNTERS;

use crate::thread_word::ThreadWord;

/// Counters that threads have for themselves.
const OWN: usize = LAUNCH_COUNTERS - 1;

static TAKEN: [AtomicBool; OWN] = [const { AtomicBool::new(false) }; OWN];
/// One more than each thread's counter.
static COUNTER: ThreadWord = ThreadWord::new();

/// Makes room for what threads keep; without it, every thread counts in the shared counter.
pub fn prepare() {
    let _ = COUNTER.prepare(Some(give_back));
}

/// The calling thread's counter; [`OWN`] for the shared one. No lock; a thread's first call may allocate.
#[inline]
pub fn of_this_thread() -> usize {
    match COUNTER.get() as usize {
        0 => take(),
        counter => counter - 1,
    }
}

#[cold]
fn take() -> usize {
    if !COUNTER.is_ready() {
        return OWN;
    }
    let free = |taken: &AtomicBool| !taken.swap(true, Ordering::Acquire);
    let counter = TAKEN.iter().position(free).unwrap_or(OWN);
    // A value that cannot be kept would be asked for again at every launch.
    if !COUNTER.set(core::ptr::without_provenance(counter + 1)) {
        if let Some(taken) = TAKEN.get(counter) {
            taken.store(false, Ordering::Release);
        }
        return OWN;
    }
    counter
}

/// A thread has ended: whoever takes its counter next counts on.
unsafe extern "C" fn give_back(value: *mut c_void) {
    if let Some(taken) = TAKEN.get((value as usize).wrapping_sub(1)) {
        taken.store(false, Ordering::Release);
    }
}

/// Gives back what the parent's threads had, and what this one had.
///
/// # Safety
/// Called in the only thread of a forked child.
pub unsafe fn reset_after_fork() {
    TAKEN.iter().for_each(|taken| taken.store(false, Ordering::Relaxed));
    COUNTER.set(core::ptr::null());
}
