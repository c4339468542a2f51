//! A mutual-exclusion lock inside the process, over `pthread_mutex_t`.
//!
//! For the paths that obtain and free memory. The launch path takes no lock.
//!
//! A thread that waits lends its priority to the one that holds the lock: an urgent thread of the program
//! waits for as long as the work in the lock takes, and not until the machine has time for a thread of low
//! priority.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

/// glibc's kind `PTHREAD_MUTEX_PRIO_INHERIT_NP`.
const PRIO_INHERIT: u32 = 32;
/// glibc's kind `PTHREAD_MUTEX_RECURSIVE_NP`.
const RECURSIVE: u32 = 1;

/// An unlocked mutex of a kind of glibc's. The kind's place, behind four words, is part of glibc's interface,
/// as in `PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP`; musl has nothing there.
const fn unlocked(kind: u32) -> libc::pthread_mutex_t {
    // SAFETY: plain bytes; all others are those of PTHREAD_MUTEX_INITIALIZER.
    unsafe { core::mem::transmute::<[u32; 10], libc::pthread_mutex_t>([0, 0, 0, 0, kind, 0, 0, 0, 0, 0]) }
}

/// A value that one thread of the process may touch at a time.
#[derive(Debug)]
pub struct Mutex<T> {
    raw: UnsafeCell<libc::pthread_mutex_t>,
    kind: u32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a Guard, which holds the mutex.
unsafe impl<T: Send> Sync for Mutex<T> {}

/// The right to touch the value; given back when dropped.
#[derive(Debug)]
#[must_use = "the lock is given back at once otherwise"]
pub struct Guard<'a, T> {
    mutex: &'a Mutex<T>,
}

impl<T> Mutex<T> {
    /// An unlocked mutex around `value`.
    pub const fn new(value: T) -> Self {
        Self {
            raw: UnsafeCell::new(unlocked(PRIO_INHERIT)),
            kind: PRIO_INHERIT,
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> Guard<'_, T> {
        // SAFETY: the mutex was initialised statically and never moves while
        // borrowed; a default mutex can fail to lock only by deadlock.
        unsafe { libc::pthread_mutex_lock(self.raw.get()) };
        Guard { mutex: self }
    }

    /// Takes the lock if nobody has it.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        // SAFETY: as for lock().
        (unsafe { libc::pthread_mutex_trylock(self.raw.get()) } == 0).then_some(Guard { mutex: self })
    }

    /// Makes the lock usable in a child of `fork`, where the thread that held
    /// it does not exist.
    ///
    /// # Safety
    /// Called in the only thread of a forked child.
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: no other thread exists, so none holds or waits for the lock.
        unsafe { *self.raw.get() = unlocked(self.kind) };
    }
}

impl Mutex<()> {
    /// One that the thread which holds it may lock again: for calls of the driver in which a tool's callback
    /// may make another such call.
    pub const fn reentrant() -> Self {
        let kind = PRIO_INHERIT | RECURSIVE;
        Self { raw: UnsafeCell::new(unlocked(kind)), kind, value: UnsafeCell::new(()) }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the mutex.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the mutex.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: this thread locked the mutex when the guard was made.
        unsafe { libc::pthread_mutex_unlock(self.mutex.raw.get()) };
    }
}
