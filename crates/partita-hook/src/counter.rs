//! Which of the slot's launch counters a thread counts in.
//!
//! An atomic addition waits until the stores before it have left the core, and a
//! launch has just stored a whole descriptor. So the first threads that launch get
//! a counter each, which they give back when they end; the others share one.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use partita_ledger::LAUNCH_COUNTERS;

/// Counters that threads have for themselves.
const OWN: usize = LAUNCH_COUNTERS - 1;

static TAKEN: [AtomicBool; OWN] = [const { AtomicBool::new(false) }; OWN];
/// One more than the key under which a thread keeps one more than its counter; 0 before there is one.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Makes the key; without one, every thread counts in the shared counter.
pub fn prepare() {
    if KEY.load(Ordering::Acquire) != 0 {
        return;
    }
    let mut key = 0;
    // SAFETY: a valid pointer, and a function that lives as long as the process.
    if unsafe { libc::pthread_key_create(&mut key, Some(give_back)) } == 0 {
        KEY.store(key + 1, Ordering::Release);
    }
}

/// The calling thread's counter; [`OWN`] for the shared one. No lock; a thread's first call may allocate.
#[inline]
pub fn of_this_thread() -> usize {
    let key = KEY.load(Ordering::Acquire);
    if key == 0 {
        return OWN;
    }
    // SAFETY: the key was made and is never deleted.
    match unsafe { libc::pthread_getspecific(key - 1) } as usize {
        0 => take(key - 1),
        counter => counter - 1,
    }
}

#[cold]
fn take(key: libc::pthread_key_t) -> usize {
    let free = |taken: &AtomicBool| !taken.swap(true, Ordering::Acquire);
    let counter = TAKEN.iter().position(free).unwrap_or(OWN);
    // SAFETY: the key was made. A value that cannot be kept would be asked for again at every launch.
    if unsafe { libc::pthread_setspecific(key, core::ptr::without_provenance(counter + 1)) } != 0 {
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
    let key = KEY.load(Ordering::Relaxed);
    if key != 0 {
        // SAFETY: the key was made; null is what a thread begins with.
        unsafe { libc::pthread_setspecific(key - 1, core::ptr::null()) };
    }
}
