//! Files of services, which may be another user's: root looks at everybody's, and what is there may
//! be anything.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Opens a regular file to read. A pipe would keep us waiting for ever, a device would never end.
///
/// # Errors
/// The system's; [`io::ErrorKind::InvalidInput`] for anything else.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"))
}

/// The text of a regular file, up to so many bytes of it.
///
/// # Errors
/// As [`open_regular`]; [`io::ErrorKind::InvalidData`] if it is no text.
pub(crate) fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut text = String::new();
    open_regular(path)?.take(bytes_max).read_to_string(&mut text)?;
    Ok(text)
}
