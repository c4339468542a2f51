//! One line on standard error, for the tenant's user.
//!
//! The process is the tenant's: the hook never writes to standard output, and standard error gets a
//! line only when the tenant's program cannot run.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

/// Writes `partita: …` and a line end to standard error, in one system call.
pub fn line(message: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 1024], used: 0 };
    // A message that is too long is cut, which Line never reports as an error.
    let _ = write!(line, "partita: {message}");
    line.bytes[line.used] = b'\n';
    // SAFETY: the buffer holds used + 1 initialised bytes. A failed write cannot be reported
    // anywhere.
    unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.used + 1) };
}

/// A line that is said once in a process, a child by `fork` included.
pub struct Once(AtomicBool);

impl Once {
    /// Not said yet.
    pub const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Whether it has not been said.
    pub fn is_due(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }

    /// Says it, if it has not been said.
    pub fn say(&self, message: fmt::Arguments<'_>) {
        if !self.0.swap(true, Ordering::Relaxed) {
            line(message);
        }
    }
}

/// As [`line`], but once in a process for each place in the code. The arguments are evaluated only
/// then.
macro_rules! once {
    ($($message:tt)+) => {{
        static LINE: $crate::sys::report::Once = $crate::sys::report::Once::new();
        if LINE.is_due() {
            LINE.say(::core::format_args!($($message)+));
        }
    }};
}
pub(crate) use once;

/// The name of the file that this process runs, for lines that a user must be able to place: other
/// programs of the tenant write to the same standard error.
pub fn program() -> Program {
    let mut path = [0; 512];
    // SAFETY: a valid name, and room for as many bytes as said.
    let read = unsafe { libc::readlink(c"/proc/self/exe".as_ptr(), path.as_mut_ptr().cast(), path.len()) };
    Program { path, used: usize::try_from(read).unwrap_or(0) }
}

/// See [`program`].
pub struct Program {
    path: [u8; 512],
    used: usize,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = &self.path[..self.used];
        let file = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        match core::str::from_utf8(file) {
            Ok(name) if !name.is_empty() => f.write_str(name),
            _ => f.write_str("this program"),
        }
    }
}

struct Line {
    bytes: [u8; 1024],
    used: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // The last byte is kept for the line end.
        let room = self.bytes.len() - 1 - self.used;
        let taken = text.len().min(room);
        self.bytes[self.used..self.used + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.used += taken;
        Ok(())
    }
}
