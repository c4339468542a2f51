//! A mutual-exclusion lock inside the process, based on `pthread_mutex_t`.
//!
//! For the paths that obtain and free memory. The launch path takes no lock.
//!
//! A waiting thread lends its priority to the holder of the lock: an urgent thread of the program
//! waits only for the work in the lock, and not until the machine has time for a thread of low
//! priority.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

/// glibc's kind `PTHREAD_MUTEX_PRIO_INHERIT_NP`.
const PRIO_INHERIT: u32 = 32;
/// glibc's kind `PTHREAD_MUTEX_RECURSIVE_NP`.
const RECURSIVE: u32 = 1;

/// An unlocked mutex of one of glibc's kinds. The place of the kind, after four words, is part of
/// glibc's interface, as in `PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP`; musl has nothing there.
const fn unlocked(kind: u32) -> libc::pthread_mutex_t {
    const WORDS: usize = size_of::<libc::pthread_mutex_t>() / 4;
    let mut words = [0; WORDS];
    words[4] = kind;
    // SAFETY: plain bytes; all others are those of PTHREAD_MUTEX_INITIALIZER.
    unsafe { core::mem::transmute::<[u32; WORDS], libc::pthread_mutex_t>(words) }
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

/// The right to use the value; released when dropped.
#[derive(Debug)]
#[must_use = "otherwise the lock is released at once"]
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

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        // SAFETY: as for lock().
        (unsafe { libc::pthread_mutex_trylock(self.raw.get()) } == 0).then_some(Guard { mutex: self })
    }

    /// Makes the lock usable in a child of `fork`, where the thread that held it does not exist.
    ///
    /// # Safety
    /// Called in the only thread of a forked child.
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: no other thread exists, so none holds or waits for the lock.
        unsafe { *self.raw.get() = unlocked(self.kind) };
    }
}

impl Mutex<()> {
    /// A mutex that its holder may lock again: for calls of the driver in which a tool's callback
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

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};
    use std::{format, fs, println, thread};

    use super::Mutex;

    /// The priority of a thread of this process in the kernel: below zero if it is urgent.
    fn priority_of(thread: libc::pid_t) -> i32 {
        let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).expect("a thread");
        // The name may hold spaces; after it come the state, which is the third field, and numbers.
        let fields = stat.rsplit_once(") ").expect("a name").1;
        fields.split(' ').nth(18 - 3).and_then(|field| field.parse().ok()).expect("the priority")
    }

    #[test]
    fn an_urgent_thread_that_waits_lends_its_priority() {
        const PRIORITY: i32 = 7;
        static MUTEX: Mutex<()> = Mutex::new(());
        let (tell, told) = mpsc::channel();
        let (done, is_done) = mpsc::channel::<()>();
        let holder = thread::spawn(move || {
            let guard = MUTEX.lock();
            // SAFETY: a plain call.
            tell.send(unsafe { libc::gettid() }).expect("the receiver lives");
            is_done.recv().expect("the sender lives");
            drop(guard);
        });
        let of_holder = told.recv().expect("it holds the lock");
        assert!(priority_of(of_holder) >= 0);
        let urgent = thread::spawn(|| {
            let priority = libc::sched_param { sched_priority: PRIORITY };
            // SAFETY: for this thread, with a structure that is read only.
            let is_urgent = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority) } == 0;
            if is_urgent {
                drop(MUTEX.lock());
            }
            is_urgent
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        while priority_of(of_holder) != -1 - PRIORITY && !urgent.is_finished() {
            assert!(Instant::now() < deadline, "the holder has priority {}", priority_of(of_holder));
            thread::sleep(Duration::from_millis(1));
        }
        let was_urgent = priority_of(of_holder) < 0;
        done.send(()).expect("it waits for that");
        holder.join().expect("it ends");
        if urgent.join().expect("it ends") {
            assert!(was_urgent);
        } else {
            println!("skipped: SCHED_FIFO is not permitted here");
        }
    }
}
