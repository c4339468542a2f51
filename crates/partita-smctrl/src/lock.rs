//! A lock of the process. It can be held for seconds while a driver is proved, so waiting threads
//! sleep.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

/// A value that one thread at a time can access.
pub struct Mutex<T> {
    raw: UnsafeCell<libc::pthread_mutex_t>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a Guard, which holds the mutex.
unsafe impl<T: Send> Sync for Mutex<T> {}
// SAFETY: an unlocked pthread mutex may be moved while no thread uses it, which the borrow checker
// ensures.
unsafe impl<T: Send> Send for Mutex<T> {}

/// Access to the value; released on drop.
pub struct Guard<'a, T>(&'a Mutex<T>);

impl<T> Mutex<T> {
    /// An unlocked mutex around `value`.
    pub const fn new(value: T) -> Self {
        Self { raw: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> Guard<'_, T> {
        // SAFETY: initialised statically and never moved while borrowed; no caller locks twice on
        // one thread.
        unsafe { libc::pthread_mutex_lock(self.raw.get()) };
        Guard(self)
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the mutex.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the mutex.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: locked by this thread.
        unsafe { libc::pthread_mutex_unlock(self.0.raw.get()) };
    }
}
