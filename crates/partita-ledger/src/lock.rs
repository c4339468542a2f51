//! Open-file-description locks. The kernel releases one when the last descriptor *and the last
//! mapping* from one `open` are gone, so with the process that holds it. Closing another descriptor
//! or the death of a thread does not release it.
//!
//! They exclude descriptions, not processes: two `open`s of one process exclude each other, and a
//! child of `fork` shares its parent's lock. An operation that must not count as the holder of a
//! lock opens the file again.

use core::ffi::{CStr, c_int};
use core::time::Duration;

use crate::error::{Errno, LedgerError, Problem};
use crate::file::{Fd, failed};

fn range(kind: c_int, start: usize, bytes: usize) -> libc::flock {
    // SAFETY: the structure is numbers only, for which zero is a value; the process number must be
    // zero here.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = start as libc::off_t;
    lock.l_len = bytes as libc::off_t;
    lock
}

fn set(path: &CStr, fd: &Fd, kind: c_int, start: usize, bytes: usize) -> Result<bool, LedgerError> {
    let lock = range(kind, start, bytes);
    loop {
        // SAFETY: the argument is the structure that this command reads.
        if unsafe { libc::fcntl(fd.raw(), libc::F_OFD_SETLK, &lock) } == 0 {
            return Ok(true);
        }
        match Errno::last().0 {
            libc::EINTR => {}
            libc::EAGAIN | libc::EACCES => return Ok(false),
            errno => {
                return Err(LedgerError::new(path, Problem::System { call: "fcntl(F_OFD_SETLK)", errno }));
            }
        }
    }
}

/// Locks a range for this description alone, replacing its present lock on it; false, without
/// waiting, if another description holds any byte of it.
pub fn try_lock(path: &CStr, fd: &Fd, start: usize, bytes: usize) -> Result<bool, LedgerError> {
    set(path, fd, libc::F_WRLCK, start, bytes)
}

/// Locks a range together with others that do the same, replacing this description's present lock
/// on it; false, without waiting, if another description holds any byte of it alone.
pub(crate) fn try_lock_shared(path: &CStr, fd: &Fd, start: usize, bytes: usize) -> Result<bool, LedgerError> {
    set(path, fd, libc::F_RDLCK, start, bytes)
}

/// How often to check whether another process has released a lock, and how many of these checks
/// come without a sleep: together a tenth of a second, far longer than any process holds one, so
/// that only a stopped process exceeds it. Sleeping lets threads of lower priority run.
pub(crate) const WAITS_MAX: u32 = 2000;
const LOOKS: u32 = 20;
const NAP: Duration = Duration::from_micros(50);

/// Waits between two checks, of which this is the number.
pub(crate) fn pause(round: u32) {
    if round >= LOOKS {
        sleep(NAP);
    }
}

/// A byte of a file that one description at a time holds; released when dropped.
#[must_use = "otherwise it is released at once"]
pub(crate) struct Byte<'a> {
    path: &'a CStr,
    fd: &'a Fd,
    offset: usize,
}

impl<'a> Byte<'a> {
    /// Waits for the byte; `None` if the process that holds it is stopped.
    pub(crate) fn take(path: &'a CStr, fd: &'a Fd, offset: usize) -> Option<Self> {
        for round in 0..WAITS_MAX {
            if try_lock(path, fd, offset, 1).unwrap_or(false) {
                return Some(Self { path, fd, offset });
            }
            pause(round);
        }
        None
    }
}

impl Drop for Byte<'_> {
    fn drop(&mut self) {
        let _ = unlock(self.path, self.fd, self.offset, 1);
    }
}

/// Sleeps for less than a second; a signal may interrupt it, without harm.
pub fn sleep(time: Duration) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    // SAFETY: the argument is read only.
    unsafe { libc::nanosleep(&time, core::ptr::null_mut()) };
}

/// Releases a range.
pub fn unlock(path: &CStr, fd: &Fd, start: usize, bytes: usize) -> Result<(), LedgerError> {
    set(path, fd, libc::F_UNLCK, start, bytes).map(|_| ())
}

