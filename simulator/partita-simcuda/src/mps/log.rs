//! The logs, line by line in the form of the real ones:
//! `[2026-11-21 01:43:39.056 Server  1201] Client {PID: 1199, Context ID: 1} connected`.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// `control.log` and `server.log`.
#[derive(Debug)]
pub struct Logs {
    control: File,
    server: File,
    /// Whether the control log goes to standard error too: a daemon in the foreground.
    echo: bool,
}

impl Logs {
    /// Opens both logs in `dir`, which is created if it does not exist.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn open(dir: &Path, echo: bool) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let open = |name| OpenOptions::new().create(true).append(true).open(dir.join(name));
        Ok(Self { control: open("control.log")?, server: open("server.log")?, echo })
    }

    /// A line of the daemon.
    pub fn control(&mut self, text: impl Display) {
        let line = line("Control", std::process::id(), &text);
        // A full disk must not end the service.
        let _ = self.control.write_all(line.as_bytes());
        if self.echo {
            let _ = io::stderr().write_all(line.as_bytes());
        }
    }

    /// A line of the server with this process id.
    pub fn server(&mut self, pid: u32, text: impl Display) {
        let _ = self.server.write_all(line("Server", pid, &text).as_bytes());
    }
}

fn line(who: &str, pid: u32, text: &dyn Display) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("[{} {who} {pid:>5}] {text}\n", stamp(now.as_secs(), now.subsec_millis()))
}

/// Local time of a moment, in seconds and milliseconds since 1970.
fn stamp(seconds: u64, millis: u32) -> String {
    let seconds = seconds as libc::time_t;
    // SAFETY: all zeroes is a valid tm.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to locals.
    unsafe { libc::localtime_r(&seconds, &mut tm) };
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{millis:03}",
        tm.tm_year + 1900,
        tm.tm_mon + 1,
        tm.tm_mday,
        tm.tm_hour,
        tm.tm_min,
        tm.tm_sec
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_real_form() {
        let line = line("Server", 1201, &"text");
        let (head, tail) = line.split_at(line.find(" Server").unwrap());
        assert_eq!(tail, " Server  1201] text\n");
        // `[YYYY-MM-DD hh:mm:ss.mmm`
        let shape: String = head.chars().map(|c| if c.is_ascii_digit() { '9' } else { c }).collect();
        assert_eq!(shape, "[9999-99-99 99:99:99.999");
    }
}
