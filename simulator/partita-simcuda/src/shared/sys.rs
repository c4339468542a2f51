//! The operating system calls that the board and its clients share, each with a safe function.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Locks; a panic elsewhere cannot have happened (the workspace aborts on panics).
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nanoseconds of `CLOCK_MONOTONIC`, the one clock that every process of the machine agrees on.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid place for a timespec, and the clock always exists on Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Waits until `word` is not `expected`, a wake-up comes, or the timeout passes. Spurious returns
/// happen.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    let limit = timeout.map(|limit| libc::timespec {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_nsec: limit.subsec_nanos() as libc::c_long,
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word outlives the call; FUTEX_WAIT reads it and the optional timespec, nothing
    // else. The word is in memory that several processes share, hence no FUTEX_PRIVATE_FLAG.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, limit) };
}

/// Wakes every waiter of `word`.
pub fn futex_wake_all(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE uses the address as a key only.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// An anonymous file of `bytes`, sparse until written.
///
/// # Errors
/// Those of `memfd_create` and `ftruncate`.
pub fn memfd(name: &CStr, bytes: u64) -> io::Result<OwnedFd> {
    // The function is in the C library from 2.27 on.
    // SAFETY: the name is a C string; the call returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC) };
    let fd = owned(fd as i32)?;
    // SAFETY: plain call on a descriptor that this function owns.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) })?;
    Ok(fd)
}

/// An event counter that `poll` sees as readable when it is not zero.
///
/// # Errors
/// Those of `eventfd`.
pub fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Adds one to an event counter. A full counter is already signalled, so a failure does not matter.
pub fn eventfd_signal(fd: BorrowedFd<'_>) {
    let one = 1u64;
    // SAFETY: writes eight bytes from a local.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Sets an event counter back to zero.
pub fn eventfd_clear(fd: BorrowedFd<'_>) {
    let mut count = 0u64;
    // SAFETY: reads at most eight bytes into a local.
    unsafe { libc::read(fd.as_raw_fd(), (&raw mut count).cast(), 8) };
}

/// A mapping of a file that other processes map too. Unmapped when dropped.
#[derive(Debug)]
pub struct SharedMap {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory; what may be read and written concurrently is decided by its
// users, who go through atomics or raw copies.
unsafe impl Send for SharedMap {}
// SAFETY: as above.
unsafe impl Sync for SharedMap {}

impl SharedMap {
    /// Maps the first `bytes` of `fd` for reading and writing, somewhere.
    ///
    /// # Errors
    /// Those of `mmap`.
    pub fn new(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(base.cast()).map(|base| Self { base, bytes }).ok_or_else(io::Error::last_os_error)
    }

    /// Where the mapping starts.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// How long the mapping is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of `offset`, or `None` when `offset + bytes` leaves the mapping.
    pub fn at(&self, offset: u64, bytes: u64) -> Option<*mut u8> {
        let end = offset.checked_add(bytes)?;
        // SAFETY: the offset was just checked to lie inside the mapping.
        (end <= self.bytes as u64).then(|| unsafe { self.base.as_ptr().add(offset as usize) })
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and no borrow of a dropped value exists.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Releases the pages of a range of a file; they read as zero afterwards.
///
/// # Errors
/// Those of `fallocate`.
pub fn punch_hole(fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<()> {
    // SAFETY: plain call without pointers.
    check(unsafe {
        libc::fallocate(
            fd.as_raw_fd(),
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            offset as libc::off_t,
            bytes as libc::off_t,
        )
    })
}

/// Takes the descriptor that a system call just returned, or its error.
///
/// # Errors
/// `errno`, when the number is negative.
pub fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the caller just got this number from the kernel, and no other code uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A descriptor that becomes readable when a process ends.
///
/// # Errors
/// Those of `pidfd_open`.
pub fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers; the descriptor is close-on-exec by itself.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as RawFd)
}

/// Whether a descriptor is readable now.
pub fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, a local.
    unsafe { libc::poll(&raw mut entry, 1, 0) > 0 }
}

/// Turns the -1 of a system call into its error.
///
/// # Errors
/// `errno`, when `result` is negative.
pub fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Requests the most precise timers that the kernel offers for this thread.
pub fn sharpen_timers() {
    // SAFETY: takes no pointers; a refusal only leaves the default slack of 50 us.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1usize, 0usize, 0usize, 0usize) };
}

/// The id of this process.
pub fn pid() -> u32 {
    std::process::id()
}
