//! Waiting for a word to change, within the process.

use core::sync::atomic::AtomicU32;

/// Waits while the word is `value`, for at most this long, in nanoseconds. May return for no
/// reason.
pub fn wait(word: &AtomicU32, value: u32, ns_max: Option<u64>) {
    let limit = ns_max.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000).min(3600).cast_signed(),
        tv_nsec: (ns % 1_000_000_000).cast_signed(),
    });
    let limit = limit.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: a word that outlives the call, and a time that does, or null.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            value,
            limit,
        )
    };
}

/// Sleeps for this long, in nanoseconds. A signal may cut it short.
pub fn sleep(ns: u64) {
    wait(&AtomicU32::new(0), 0, Some(ns));
}

/// Wakes all waiters of the word.
pub fn wake_all(word: &AtomicU32) {
    // SAFETY: a word that outlives the call.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX)
    };
}
