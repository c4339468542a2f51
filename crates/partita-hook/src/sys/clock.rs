//! The clock by which everything is measured.

/// `CLOCK_MONOTONIC`, in nanoseconds.
#[inline]
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid pointer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Sleeps for this time of less than a second, in nanoseconds. A signal ends it early.
pub fn sleep_ns(ns: u32) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: ns.into() };
    // SAFETY: a valid pointer.
    unsafe { libc::nanosleep(&time, core::ptr::null_mut()) };
}
