//! The journal of a change: the instances from before it.
//!
//! It is on the disk before the first step and is removed after the last. So whoever finds one
//! knows that a change was interrupted. What is done already is not written: NVML knows it.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use partita_core::mig::{Layout, Placed, Slot};
use serde::{Deserialize, Serialize};

use crate::files::{self, Durable};

/// Far more than a GPU's instances take.
const BYTES_MAX: u64 = 64 << 10;

/// The journal of one GPU.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    boot: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Content {
    /// The boot of the machine: instances vanish with it.
    boot: String,
    before: Vec<Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    profile: u32,
    start: u32,
    size: u32,
    computes: Vec<u32>,
}

impl Journal {
    /// The journal in the directory of locks.
    pub fn of(dir: &std::path::Path, uuid: &str) -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self { path: dir.join(format!(".mig-{uuid}.json")), boot: boot.trim().to_owned() }
    }

    /// The instances from before a change that was interrupted; `None` if none was.
    pub fn before(&self) -> Result<Option<Layout>, String> {
        if fs::symlink_metadata(&self.path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Ok(None);
        }
        let shown = self.path.display();
        let bytes = files::read_trusted(&self.path, BYTES_MAX)
            .map_err(|reason| format!("{shown}: {reason}; remove it"))?;
        let content: Content = serde_json::from_slice(&bytes)
            .map_err(|error| format!("{shown} is damaged ({error}); remove it to plan from what is there"))?;
        if content.boot != self.boot {
            return Ok(None);
        }
        let placed = |entry: Entry| {
            let slot = Slot { start: entry.start, size: entry.size };
            Placed { slot, profile: entry.profile, computes: entry.computes }
        };
        Ok(Some(content.before.into_iter().map(placed).collect()))
    }

    /// Begins a change, durably.
    pub fn begin(&self, before: &Layout) -> Result<(), String> {
        let entry = |placed: &Placed| Entry {
            profile: placed.profile,
            start: placed.slot.start,
            size: placed.slot.size,
            computes: placed.computes.clone(),
        };
        let content = Content { boot: self.boot.clone(), before: before.iter().map(entry).collect() };
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
        let journal = Journal::of(dir.path(), "GPU-1");
        assert_eq!(journal.before(), Ok(None));
        let placed = Placed { slot: Slot { start: 4, size: 4 }, profile: 9, computes: vec![1, 2] };
        journal.begin(&vec![placed.clone()]).unwrap();
        assert_eq!(journal.before(), Ok(Some(vec![placed])));
        let later = Journal { boot: "later".to_owned(), path: journal.path.clone() };
        assert_eq!(later.before(), Ok(None));
        fs::write(&journal.path, "{").unwrap();
        let error = journal.before().unwrap_err();
        assert!(error.contains("GPU-1.json is damaged") && error.contains("remove it"), "{error}");
        journal.end().unwrap();
        journal.end().unwrap();
        assert_eq!(journal.before(), Ok(None));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
