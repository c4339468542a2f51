//! The descriptors that the daemon polls.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::shared::sys::{check, owned};

/// A descriptor that becomes readable when a signal that ends the daemon arrives. Blocks these
/// signals.
pub(super) fn signals() -> io::Result<OwnedFd> {
    // SAFETY: all zeroes is a valid signal set, and the calls only write to this local one.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        set
    };
    // SAFETY: the set is a local; the old mask is not asked for.
    let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    // SAFETY: the set is a local; -1 asks for a new descriptor.
    owned(unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) })
}

/// Waits until something is readable or closed, and returns which. A signal can end the wait early.
pub(super) fn poll<'a>(
    sources: impl Iterator<Item = BorrowedFd<'a>>,
    limit: Option<Duration>,
) -> io::Result<Vec<bool>> {
    let mut entries: Vec<libc::pollfd> =
        sources.map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }).collect();
    // Rounded up, so that a wait does not end too early.
    let limit_ms = limit.map_or(-1, |limit| i32::try_from(limit.as_millis() + 1).unwrap_or(i32::MAX));
    // SAFETY: the array has the given length.
    match check(unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, limit_ms) }) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(entries.iter().map(|entry| entry.revents != 0).collect()),
    }
}
