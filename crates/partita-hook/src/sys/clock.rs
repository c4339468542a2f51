//! The clock by which everything is measured.

use partita_driver::files;

/// `CLOCK_MONOTONIC`, in nanoseconds.
#[inline]
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid pointer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Whether `CLOCK_MONOTONIC` differs from the machine's, because this process is in another time
/// namespace than the machine's first one.
pub fn is_shifted() -> bool {
    // A kernel without the file has no such namespaces.
    let offsets = files::read("/proc/self/timens_offsets", 1024).unwrap_or_default();
    let mut words = offsets.lines().filter_map(|line| line.strip_prefix("monotonic"));
    words.any(|words| words.split_whitespace().any(|word| word != "0"))
}

/// Sleeps for this time of less than a second, in nanoseconds. A signal ends it early.
pub fn sleep_ns(ns: u32) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: ns.into() };
    // SAFETY: a valid pointer.
    unsafe { libc::nanosleep(&time, core::ptr::null_mut()) };
}
