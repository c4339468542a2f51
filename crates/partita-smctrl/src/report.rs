//! Lines on standard error, for errors of `void` functions.

use alloc::format;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use partita_core::kept::fnv1a;

/// The last line's hash, so that a program that fails in a loop prints it once.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Writes one line, unless it equals the last one or `LIBSMCTRL_QUIET` is set.
pub fn line(text: fmt::Arguments<'_>) {
    let line = format!("libsmctrl: {text}\n");
    if LAST.swap(fnv1a(line.as_bytes()), Ordering::Relaxed) == fnv1a(line.as_bytes())
        || partita_driver::files::variable(c"LIBSMCTRL_QUIET").is_some()
    {
        return;
    }
    write(line.as_bytes());
}

/// Writes bytes to standard error, if it is open.
pub fn write(bytes: &[u8]) {
    // SAFETY: the bytes are valid for their length.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
}
