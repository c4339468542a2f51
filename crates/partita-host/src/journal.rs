//! The journal of a change of a device: what it had before.
//!
//! It is on the disk before the first step and is removed after the last. A journal without a
//! command that runs means that a change was interrupted. What is done already is not written: the
//! device knows it.

use std::fs::{self, File};
use std::io;
use std::marker::PhantomData;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::files::{self, Durable};

/// Far more than what a device has takes.
const BYTES_MAX: u64 = 64 << 10;

/// The journal of one device.
#[derive(Debug)]
pub(crate) struct Journal<T> {
    path: PathBuf,
    boot: String,
    before: PhantomData<T>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Content<T> {
    /// The boot of the machine: what such changes make vanishes with it.
    boot: String,
    before: T,
}

impl<T: Serialize + DeserializeOwned> Journal<T> {
    /// The journal at a path.
    pub fn at(path: PathBuf) -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self { path, boot: boot.trim().to_owned(), before: PhantomData }
    }

    /// What the device had before a change that was interrupted; `None` if none was.
    pub fn before(&self) -> Result<Option<T>, String> {
        if fs::symlink_metadata(&self.path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Ok(None);
        }
        let shown = self.path.display();
        let bytes = files::read_trusted(&self.path, BYTES_MAX)
            .map_err(|reason| format!("{shown}: {reason}; remove it"))?;
        let content: Content<T> = serde_json::from_slice(&bytes)
            .map_err(|error| format!("{shown} is damaged ({error}); remove it to plan from what is there"))?;
        Ok(Some(content.before).filter(|_| content.boot == self.boot))
    }

    /// Begins a change, durably.
    pub fn begin(&self, before: T) -> Result<(), String> {
        let content = Content { boot: self.boot.clone(), before };
        let bytes = serde_json::to_vec(&content).map_err(|error| error.to_string())?;
        files::replace(&self.path, &bytes, 0o600, Durable::Yes)
            .and_then(|()| self.sync_dir())
            .map_err(|error| format!("{}: {error}; nothing was changed", self.path.display()))
    }

    /// Ends a change.
    pub fn end(&self) -> Result<(), String> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(format!("{}: {error}; remove it", self.path.display()))
            }
            _ => Ok(()),
        }
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_read_as_written_until_the_next_boot() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::at(dir.path().join("a.json"));
        assert_eq!(journal.before(), Ok(None));
        journal.begin(vec![1, 2]).unwrap();
        assert_eq!(journal.before(), Ok(Some(vec![1, 2])));
        let later =
            Journal::<Vec<u8>> { boot: "later".to_owned(), path: journal.path.clone(), before: PhantomData };
        assert_eq!(later.before(), Ok(None));
        fs::write(&journal.path, "{").unwrap();
        let error = journal.before().unwrap_err();
        assert!(error.contains("a.json is damaged") && error.contains("remove it"), "{error}");
        journal.end().unwrap();
        journal.end().unwrap();
        assert_eq!(journal.before(), Ok(None));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
