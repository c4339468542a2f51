//! Files that some write while others read them.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde::de::DeserializeOwned;

/// Whether the data must be on the disk when the call returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durable {
    /// It must be.
    Yes,
    /// It may be lost with the machine.
    No,
}

/// Writes a file so that a reader sees either the old or the new content. Two processes can do so
/// at the same time.
///
/// # Errors
/// Those of the system; then the old content is unchanged.
pub fn replace(path: &Path, bytes: &[u8], mode: u32, durable: Durable) -> io::Result<()> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(format!(".new-{}", std::process::id()));
    let fresh = PathBuf::from(fresh);
    // A file of a killed process with the same number.
    let _ = fs::remove_file(&fresh);
    let write = || {
        let mut file = OpenOptions::new().create_new(true).write(true).mode(mode).open(&fresh)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(bytes)?;
        if durable == Durable::Yes {
            file.sync_all()?;
        }
        fs::rename(&fresh, path)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&fresh);
    })
}

/// Opens a regular file to read. Another user may have put anything there: a pipe would block
/// forever, a link would lead elsewhere.
///
/// # Errors
/// Those of the system; [`io::ErrorKind::InvalidInput`] for anything else.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"))
}

/// Reads a regular file of limited length that only the current user or root could have written.
///
/// # Errors
/// Why it is not read.
pub(crate) fn read_trusted(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let file = open_regular(path).map_err(|error| error.to_string())?;
    // Of the file that is open: another may have its name by now.
    let meta = file.metadata().map_err(|error| error.to_string())?;
    let user = rustix::process::geteuid().as_raw();
    if (meta.uid() != user && meta.uid() != 0) || meta.mode() & 0o022 != 0 {
        return Err("others could have written it".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > bytes_max {
        return Err("it is too long".to_owned());
    }
    Ok(bytes)
}

/// Reads a value from a regular file of JSON of so many bytes at most.
///
/// # Errors
/// As [`open_regular`]; [`io::ErrorKind::InvalidData`] if it is longer or something else.
pub fn read_json<T: DeserializeOwned>(path: &Path, bytes_max: u64) -> io::Result<T> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("it is longer than {bytes_max} bytes"),
        ));
    }
    Ok(serde_json::from_slice(&bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_replaced_is_whole_or_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        for (bytes, durable) in [("[1]", Durable::Yes), ("[2, 3]", Durable::No)] {
            replace(&path, bytes.as_bytes(), 0o640, durable).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), bytes);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        }
        replace(&dir.path().join("none/b"), b"", 0o600, Durable::No).unwrap_err();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn only_regular_files_of_their_length_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("a"), dir.path().join("link"));
        fs::write(&path, "[1, 2]").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(read_json::<Vec<u8>>(&path, 6).unwrap(), [1, 2]);
        assert_eq!(read_json::<Vec<u8>>(&path, 5).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(read_json::<u8>(&path, 6).is_err() && read_json::<Vec<u8>>(&link, 6).is_err());
        for (mode, trusted) in [(0o600, true), (0o644, true), (0o664, false), (0o646, false)] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(read_trusted(&path, 6).is_ok(), trusted, "{mode:o}");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read_trusted(&path, 6).unwrap(), b"[1, 2]");
        assert!(read_trusted(&path, 5).is_err() && read_trusted(&link, 6).is_err());
        assert_eq!(open_regular(dir.path()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(open_regular(&dir.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
