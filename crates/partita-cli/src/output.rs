//! Writing to stdout.

use std::io::{self, Write};

use serde::Serialize;

use crate::fail::Failure;

/// Writes text to stdout. A reader that has gone (`partita ps | head -1`) is no error.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::Told(format!("stdout: {error}")),
    })
}

/// Writes a value as JSON to stdout.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let json = serde_json::to_string_pretty(value).map_err(|error| Failure::Told(error.to_string()))?;
    print(&format!("{json}\n"))
}
