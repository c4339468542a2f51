//! The records of detached runs, which outlive their tenants.
//!
//! ```text
//! ~/.local/state/partita/detached/   the user's alone
//!   train/                           the last detached run of this name
//!     run.json                       the program, its process, and how it ended
//!     applied.json                   what `partita apply` started it from
//!     waits.json                     what a `partita apply` starts it from that waits for room
//!     log, log.1                     its output
//! ```

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::log::{Log, LogReader};
use crate::error::Error;
use crate::files::{Durable, read_json, replace};
use crate::process::ProcessId;
use crate::registry::{Registry, acting_user, check_name};
use crate::{state, system};

/// How many ended runs keep their records; older ones go when another run starts.
pub const ENDED_MAX: usize = 64;
const VERSION: u32 = 1;
const RUN: &str = "run.json";
const APPLIED: &str = "applied.json";
const WAITS: &str = "waits.json";
/// A long command line fits.
const RECORD_BYTES_MAX: u64 = 4 << 20;

/// A detached run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    version: u32,
    /// Its tenant's name.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The process that runs it and writes its log.
    pub run: ProcessId,
    /// When it started, in seconds since 1970.
    pub started_unix_s: u64,
    /// How it ended; `None` while it runs.
    pub ended: Option<Ended>,
}

/// The end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The exit code of `partita run`.
    pub exit_code: u8,
    /// When, in seconds since 1970.
    pub unix_s: u64,
}

/// The records of the current user's detached runs.
#[derive(Debug, Clone)]
pub struct Records {
    dir: PathBuf,
}

/// The record of a run that this process attends.
#[derive(Debug)]
pub(super) struct OwnRecord {
    dir: PathBuf,
    record: Record,
}

impl Records {
    /// Those of the current user. The directory may not exist.
    ///
    /// # Errors
    /// As [`state::dir`].
    pub fn open() -> Result<Self, Error> {
        Ok(Self { dir: state::dir()?.join("detached") })
    }

    /// Makes their directory.
    pub(super) fn create(&self) -> Result<(), Error> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        made.map_err(|error| Error::Refused {
            what: self.dir.display().to_string(),
            reason: format!("{error}; name a directory that you can write in PARTITA_STATE_DIR"),
        })
    }

    /// Begins the record of a run of this process, and its log. Those of the last run of this name
    /// go, and those of the oldest runs.
    pub(super) fn begin(&self, name: &str, command: &[String]) -> Result<(OwnRecord, Log), Error> {
        check_name(name)?;
        self.create()?;
        self.remove_oldest();
        let dir = self.dir.join(name);
        let failed = || Error::io(dir.display().to_string());
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed()(error)),
            _ => {}
        }
        DirBuilder::new().mode(0o700).create(&dir).map_err(failed())?;
        let record = Record {
            version: VERSION,
            name: name.to_owned(),
            command: command.to_vec(),
            run: ProcessId::own().map_err(Error::io("/proc/self"))?,
            started_unix_s: now_unix_s(),
            ended: None,
        };
        let log = Log::create(&dir).map_err(failed())?;
        let own = OwnRecord { dir, record };
        own.write().map_err(Error::io(own.dir.display().to_string()))?;
        Ok((own, log))
    }

    fn remove_oldest(&self) {
        let mut ended: Vec<Record> = self.all().into_iter().filter(|record| !record.lasts()).collect();
        ended.sort_by_key(|record| std::cmp::Reverse(record.started_unix_s));
        for record in ended.iter().skip(ENDED_MAX - 1) {
            // A record that stays is removed by the next run.
            let _ = fs::remove_dir_all(self.dir.join(&record.name));
        }
    }

    /// Every record that can be read, by name.
    pub fn all(&self) -> Vec<Record> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names.iter().filter_map(|name| self.read::<Record>(name, RUN).ok()).collect()
    }

    /// The record of the last detached run of this name.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is none; [`Error::Name`]; [`Error::Io`].
    pub fn get(&self, name: &str) -> Result<Record, Error> {
        check_name(name)?;
        self.read(name, RUN).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => of_another_user(name).unwrap_or_else(|| Error::Refused {
                what: name.to_owned(),
                reason:
                    "you have no detached run of this name; `partita run --detach --name NAME` starts one"
                        .to_owned(),
            }),
            _ => Error::io(self.dir.join(name).join(RUN).display().to_string())(error),
        })
    }

    /// The log of the last detached run of this name.
    ///
    /// # Errors
    /// As [`Records::get`].
    pub fn log(&self, name: &str) -> Result<LogReader, Error> {
        self.get(name)?;
        let dir = self.dir.join(name);
        LogReader::open(&dir).map_err(Error::io(dir.display().to_string()))
    }

    /// What `partita apply` noted for the last detached run of this name; `None` if it did not
    /// start the run.
    pub fn applied<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        self.read(name, APPLIED).ok()
    }

    /// Notes from what `partita apply` has started or changed a run.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn note_applied<T: Serialize>(&self, name: &str, applied: &T) -> Result<(), Error> {
        check_name(name)?;
        let path = self.dir.join(name).join(APPLIED);
        write(&path, applied).map_err(Error::io(path.display().to_string()))
    }

    /// What a living `partita apply` noted for a run of this name that waits for room; `None` if
    /// none starts it.
    pub fn waiting<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let (apply, applied) = self.read::<(ProcessId, T)>(name, WAITS).ok()?;
        apply.lives().then_some(applied)
    }

    /// Notes from what this process starts a run that waits for room. The record that the run
    /// begins takes the place of this note.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Refused`] if the directory cannot be made.
    pub fn note_waiting<T: Serialize>(&self, name: &str, applied: &T) -> Result<(), Error> {
        check_name(name)?;
        self.create()?;
        let dir = self.dir.join(name);
        let failed = || Error::io(dir.display().to_string());
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(failed())?;
        let apply = ProcessId::own().map_err(Error::io("/proc/self"))?;
        write(&dir.join(WAITS), &(apply, applied)).map_err(failed())
    }

    /// Removes that note of a run that did not start.
    pub fn forget_waiting(&self, name: &str) {
        let dir = self.dir.join(name);
        // A note that stays ends with this process.
        let _ = fs::remove_file(dir.join(WAITS));
        // The record of an earlier run stays.
        let _ = fs::remove_dir(dir);
    }

    fn read<T: DeserializeOwned>(&self, name: &str, file: &str) -> io::Result<T> {
        read_json(&self.dir.join(name).join(file), RECORD_BYTES_MAX)
    }
}

