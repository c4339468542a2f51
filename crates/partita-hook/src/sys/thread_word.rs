//! A word that each thread has for itself.
//!
//! By a key of pthreads: stable Rust has no thread-local storage without its standard library.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};

/// The word, null in every thread at first.
pub struct ThreadWord {
    /// One more than its key; 0 before there is one.
    key: AtomicU32,
}

impl ThreadWord {
    /// One without a key.
    pub const fn new() -> Self {
        Self { key: AtomicU32::new(0) }
    }

    /// Makes the key at the first call. The C library calls `at_end` with the word of each thread
    /// that ends with one.
    ///
    /// # Errors
    /// The C library has no key left for values of threads.
    pub fn prepare(&self, at_end: Option<unsafe extern "C" fn(*mut c_void)>) -> Result<(), &'static str> {
        if self.is_ready() {
            return Ok(());
        }
        let mut key = 0;
        // SAFETY: a valid pointer, and a function that lives as long as the process.
        if unsafe { libc::pthread_key_create(&mut key, at_end) } != 0 {
            return Err("no thread-specific data can be had: too many keys in this process");
        }
        self.key.store(key + 1, Ordering::Release);
        Ok(())
    }

    /// Whether there is a key.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.key.load(Ordering::Acquire) != 0
    }

    /// The calling thread's word; null without a key.
    #[inline]
    pub fn get(&self) -> *mut c_void {
        match self.key.load(Ordering::Acquire) {
            0 => core::ptr::null_mut(),
            // SAFETY: the key was made and is never deleted.
            key => unsafe { libc::pthread_getspecific(key - 1) },
        }
    }

    /// Sets it; false without a key, or if the thread's first word finds no memory.
    #[inline]
    pub fn set(&self, word: *const c_void) -> bool {
        match self.key.load(Ordering::Acquire) {
            0 => false,
            // SAFETY: the key was made and is never deleted; only its owner interprets the word.
            key => unsafe { libc::pthread_setspecific(key - 1, word) == 0 },
        }
    }
}

/// The calling thread's pointer: unique among the living threads of a process, and never 0.
#[inline]
pub fn this_thread() -> usize {
    let thread;
    // SAFETY: the ABI of x86-64 has a thread's pointer at the address that it is, and that of
    // aarch64 in a register.
    unsafe {
        core::arch::asm!(
            #[cfg(target_arch = "x86_64")]
            "mov {}, fs:0",
            #[cfg(target_arch = "aarch64")]
            "mrs {}, tpidr_el0",
            out(reg) thread,
            options(nostack, pure, readonly, preserves_flags),
        );
    }
    thread
}
