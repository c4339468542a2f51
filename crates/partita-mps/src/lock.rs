//! Wait for a flock(2) lock of a file or a directory.

use std::fs::{File, TryLockError};
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// How often to check whether the lock is free.
const POLL: Duration = Duration::from_millis(2);

/// Holds the lock until the file is closed. Returns false if another process still has it after
/// `limit`.
///
/// # Errors
/// The system's.
pub fn lock_within(file: &File, limit: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + limit;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return Ok(false),
            Err(TryLockError::WouldBlock) => thread::sleep(POLL),
        }
    }
}
