//! NVML's last answer, for a program that is about to start.
//!
//! Starting NVML takes two thirds of the time that `partita run` adds to a program's start: 22 to
//! 24 of 33 ms (H200, driver 580.159.04, 2026-11-22; `nvidia-smi -L` takes as long). So the answer
//! is cached, with the kernel's facts at that time, and used again as long as the facts are the
//! same and the answer is [not old](AGE_MAX). The memory in use is not cached: it decides nothing
//! and changes all the time.
//!
//! Nothing is enforced by it. The answer chooses a GPU; the hook compares the UUIDs of the GPUs
//! that the driver gives a program with those in its tenant's limits, and refuses any other.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use partita_core::kept;
use rustix::time::ClockId;
use serde::{Deserialize, Serialize};

use super::fingerprint::Fingerprint;
use super::{Inventory, Reading};
use crate::cache;
use crate::error::Error;
use crate::files::{self, Durable};

/// An older answer is not used. The kernel does not report the compute mode, nor that MIG is on
/// while there are no instances.
pub const AGE_MAX: Duration = Duration::from_secs(5 * 60);
/// Files that are so much older than a new one go. They are those of other starts of the machine,
/// and of environments not met again.
const REMAINS_MAX: Duration = Duration::from_secs(60 * 60);
const MAGIC: &str = "partita-devices";
const VERSION: u32 = 1;
/// The prefix of the files' names.
const PREFIX: &str = "devices-";

/// An answer and its fingerprint.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    magic: String,
    version: u32,
    /// When NVML was asked, in milliseconds since the machine was started.
    asked_ms: u64,
    fingerprint: Fingerprint,
    inventory: Inventory,
}

impl Record {
    /// The cached form of an answer. `None` if it does not match the kernel's facts: then they do
    /// not mean the same GPUs.
    fn of(fingerprint: Fingerprint, asked: Duration, inventory: &Inventory) -> Option<Self> {
        let mut inventory = inventory.clone();
        for gpu in &mut inventory.gpus {
            gpu.memory_used_bytes = 0;
            gpu.utilization_percent = None;
            gpu.memory_utilization_percent = None;
            gpu.mig_instances.iter_mut().for_each(|instance| instance.memory_used_bytes = 0);
        }
        let asked_ms = u64::try_from(asked.as_millis()).ok()?;
        fingerprint.fits(&inventory).then(|| Self {
            magic: MAGIC.to_owned(),
            version: VERSION,
            asked_ms,
            fingerprint,
            inventory,
        })
    }

    /// Whether NVML would still give this answer, as far as the facts show.
    fn holds(&self, fingerprint: &Fingerprint, now: Duration) -> bool {
        let age = now.checked_sub(Duration::from_millis(self.asked_ms));
        self.magic == MAGIC
            && self.version == VERSION
            && age.is_some_and(|age| age <= AGE_MAX)
            && self.fingerprint == *fingerprint
            && fingerprint.fits(&self.inventory)
    }
}

/// The time since the machine was started, including sleep.
pub fn now() -> Duration {
    let time = rustix::time::clock_gettime(ClockId::Boottime);
    // Both are positive.
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Where answers are kept, and of which machine.
#[derive(Debug, Clone)]
pub struct Recent {
    dir: PathBuf,
    root: PathBuf,
    loader_path: Option<OsString>,
}

impl Recent {
    /// Those of this machine as this process sees it, beside the calibrations.
    pub fn here() -> Self {
        let dir = cache::dir();
        Self { dir, root: "/".into(), loader_path: std::env::var_os("LD_LIBRARY_PATH") }
    }

    /// Another machine's: files as the kernel has them below `root`.
    #[cfg(test)]
    pub fn of(dir: &Path, root: &Path) -> Self {
        Self { dir: dir.to_owned(), root: root.to_owned(), loader_path: None }
    }

    /// NVML's last answer, if it would be the same now. Memory in use is 0 in it.
    pub fn inventory(&self, now: Duration) -> Option<Inventory> {
        let fingerprint = self.fingerprint()?;
        let bytes = files::read_trusted(&self.path(&fingerprint), kept::FILE_BYTES_MAX).ok()?;
        let record: Record = serde_json::from_slice(&bytes).ok()?;
        record.holds(&fingerprint, now).then_some(record.inventory)
    }

    /// Queries NVML, and caches the answer in place of the previous one.
    ///
    /// # Errors
    /// Those of `ask`.
    pub fn ask(&self, now: Duration, ask: impl FnOnce() -> Result<Reading, Error>) -> Result<Reading, Error> {
        let before = self.fingerprint();
        let reading = ask();
        if let Some(before) = before {
            let path = self.path(&before);
            let record = match &reading {
                // A change during the query may or may not be in the answer.
                Ok(Reading::Driver(inventory)) if self.fingerprint().as_ref() == Some(&before) => {
                    Record::of(before, now, inventory)
                }
                _ => None,
            };
            // Where nothing can be written the next command asks again, and nothing else.
            let _ = match record {
                Some(record) => self.keep(&path, &record),
                None => fs::remove_file(&path),
            };
        }
        reading
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        Fingerprint::read(&self.root, self.loader_path.clone())
    }

    /// Machines and environments that share the directory have files of their own.
    fn path(&self, fingerprint: &Fingerprint) -> PathBuf {
        self.dir.join(format!("{PREFIX}{}.json", fingerprint.short()))
    }

    fn keep(&self, path: &Path, record: &Record) -> io::Result<()> {
        cache::make_dir(&self.dir)?;
        files::replace(path, &serde_json::to_vec(record)?, 0o600, Durable::No)?;
        self.sweep(path)
    }

    /// Removes files that are not used any more. Files are compared with each other, as they may
    /// come from another machine with another clock.
    fn sweep(&self, fresh: &Path) -> io::Result<()> {
        let now = fresh.metadata()?.modified()?;
        for entry in fs::read_dir(&self.dir)?.flatten() {
            let is_old = || {
                let age = now.duration_since(entry.metadata()?.modified()?);
                io::Result::Ok(age.is_ok_and(|age| age > REMAINS_MAX))
            };
            if entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) && is_old()? {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
