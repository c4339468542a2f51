//! The atomic type of the ledger: a 64-bit word in shared memory.
//!
//! Everything that two processes see at the same time is a [`Word`]. In a loom build the word is
//! loom's, so that the model checker explores the production code. In test builds a countdown
//! precedes every access and can end the operation there, as a SIGKILL would.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};

/// A 64-bit atomic word that other processes may read and write at any time.
#[derive(Debug)]
#[repr(transparent)]
pub struct Word(AtomicU64);

impl Word {
    /// A word that holds `value`; in production words are only mapped.
    #[cfg(any(test, loom))]
    pub fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    /// Reads with acquire ordering; needs writable memory (see [`Word::peek`]).
    #[inline]
    pub fn load(&self) -> u64 {
        step();
        self.0.load(Ordering::Acquire)
    }

    /// Reads with relaxed ordering. The only read that Rust's memory model allows on pages mapped
    /// read-only; follow it by [`acquire`] to get acquire ordering.
    #[inline]
    pub fn peek(&self) -> u64 {
        step();
        self.0.load(Ordering::Relaxed)
    }

    /// Writes with release ordering.
    #[inline]
    pub fn store(&self, value: u64) {
        step();
        self.0.store(value, Ordering::Release);
    }

    /// Replaces `old` by `new`; true if the word held `old`.
    #[inline]
    pub fn replace(&self, old: u64, new: u64) -> bool {
        step();
        self.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Adds one, relaxed: for counters that order nothing.
    #[inline]
    pub fn count(&self) {
        step();
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a number, relaxed, likewise.
    #[inline]
    pub fn add(&self, number: u64) {
        step();
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    /// The half of the word that changes with every increment, for a futex.
    #[cfg(not(loom))]
    pub fn low_half(&self) -> *const u32 {
        let halves = self.0.as_ptr().cast::<u32>().cast_const();
        if cfg!(target_endian = "little") { halves } else { halves.wrapping_add(1) }
    }
}

/// A full fence. If two processes each write a word, pass this, and read the other's word, at least
/// one sees what the other wrote.
#[inline]
pub fn see_each_other() {
    fence(Ordering::SeqCst);
}

/// An acquire fence: earlier peeks synchronise with the release stores that wrote those words.
#[inline]
pub fn acquire() {
    fence(Ordering::Acquire);
}

#[cfg(not(any(test, loom)))]
#[inline(always)]
fn step() {}

#[cfg(loom)]
use crash::step;

#[cfg(all(test, not(loom)))]
fn step() {
    schedule::step();
    crash::step();
}

/// Ends an operation after a chosen number of accesses to shared memory.
#[cfg(any(test, loom))]
pub mod crash {
    extern crate std;
    use std::boxed::Box;
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    // A loom thread is not a thread of the system.
    #[cfg(loom)]
    loom::thread_local! {
        static STEPS_LEFT: Cell<Option<u32>> = Cell::new(None);
    }
    #[cfg(not(loom))]
    std::thread_local! {
        static STEPS_LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    struct Killed;

    /// Called before every access to a word: the access is not made if the countdown has run out.
    pub(super) fn step() {
        STEPS_LEFT.with(|left| match left.get() {
            None => {}
            Some(0) => kill(),
            Some(n) => left.set(Some(n - 1)),
        });
    }

    /// Ends the operation that runs in [`after`].
    pub(super) fn kill() -> ! {
        STEPS_LEFT.with(|left| left.set(None));
        resume_unwind(Box::new(Killed))
    }

    /// Runs `operation` and ends it just before its access number `steps` (from 0) to shared
    /// memory; `None` if it ended there.
    pub fn after<T>(steps: u32, operation: impl FnOnce() -> T) -> Option<T> {
        STEPS_LEFT.with(|left| left.set(Some(steps)));
        let outcome = catch_unwind(AssertUnwindSafe(operation));
        STEPS_LEFT.with(|left| left.set(None));
        match outcome {
            Ok(value) => Some(value),
            Err(cause) if cause.is::<Killed>() => None,
            Err(cause) => resume_unwind(cause),
        }
    }
}

/// Lets a test decide the order of the threads' accesses.
#[cfg(all(test, not(loom)))]
pub mod schedule {
    extern crate std;
    use std::cell::RefCell;
    use std::sync::{Arc, Condvar, Mutex, MutexGuard};

    /// A thread that advances only as far as the test allows.
    #[derive(Debug, Default)]
    pub struct Leash {
        state: Mutex<State>,
        changed: Condvar,
    }

    #[derive(Debug, Default)]
    struct State {
        steps: u32,
        waiting: bool,
        ended: bool,
        killed: bool,
    }

    std::thread_local! {
        static LEASH: RefCell<Option<Arc<Leash>>> = const { RefCell::new(None) };
    }

    impl Leash {
        fn wait_while(&self, condition: impl FnMut(&mut State) -> bool) -> MutexGuard<'_, State> {
            self.changed.wait_while(self.state.lock().unwrap(), condition).unwrap()
        }

        /// Runs `operation` on the calling thread, under this control.
        pub fn run<T>(self: Arc<Self>, operation: impl FnOnce() -> T) -> T {
            LEASH.set(Some(Arc::clone(&self)));
            let result = operation();
            LEASH.set(None);
            self.state.lock().unwrap().ended = true;
            self.changed.notify_all();
            result
        }

        /// Ends the thread's operation where it stands, if it is not over.
        pub fn kill(&self) {
            self.state.lock().unwrap().killed = true;
            self.changed.notify_all();
        }

        /// Lets the thread make `steps` accesses, and waits until it stands before the next one
        /// (true) or is over (false).
        pub fn advance(&self, steps: u32) -> bool {
            drop(self.wait_while(|state| !state.waiting && !state.ended));
            self.state.lock().unwrap().steps = steps;
            self.changed.notify_all();
            !self.wait_while(|state| !state.ended && (!state.waiting || state.steps != 0)).ended
        }
    }

    pub(super) fn step() {
        let Some(leash) = LEASH.with_borrow(Option::clone) else { return };
        let mut state = leash.state.lock().unwrap();
        state.waiting = true;
        // The test waits for the last step. To wake it at each one would take most of the time.
        if state.steps == 0 {
            leash.changed.notify_all();
            state = leash.changed.wait_while(state, |state| state.steps == 0 && !state.killed).unwrap();
        }
        if state.killed {
            drop(state);
            super::crash::kill();
        }
        state.waiting = false;
        state.steps -= 1;
    }
}
