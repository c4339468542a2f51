//! The terminal: whole frames instead of lines that scroll, and keys without Enter, until it is
//! dropped.

use std::fs::File;
use std::io::{self, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios};

use super::frame::{Line, Size, Style};

/// Another screen, and no cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
/// The reverse, without styles.
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";
/// The size of a terminal that does not say its own.
const DEFAULT: (u16, u16) = (80, 24);

/// The terminal with its modes changed.
#[derive(Debug)]
pub struct Screen {
    tty: File,
    before: Termios,
    colours: bool,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// Those of the system.
    pub fn take(colours: bool) -> io::Result<Self> {
        let tty = File::options().read(true).write(true).open("/dev/tty")?;
        let before = rustix::termios::tcgetattr(&tty)?;
        let mut screen = Self { tty, before, colours };
        screen.enter()?;
        Ok(screen)
    }

    /// Changes the modes. Signals of the terminal stay.
    fn enter(&mut self) -> io::Result<()> {
        let mut modes = self.before.clone();
        modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        rustix::termios::tcsetattr(&self.tty, OptionalActions::Now, &modes)?;
        self.tty.write_all(ENTER.as_bytes())
    }

    /// Restores the terminal. Its errors come too late for anybody.
    fn leave(&mut self) {
        let _ = self.tty.write_all(LEAVE.as_bytes());
        let _ = rustix::termios::tcsetattr(&self.tty, OptionalActions::Now, &self.before);
    }

    /// Stops this process's job, as Ctrl-Z does for others, with the terminal as it was before;
    /// takes the terminal again when it goes on.
    ///
    /// # Errors
    /// Those of the system.
    pub fn stop(&mut self) -> io::Result<()> {
        self.leave();
        rustix::process::kill_current_process_group(rustix::process::Signal::STOP)?;
        // The shell may have changed them.
        self.before = rustix::termios::tcgetattr(&self.tty)?;
        self.enter()
    }

    /// The size.
    pub fn size(&self) -> Size {
        let size =
            rustix::termios::tcgetwinsize(&self.tty).map_or(DEFAULT, |size| (size.ws_col, size.ws_row));
        let or = |number: u16, default: u16| usize::from(if number == 0 { default } else { number });
        Size { columns: or(size.0, DEFAULT.0), rows: Some(or(size.1, DEFAULT.1)) }
    }

    /// Shows a frame in place of the one before.
    ///
    /// # Errors
    /// Those of the terminal.
    pub fn show(&mut self, lines: &[Line]) -> io::Result<()> {
        self.tty.write_all(painted(lines, self.colours).as_bytes())
    }

    /// The bytes of keys, after `limit` at most; none if a signal came.
    ///
    /// # Errors
    /// The terminal has gone.
    pub fn read(&mut self, limit: Duration) -> io::Result<Vec<u8>> {
        let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
        let mut polled = [PollFd::new(&self.tty, PollFlags::IN)];
        match poll(&mut polled, Some(&limit)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut bytes = vec![0; 256];
        match rustix::io::read(&self.tty, &mut bytes) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                bytes.truncate(count);
                Ok(bytes)
            }
            Err(rustix::io::Errno::INTR) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A frame for a terminal: each line is cleared to its end, and so is what is below. One write, so
/// that no half of a frame is seen.
fn painted(lines: &[Line], colours: bool) -> String {
    let mut text = "\x1b[H".to_owned();
    for (at, line) in lines.iter().enumerate() {
        if at > 0 {
            text.push_str("\r\n");
        }
        for (style, part) in line.iter().filter(|(_, part)| !part.is_empty()) {
            let code = match (style, colours) {
                (Style::Plain, _) => "",
                (Style::Bold, _) => "1",
                (Style::Dim, true) => "2",
                (Style::Reverse, _) => "7",
                (Style::Bar, true) => "32",
                (Style::Alarm, true) => "1;31",
                (Style::Dim | Style::Bar, false) => "",
                (Style::Alarm, false) => "1",
            };
            if code.is_empty() {
                text.push_str(part);
            } else {
                text.push_str(&format!("\x1b[{code}m{part}\x1b[0m"));
            }
        }
        text.push_str("\x1b[K");
    }
    text.push_str("\x1b[J");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_colours_no_sequence_has_one() {
        let styles = [Style::Plain, Style::Bold, Style::Dim, Style::Reverse, Style::Bar, Style::Alarm];
        let line: Line = styles.map(|style| (style, "x".to_owned())).to_vec();
        let text = painted(&[line.clone(), line], false);
        let codes: Vec<&str> =
            text.split("\x1b[").skip(1).filter_map(|part| Some(part.split_once('m')?.0)).collect();
        assert_eq!(codes, ["1", "0", "7", "0", "1", "0", "1", "0", "7", "0", "1", "0"], "{text:?}");
        assert!(text.starts_with("\x1b[H") && text.ends_with("\x1b[K\x1b[J"), "{text:?}");
    }
}
