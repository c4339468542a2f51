//! Files of services, perhaps of another user: root reads those of all users, and their content may
//! be anything.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Opens a regular file to read. A pipe would block for ever, a device would never end.
///
/// # Errors
/// The system's; [`io::ErrorKind::InvalidInput`] for other kinds of file.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
}

/// The text of a regular file, up to this many bytes.
///
/// # Errors
/// As [`open_regular`]; [`io::ErrorKind::InvalidData`] if it is not text.
pub(crate) fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut text = String::new();
    open_regular(path)?.take(bytes_max).read_to_string(&mut text)?;
    Ok(text)
}
