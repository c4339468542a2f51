//! Deadlines for waits on the GPU.

use core::cell::Cell;

/// A point in time by which something must have happened.
#[derive(Debug)]
pub struct Deadline {
    start_ns: u64,
    limit_ns: u64,
    pauses: Cell<u32>,
}

/// Polls without a pause.
const POLLS: u32 = 200;
/// How long a wait polls without sleeping, in nanoseconds.
const AWAKE_NS: u64 = 2_000_000;

/// Nanoseconds of the monotonic clock.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid pointer; this clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Deadline {
    /// A deadline so many milliseconds from now.
    pub fn in_ms(limit_ms: u64) -> Self {
        Self { start_ns: now_ns(), limit_ns: limit_ms.saturating_mul(1_000_000), pauses: Cell::new(0) }
    }

    /// Whether it has passed.
    pub fn has_passed(&self) -> bool {
        now_ns() - self.start_ns > self.limit_ns
    }

    /// Pauses between two polls: not at all at first; then by yielding; and from [`AWAKE_NS`] on
    /// for 50 µs, which are 100 with the kernel's usual slack. This adds at most a twentieth to the
    /// wait.
    pub fn pause(&self) {
        let pauses = self.pauses.get();
        self.pauses.set(pauses.saturating_add(1));
        if pauses <= POLLS {
            return;
        }
        if now_ns() - self.start_ns < AWAKE_NS {
            // SAFETY: nothing is passed.
            unsafe { libc::sched_yield() };
            return;
        }
        let pause = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };
        // SAFETY: a valid pointer; the remainder is not requested.
        unsafe { libc::nanosleep(&pause, core::ptr::null_mut()) };
    }
}