/// Whether another description holds any byte of the range. Needs no permission to write.
pub fn is_locked(path: &CStr, fd: &Fd, start: usize, bytes: usize) -> Result<bool, LedgerError> {
    let mut lock = range(libc::F_WRLCK, start, bytes);
    // SAFETY: the argument is the structure that this command reads and writes.
    if unsafe { libc::fcntl(fd.raw(), libc::F_OFD_GETLK, &mut lock) } != 0 {
        return Err(failed(path, "fcntl(F_OFD_GETLK)"));
    }
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

/// Whether another description than the given descriptor's has a lock on any byte of the file: then
/// another process that uses the file lives. Needs no permission to write.
///
/// A descriptor from another process shares its description, and with it its locks: open the file
/// again (`/proc/self/fd/N`). Otherwise the check does not see that process, and its locks live as
/// long as the descriptor does.
///
/// # Errors
/// The system's: `EBADF` for an invalid descriptor.
pub fn is_locked_elsewhere(descriptor: c_int) -> Result<bool, Errno> {
    // No length: to the end of the file, however long it becomes.
    let mut lock = range(libc::F_WRLCK, 0, 0);
    // SAFETY: the argument is the structure that this command reads and writes; it changes nothing
    // of the file.
    if unsafe { libc::fcntl(descriptor, libc::F_OFD_GETLK, &mut lock) } != 0 {
        return Err(Errno::last());
    }
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

/// Locks the whole file of an open descriptor for its description alone, without waiting; false if
/// another description holds a lock on any byte of it. The descriptor must be open for writing.
///
/// # Errors
/// The system's.
pub fn lock_alone(descriptor: c_int) -> Result<bool, Errno> {
    let lock = range(libc::F_WRLCK, 0, 0);
    // SAFETY: the argument is the structure that this command reads.
    if unsafe { libc::fcntl(descriptor, libc::F_OFD_SETLK, &lock) } == 0 {
        return Ok(true);
    }
    match Errno::last() {
        Errno(libc::EAGAIN | libc::EACCES) => Ok(false),
        error => Err(error),
    }
}

/// Whether another description has locked the file of an open descriptor as [`lock_alone`] does.
/// Locks of processes that may only read the file do not count: the kernel does not allow them such
/// locks.
///
/// # Errors
/// The system's.
pub fn is_locked_alone(descriptor: c_int) -> Result<bool, Errno> {
    let mut lock = range(libc::F_RDLCK, 0, 0);
    // SAFETY: the argument is the structure that this command reads and writes.
    if unsafe { libc::fcntl(descriptor, libc::F_OFD_GETLK, &mut lock) } != 0 {
        return Err(Errno::last());
    }
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    /// Locks, or unlocks, bytes of a description.
    fn set(file: &File, kind: c_int, start: usize, bytes: usize) {
        // SAFETY: the argument is the structure that this command reads.
        let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &range(kind, start, bytes)) };
        assert_eq!(result, 0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not model this kernel call")]
    fn a_lock_of_anybody_else_is_seen_wherever_it_is() {
        let temp = tempfile::NamedTempFile::new().unwrap();
        let holder = File::options().write(true).open(temp.path()).unwrap();
        let other = File::open(temp.path()).unwrap();
        let seen = |file: &File| is_locked_elsewhere(file.as_raw_fd()).unwrap();
        assert!(!seen(&other));
        // Beyond the end of the file, too.
        for start in [0, 100, 1 << 40] {
            set(&holder, libc::F_WRLCK, start, 1);
            // A copy of the descriptor has the same description, like one that was sent to another
            // process.
            let copy = holder.try_clone().unwrap();
            assert!(seen(&other) && !seen(&holder) && !seen(&copy));
            let reopened = File::open(std::format!("/proc/self/fd/{}", copy.as_raw_fd())).unwrap();
            assert!(seen(&reopened));
            set(&holder, libc::F_UNLCK, start, 1);
            assert!(!seen(&other) && !seen(&reopened));
        }
        // The lock lives as long as any copy.
        set(&holder, libc::F_WRLCK, 3, 1);
        let copy = holder.try_clone().unwrap();
        drop(holder);
        assert!(seen(&other));
        drop(copy);
        assert!(!seen(&other));
        assert_eq!(is_locked_elsewhere(-1), Err(Errno(libc::EBADF)));
    }
}
