//! Wait for a flock(2) lock of a file or a directory.
//!
//! Holders need milliseconds. One that a signal has stopped, such as Ctrl-Z in a terminal, would
//! keep all others waiting, so a waiter continues it, and stops it again as soon as it has released
//! the lock.

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How often to check whether the lock is free.
const POLL: Duration = Duration::from_millis(2);
/// How often to check whether its holder is stopped.
const LOOK: Duration = Duration::from_millis(20);

/// The process that holds a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockHolder {
    pid: Pid,
    state: Option<char>,
}

impl LockHolder {
    /// The process that has locked this file, as far as `/proc/locks` says.
    #[must_use]
    pub fn of(file: &File) -> Option<Self> {
        let meta = file.metadata().ok()?;
        let device = meta.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let place = format!("{major:02x}:{minor:02x}:{}", meta.ino());
        let locks = fs::read_to_string("/proc/locks").ok()?;
        let pid = locks.lines().find_map(|line| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            // `1: FLOCK ADVISORY WRITE 1234 00:1b:5678 0 EOF`; a waiter has `->` before FLOCK.
            let ["FLOCK", _, _, pid, at, ..] = words.get(1..)? else { return None };
            (*at == place).then(|| pid.parse().ok()).flatten()
        })?;
        let pid = Pid::from_raw(pid)?;
        Some(Self { pid, state: state_of(pid.as_raw_pid()) })
    }

    /// Continues it if a signal has stopped it, and returns what stops it again.
    fn wake(self, file: &File) -> Option<OwnedFd> {
        if self.state != Some('T') {
            return None;
        }
        let process = pidfd_open(self.pid, PidfdFlags::empty()).ok()?;
        // Only now is it certain whose number that is.
        (Self::of(file) == Some(self)).then_some(())?;
        pidfd_send_signal(&process, Signal::CONT).ok()?;
        Some(process)
    }
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = fs::read_to_string(format!("/proc/{}/comm", self.pid.as_raw_pid())).unwrap_or_default();
        write!(f, "process {} ({})", self.pid.as_raw_pid(), name.trim_end())?;
        match self.state {
            Some('t') => f.write_str(", which a debugger has stopped"),
            Some('T') => f.write_str(", which a signal has stopped"),
            _ => Ok(()),
        }
    }
}

/// The state of a process in `/proc`, such as `T` for one that a signal has stopped.
pub(crate) fn state_of(pid: impl fmt::Display) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Holds the lock until the file is closed. Returns false if another process still has it after
/// `limit`: [`LockHolder::of`] says which.
///
/// # Errors
/// The system's.
pub fn lock_within(file: &File, limit: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + limit;
    let mut next_look = Instant::now() + LOOK;
    let mut woken = Vec::new();
    let locked = loop {
        match file.try_lock() {
            Ok(()) => break Ok(true),
            Err(TryLockError::Error(error)) => break Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => break Ok(false),
            Err(TryLockError::WouldBlock) => thread::sleep(POLL),
        }
        if Instant::now() >= next_look {
            woken.extend(LockHolder::of(file).and_then(|holder| holder.wake(file)));
            next_look = Instant::now() + LOOK;
        }
    };
    for process in woken {
        // It may have ended.
        let _ = pidfd_send_signal(process, Signal::STOP);
    }
    locked
}
