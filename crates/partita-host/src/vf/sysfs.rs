//! The kernel's files, read and written.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A directory in place of `/` for `/sys` and `/dev`; for tests.
const ENV_ROOT: &str = "PARTITA_SYSFS";

/// Access to the kernel's files. Paths begin without `/`, as `sys/bus/pci/devices`.
pub(super) trait Sysfs {
    /// The text of a file, without white space at its ends.
    fn read(&self, path: &str) -> io::Result<String>;
    /// Writes a value with one call, as the kernel demands.
    fn write(&self, path: &str, value: &str) -> io::Result<()>;
    /// The names in a directory, in ascending order.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;
    /// The last part of a link's target.
    fn link(&self, path: &str) -> io::Result<String>;
    /// The directory in place of `/`.
    fn root(&self) -> &Path;
}

/// The files of this machine.
pub(super) struct System {
    root: PathBuf,
    is_replaced: bool,
}

impl System {
    pub fn here() -> Self {
        let root = std::env::var_os(ENV_ROOT).map(PathBuf::from);
        Self { is_replaced: root.is_some(), root: root.unwrap_or_else(|| "/".into()) }
    }

    /// Whether this process may write: root, or a test with files of its own.
    pub fn may_write(&self) -> bool {
        self.is_replaced || rustix::process::geteuid().is_root()
    }
}

impl Sysfs for System {
    fn read(&self, path: &str) -> io::Result<String> {
        read_in(&self.root, path)
    }

    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).open(self.root.join(path))?;
        match file.write(value.as_bytes())? {
            written if written == value.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        list_in(&self.root, path)
    }

    fn link(&self, path: &str) -> io::Result<String> {
        link_in(&self.root, path)
    }

    fn root(&self) -> &Path {
        &self.root
    }
}

pub(super) fn read_in(root: &Path, path: &str) -> io::Result<String> {
    Ok(fs::read_to_string(root.join(path))?.trim().to_owned())
}

pub(super) fn list_in(root: &Path, path: &str) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join(path))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

pub(super) fn link_in(root: &Path, path: &str) -> io::Result<String> {
    let target = fs::read_link(root.join(path))?;
    let name = target.file_name().ok_or(io::ErrorKind::InvalidData)?;
    Ok(name.to_string_lossy().into_owned())
}