impl Record {
    /// Whether the program still runs, as far as the record says.
    pub fn lasts(&self) -> bool {
        self.ended.is_none() && self.run.lives()
    }

    /// The exit code of a run that is over.
    ///
    /// # Errors
    /// [`Error::Refused`] if nothing has recorded its end.
    pub fn exit_code(&self) -> Result<u8, Error> {
        self.ended.map(|ended| ended.exit_code).ok_or_else(|| Error::Refused {
            what: self.name.clone(),
            reason: format!(
                "its exit code is unknown, because process {}, which ran it, was killed; `partita ps` shows \
                 whether the program goes on",
                self.run.pid
            ),
        })
    }
}

impl OwnRecord {
    /// Records the end of the run.
    pub fn end(&mut self, exit_code: u8) {
        self.record.ended = Some(Ended { exit_code, unix_s: now_unix_s() });
        // Without it the exit code counts as unknown once this process has ended.
        let _ = self.write();
    }

    fn write(&self) -> io::Result<()> {
        write(&self.dir.join(RUN), &self.record)
    }
}

fn write(path: &Path, value: &impl Serialize) -> io::Result<()> {
    replace(path, &serde_json::to_vec(value)?, 0o600, Durable::No)
}

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The refusal where the only tenant of this name is another user's.
fn of_another_user(name: &str) -> Option<Error> {
    let registry = Registry::open().ok()?;
    let in_user_mode = || registry.lock().ok()?.tenant(name).ok()?.first()?.check_of(acting_user()).err();
    system::of_another_user(&registry, name).or_else(in_user_mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_kept_by_name_and_the_oldest_go() {
        let temp = tempfile::tempdir().unwrap();
        let records = Records { dir: temp.path().join("detached") };
        assert!(records.get("one").unwrap_err().to_string().contains("--detach"));
        assert!(matches!(records.get("../one"), Err(Error::Name { .. })));
        let (mut own, mut log) = records.begin("one", &["true".to_owned()]).unwrap();
        log.append(b"out\n");
        assert!(records.get("one").unwrap().lasts());
        records.note_applied("one", &7).unwrap();
        own.end(3);
        let record = records.get("one").unwrap();
        assert!(!record.lasts() && record.exit_code().unwrap() == 3);
        assert_eq!(records.log("one").unwrap().more().unwrap(), b"out\n");
        assert_eq!(records.applied::<u8>("one"), Some(7));
        // The next run of this name has a new log, and is not from the file.
        let (mut own, _) = records.begin("one", &[]).unwrap();
        assert_eq!(
            (records.log("one").unwrap().more().unwrap(), records.applied::<u8>("one")),
            (vec![], None)
        );
        // What waits for room has a note beside the record, which goes when the run begins.
        records.note_waiting("one", &8).unwrap();
        assert_eq!(records.waiting::<u8>("one"), Some(8));
        records.forget_waiting("one");
        assert!(records.waiting::<u8>("one").is_none() && records.get("one").unwrap().lasts());
        records.note_waiting("two", &8).unwrap();
        records.begin("two", &[]).unwrap().0.end(0);
        assert_eq!(records.waiting::<u8>("two"), None);
        fs::remove_dir_all(records.dir.join("two")).unwrap();
        own.record.started_unix_s = 1;
        own.end(0);
        for number in 0..ENDED_MAX {
            records.begin(&format!("n{number}"), &[]).unwrap().0.end(0);
        }
        assert!(records.get("one").is_err());
        assert_eq!(records.all().len(), ENDED_MAX);
    }
}
