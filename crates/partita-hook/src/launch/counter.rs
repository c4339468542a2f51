//! Which of the slot's launch counters a thread uses.
//!
//! An atomic addition waits until the stores before it have left the core, and a launch has just
//! stored a whole descriptor. So the first threads that launch get a separate counter each, which
//! they release when they end; the others share one. A thread's counter is found by the thread's
//! pointer, which costs a launch less than a call.

use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering};

use partita_ledger::LAUNCH_COUNTERS;

use crate::sys::fork::in_child;
use crate::sys::thread_word::{ThreadWord, this_thread};

/// Counters that threads have for themselves.
const OWN: usize = LAUNCH_COUNTERS - 1;

/// The owner of each counter: the thread's pointer, 0 if it is free.
static OWNERS: [AtomicUsize; OWN] = [const { AtomicUsize::new(0) }; OWN];
/// Not null in threads that have a counter, which they release when they end.
static HAS_COUNTER: ThreadWord = ThreadWord::new();

/// Allocates the thread-local word; without it, every thread uses the shared counter.
pub fn prepare() {
    let _ = HAS_COUNTER.prepare(Some(give_back));
}

/// The calling thread's counter; [`OWN`] for the shared one. No lock; the call that finds a free
/// counter may allocate.
#[inline]
pub fn of_this_thread() -> usize {
    match of(this_thread()) {
        Some(counter) => counter,
        None => take(),
    }
}

#[inline]
fn of(thread: usize) -> Option<usize> {
    OWNERS.iter().position(|owner| owner.load(Ordering::Relaxed) == thread)
}

#[cold]
fn take() -> usize {
    if !HAS_COUNTER.is_ready() {
        return OWN;
    }
    let own = this_thread();
    let free = |owner: &AtomicUsize| {
        owner.load(Ordering::Relaxed) == 0
            && owner.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    let Some(counter) = OWNERS.iter().position(free) else { return OWN };
    // Without the word the counter would never be released.
    if !HAS_COUNTER.set(core::ptr::from_ref(&OWNERS[counter]).cast()) {
        OWNERS[counter].store(0, Ordering::Release);
        return OWN;
    }
    counter
}

/// A thread has ended: the next owner of its counter continues from its value.
unsafe extern "C" fn give_back(_: *mut c_void) {
    if let Some(counter) = of(this_thread()) {
        OWNERS[counter].store(0, Ordering::Release);
    }
}

// Releases the counters of the parent's threads, and of this one.
in_child! {
    OWNERS.iter().for_each(|owner| owner.store(0, Ordering::Relaxed));
    HAS_COUNTER.set(core::ptr::null());
}
