//! Writing to stdout.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::Failure;

/// Writes text to stdout. A reader that has gone (`partita ps | head -0`) is not an error: the
/// command finishes its work and exits as if the text had been read.
pub fn print(text: &str) -> Result<(), Failure> {
    match print_on(text) {
        Err(Failure::OutputClosed) => Ok(()),
        told => told,
    }
}

/// As [`print()`], for endless output: it ends with its reader.
pub fn print_on(text: &str) -> Result<(), Failure> {
    print_bytes(text.as_bytes())
}

/// As [`print_on`], for another program's output as it is.
pub fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::Told(format!("stdout: {error}")),
    })
}

/// Pauses before [`print_on`] prints more. Notices a reader that goes away meanwhile.
pub fn pause(period: Duration) -> Result<(), Failure> {
    let end = Instant::now() + period;
    let stdout = io::stdout();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        // No requested events: poll reports a closed pipe in any case.
        let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
        let told = Timespec::try_from(left).map(|left| poll(&mut polled, Some(&left)));
        let events = polled[0].revents();
        if events.intersects(PollFlags::ERR | PollFlags::HUP) {
            return Err(Failure::OutputClosed);
        }
        match told {
            // A signal arrived, perhaps another one: wait for the rest of the time.
            Ok(Err(rustix::io::Errno::INTR)) if !left.is_zero() => {}
            Ok(Ok(_)) if events.is_empty() => return Ok(()),
            // This descriptor cannot be polled.
            _ => {
                std::thread::sleep(left);
                return Ok(());
            }
        }
    }
}

/// Writes a value as JSON to stdout, as [`print()`].
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let json = serde_json::to_string_pretty(value).map_err(|error| Failure::Told(error.to_string()))?;
    print(&format!("{json}\n"))
}

/// Writes a value as a line of JSON to stdout, as [`print_on`].
pub fn print_json_on(value: &impl Serialize) -> Result<(), Failure> {
    let json = serde_json::to_string(value).map_err(|error| Failure::Told(error.to_string()))?;
    print_on(&format!("{json}\n"))
}
