//! Sleep until a word changes, and wake sleepers.

use core::ptr;
use core::time::Duration;

use crate::sync::{Word, see_each_other};

/// The longest sleep without a check: the delay if a process dies between its change and the
/// wake-up.
const SLEEP_NS_MAX: u64 = 50_000_000;
/// Checks between two readings of the clock.
const LOOKS: u32 = 64;

/// The monotonic clock, in nanoseconds, for all deadlines and times of a chain file.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the structure; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32).as_nanos() as u64
}

fn timespec(ns: u64) -> libc::timespec {
    let time = Duration::from_nanos(ns);
    libc::timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() }
}

/// Sleeps while the low half of `word` is unchanged, until `until_ns` at most; a signal may end it
/// early.
fn sleep(word: &Word, was: u32, until_ns: u64) {
    let until = timespec(until_ns);
    // SAFETY: the word is mapped for the length of the borrow, and aligned; the kernel reads the
    // time. No PRIVATE flag: the word is in shared memory.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.low_half(),
            libc::FUTEX_WAIT_BITSET,
            was,
            &raw const until,
            ptr::null::<u32>(),
            libc::FUTEX_BITSET_MATCH_ANY,
        )
    };
}

/// Wakes the sleepers on `word`, if `sleeping` says that there may be any. The change that they
/// wait for has been made.
pub(crate) fn wake(word: &Word, sleeping: &Word) {
    see_each_other();
    if sleeping.load() != 0 {
        // SAFETY: the address is of a mapped word.
        unsafe { libc::syscall(libc::SYS_futex, word.low_half(), libc::FUTEX_WAKE, i32::MAX) };
    }
}

/// Waits while `idle`, which a change of `word` may end, and until `deadline_ns` at most: first
/// spins for `spin_ns`, then sleeps. Returns whether it ended before the deadline.
pub(crate) fn while_idle(
    word: &Word,
    sleeping: &Word,
    spin_ns: u64,
    deadline_ns: u64,
    idle: impl Fn() -> bool,
) -> bool {
    if !idle() {
        return true;
    }
    let mut now = monotonic_ns();
    let awake_until = now.saturating_add(spin_ns).min(deadline_ns);
    while now < awake_until {
        for _ in 0..LOOKS {
            if !idle() {
                return true;
            }
            core::hint::spin_loop();
        }
        now = monotonic_ns();
    }
    while now < deadline_ns {
        sleeping.store(1);
        see_each_other();
        let was = word.load() as u32;
        if !idle() {
            break;
        }
        sleep(word, was, deadline_ns.min(now.saturating_add(SLEEP_NS_MAX)));
        now = monotonic_ns();
    }
    sleeping.store(0);
    !idle()
}
