//! Processes made by `fork`, for tests of their effects on each other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A child process; killed when dropped before it was waited for.
pub struct Child(pub i32);

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Exit(i32),
    Signal(i32),
}

/// One test at a time: a forked process has copies of all descriptors, and keeps their locks.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets children of `fork` report their panics: the test harness captures a test's output, and the
/// child's copy of it is never shown. Set up in the parent, because a child may have inherited a
/// lock without a holder.
fn children_speak() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let (parent, former) = (std::process::id(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |info| {
            if std::process::id() == parent {
                return former(info);
            }
            let text = format!("in a child process: {info}\n");
            // SAFETY: readable bytes.
            unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
        }));
    });
}

/// Runs `body` in a child process, which ends with its result, or with 101 if it panics.
pub fn fork(body: impl FnOnce() -> i32) -> Child {
    children_speak();
    // SAFETY: the child runs on in this thread alone. It allocates, which glibc makes safe after a
    // fork, and takes no lock that another thread of the parent may have held.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            let code = catch_unwind(AssertUnwindSafe(body)).unwrap_or(101);
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(code) }
        }
        pid => Child(pid),
    }
}

impl Child {
    pub fn kill(&self) {
        // SAFETY: the child is not waited for yet, so the number is still its own.
        assert_eq!(unsafe { libc::kill(self.0, libc::SIGKILL) }, 0);
    }

    /// Whether it has ended by itself; it can still be waited for.
    pub fn has_ended(&self) -> bool {
        let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: room for the answer, which stays zero while the child runs.
        unsafe {
            assert_eq!(libc::waitid(libc::P_PID, self.0 as libc::id_t, info.as_mut_ptr(), flags), 0);
            info.assume_init().si_pid() != 0
        }
    }

    pub fn wait(self) -> End {
        let mut status = 0;
        // SAFETY: the status is where the call writes.
        assert_eq!(unsafe { libc::waitpid(self.0, &mut status, 0) }, self.0);
        std::mem::forget(self);
        if libc::WIFSIGNALED(status) {
            End::Signal(libc::WTERMSIG(status))
        } else {
            End::Exit(libc::WEXITSTATUS(status))
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let mut status = 0;
        // SAFETY: as in `kill` and `wait`; only reached when a test fails.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, &mut status, 0);
        }
    }
}

/// Words that this process shares with the children it forks later.
pub fn shared_words<const N: usize>() -> &'static [AtomicU64; N] {
    let bytes = size_of::<[AtomicU64; N]>();
    // SAFETY: a new mapping, never unmapped, of zeros, which are valid words.
    unsafe {
        let base = libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(base, libc::MAP_FAILED);
        &*base.cast()
    }
}

/// Waits until `condition` holds; a test that waits for longer than any machine needs has failed.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: not within a minute");
        std::thread::yield_now();
    }
}

/// A small generator of numbers, random enough for sizes and delays.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}
