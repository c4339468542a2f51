//! The records of prologs, kept until the epilog has undone them.
//!
//! ```text
//! /var/lib/partita/batch/      root's; --state-dir overrides
//!   jobs/slurm-4711.json       a record; only root can read it
//!   env/slurm-4711.json        the environment of the job's programs; all can read it
//!   locks/…                    held while a job or a service is changed
//! ```
//!
//! They are on a disk, because an epilog may come after a restart of the node, and must then know
//! that there is nothing left to undo. A record appears and changes by one rename, after its bytes
//! are on the disk: a writer that is killed in between leaves the old one. A record is written
//! *before* the actions that it describes.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use partita_core::kept::fnv1a;
use partita_host::error::Error;
use partita_host::registry::Registry;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::deadline::Deadline;
use super::environment::JobEnvironment;
use super::group::Group;
use super::job::JobId;
use super::request::Request;

/// The directory of records, unless `--state-dir` or `PARTITA_BATCH_DIR` names another.
pub const DEFAULT_DIR: &str = "/var/lib/partita/batch";
/// The version of records that this build writes and reads.
pub const VERSION: u32 = 1;
/// A record has some hundred bytes; a much longer file is not a record.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// The extension of a file that is being written.
const FRESH: &str = "new";
const POLL: Duration = Duration::from_millis(5);

/// The progress of a prolog.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It began: all, a part or nothing of what the record names may exist.
    Starting,
    /// All of it exists.
    Ready,
    /// The job must not run, and nothing exists.
    Refused {
        /// Why, for the job's owner.
        reason: String,
    },
}

/// The record of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// [`VERSION`].
    pub version: u32,
    /// The job.
    pub job: JobId,
    /// The user and the GPUs of its service.
    pub group: Group,
    /// The group of the user's processes.
    pub user_group: u32,
    /// Its request.
    pub request: Request,
    /// The run directory with its tenant and its service. `None` in a record of an older version.
    #[serde(default)]
    pub run_dir: Option<PathBuf>,
    /// Whether the service is the machine's, in system mode: then no job stops it.
    #[serde(default)]
    pub is_system: bool,
    /// The boot in which it was written: `/proc/sys/kernel/random/boot_id`.
    pub boot: String,
    /// Its progress.
    pub phase: Phase,
    /// Seconds since 1970.
    pub written_unix_s: u64,
}

impl Record {
    /// The run directory in which the prolog worked.
    ///
    /// # Errors
    /// As [`Registry::open`].
    pub fn registry(&self) -> Result<Registry, Error> {
        self.run_dir.as_deref().map_or_else(Registry::open, Registry::at)
    }

    /// Whether the job uses a service that ends with its last job.
    pub fn needs_own_service(&self) -> bool {
        self.request.needs_service() && !self.is_system
    }
}

/// Why the directory of records cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// An error of the system, or another user's file.
    #[error("the directory of job records: {}: {reason}; make room or repair it, or name another with --state-dir", .path.display())]
    Place {
        /// The file at fault.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Another prolog or epilog holds the lock.
    #[error("another prolog or epilog was busy with {what} for the whole timeout; see which with \
        `fuser {}`", .path.display())]
    Locked {
        /// A job or a service.
        what: String,
        /// The lock.
        path: PathBuf,
    },
    /// A file exists but is invalid.
    #[error("the job record {}: {reason}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// The directory of records.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

/// A lock that is released with this value, or with the process.
#[derive(Debug)]
pub struct Held {
    file: File,
    path: PathBuf,
}

impl Drop for Held {
    fn drop(&mut self) {
        // While the lock is held, no other process locks this name; see `lock`.
        let _ = fs::remove_file(&self.path);
        let _ = self.file.unlock();
    }
}

impl Store {
    /// Makes the directory, or checks that only this user can write to it.
    ///
    /// # Errors
    /// [`StoreError::Place`].
    pub fn create(root: &Path) -> Result<Self, StoreError> {
        let store = Self::named(root);
        if let Some(parent) = root.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(place(parent))?;
        }
        // The job's own user reads the environment of its programs.
        for (dir, mode) in [
            (store.root.clone(), 0o755),
            (store.jobs(), 0o700),
            (store.locks(), 0o700),
            (store.environments(), 0o755),
        ] {
            match DirBuilder::new().mode(mode).create(&dir) {
                // The umask has changed the mode of `create`.
                Ok(()) => fs::set_permissions(&dir, Permissions::from_mode(mode)).map_err(place(&dir))?,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(place(&dir)(error)),
            }
            check_own(&dir, mode)?;
        }
        Ok(store)
    }

    /// The directory as it is, whether or not it exists.
    pub fn named(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Whether it exists.
    pub fn exists(&self) -> bool {
        self.jobs().exists()
    }

    fn jobs(&self) -> PathBuf {
        self.root.join("jobs")
    }

    fn locks(&self) -> PathBuf {
        self.root.join("locks")
    }

    fn environments(&self) -> PathBuf {
        self.root.join("env")
    }

    fn record_file(&self, job: &JobId) -> PathBuf {
        self.jobs().join(format!("{job}.json"))
    }

    /// The file of [`Store::write_environment`].
    pub fn environment_file(&self, job: &JobId) -> PathBuf {
        self.environments().join(format!("{job}.json"))
    }

    /// The file of [`Store::write_environment`] for shells.
    pub fn shell_file(&self, job: &JobId) -> PathBuf {
        self.environments().join(format!("{job}.sh"))
    }

    /// Waits until no other script is busy with this job.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn lock_job(&self, job: &JobId, deadline: Deadline) -> Result<Held, StoreError> {
        self.lock(&job.to_string(), &format!("job {job}"), deadline)
    }

    /// Waits until no other script counts, starts or stops this group's service.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn lock_group(&self, group: &Group, deadline: Deadline) -> Result<Held, StoreError> {
        let name = format!("service-{}-{:016x}", group.user, fnv1a(group.gpus.join(",").as_bytes()));
        self.lock(&name, &group.to_string(), deadline)
    }

    fn lock(&self, name: &str, what: &str, deadline: Deadline) -> Result<Held, StoreError> {
        let path = self.locks().join(name);
        loop {
            let file =
                OpenOptions::new().create(true).append(true).mode(0o600).open(&path).map_err(place(&path))?;
            loop {
                match file.try_lock() {
                    Ok(()) => break,
                    Err(fs::TryLockError::Error(error)) => return Err(place(&path)(error)),
                    Err(fs::TryLockError::WouldBlock) if deadline.is_over() => {
                        return Err(StoreError::Locked { what: what.to_owned(), path });
                    }
                    Err(fs::TryLockError::WouldBlock) => thread::sleep(POLL),
                }
            }
            // The previous holder has removed the file: then this lock is on a file without a name,
            // which others do not lock.
            let ours = file.metadata().map_err(place(&path))?;
            if path
                .symlink_metadata()
                .is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino()))
            {
                return Ok(Held { file, path });
            }
        }
    }

    /// The record of a job, if it has one.
    ///
    /// # Errors
    /// [`StoreError::Damaged`]; [`StoreError::Place`].
    pub fn record(&self, job: &JobId) -> Result<Option<Record>, StoreError> {
        read_record(&self.record_file(job))
    }

    /// Every record, and for each invalid one, why.
    ///
    /// # Errors
    /// [`StoreError::Place`].
    pub fn records(&self) -> Result<Vec<Result<Record, StoreError>>, StoreError> {
        let dir = self.jobs();
        let mut found = Vec::new();
        for entry in fs::read_dir(&dir).map_err(place(&dir))? {
            let path = entry.map_err(place(&dir))?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                // It can be removed meanwhile.
                found.extend(read_record(&path).transpose());
            }
        }
        Ok(found)
    }

    /// Writes a job's record so that it survives a crash of the machine.
    ///
    /// # Errors
    /// [`StoreError::Place`]; the previous record is unchanged then.
    pub fn write(&self, record: &Record) -> Result<(), StoreError> {
        write_file(&self.record_file(&record.job), &json(record), 0o600)
    }

    /// Writes the environment of the job's programs, for `task-prolog` and for shells.
    ///
    /// # Errors
    /// [`StoreError::Place`].
    pub fn write_environment(&self, job: &JobId, environment: &JobEnvironment) -> Result<(), StoreError> {
        write_file(&self.shell_file(job), environment.shell().as_bytes(), 0o644)?;
        write_file(&self.environment_file(job), &json(environment), 0o644)
    }

    /// The environment of the job's programs; `None` if no prolog did anything for the job.
    ///
    /// # Errors
    /// [`StoreError::Damaged`]; [`StoreError::Place`].
    pub fn environment(&self, job: &JobId) -> Result<Option<JobEnvironment>, StoreError> {
        let path = self.environment_file(job);
        read_file(&path)
    }

    /// Removes all files of a job, its record last.
    ///
    /// # Errors
    /// [`StoreError::Place`].
    pub fn remove(&self, job: &JobId) -> Result<(), StoreError> {
        let record = self.record_file(job);
        let environment = self.environment_file(job);
        // This includes files of a killed writer.
        let fresh = [record.with_extension(FRESH), environment.with_extension(FRESH)];
        for path in fresh.into_iter().chain([self.shell_file(job), environment, record]) {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(place(&path)(error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Renames an invalid record, so that an administrator can inspect it.
    ///
    /// # Errors
    /// [`StoreError::Place`].
    pub fn set_aside(&self, job: &JobId) -> Result<PathBuf, StoreError> {
        let path = self.record_file(job);
        let aside = path.with_extension("damaged");
        fs::rename(&path, &aside).map_err(place(&path))?;
        Ok(aside)
    }
}

fn place(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |error| StoreError::Place { path, reason: error.to_string() }
}

/// A user who could write here could make root end other users' processes.
fn check_own(dir: &Path, mode: u32) -> Result<(), StoreError> {
    let meta = dir.symlink_metadata().map_err(place(dir))?;
    let user = rustix::process::geteuid().as_raw();
    let reason = if !meta.is_dir() {
        "it is not a directory".to_owned()
    } else if meta.uid() != user {
        format!("it belongs to user {}, not to user {user}", meta.uid())
    } else if meta.mode() & 0o777 & !mode != 0 {
        format!("it has mode {:o} instead of {mode:o}", meta.mode() & 0o777)
    } else {
        return Ok(());
    };
    Err(StoreError::Place { path: dir.to_owned(), reason })
}

fn json(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(value).expect("records have only text keys");
    bytes.push(b'\n');
    bytes
}

fn write_file(path: &Path, bytes: &[u8], mode: u32) -> Result<(), StoreError> {
    // The writer holds the job's lock.
    let fresh = path.with_extension(FRESH);
    let write = || {
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(mode).open(&fresh)?;
        file.write_all(bytes)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&fresh, path)?;
        File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&fresh);
        place(path)(error)
    })
}

fn read_file<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StoreError> {
    let damaged = |reason: String| StoreError::Damaged { path: path.to_owned(), reason };
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(place(path))?,
    };
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(damaged(format!("it is longer than {FILE_BYTES_MAX} bytes")));
    }
    serde_json::from_slice(&bytes).map(Some).map_err(|error| damaged(error.to_string()))
}

fn read_record(path: &Path) -> Result<Option<Record>, StoreError> {
    let damaged = |reason: String| StoreError::Damaged { path: path.to_owned(), reason };
    let Some(record) = read_file::<Record>(path)? else { return Ok(None) };
    if record.version != VERSION {
        return Err(damaged(format!("it has version {}, this Partita reads {VERSION}", record.version)));
    }
    if path.file_stem() != Some(record.job.to_string().as_ref()) {
        return Err(damaged(format!("it is the record of job {}", record.job)));
    }
    Ok(Some(record))
}

#[cfg(test)]
mod tests {
    use super::super::job::System;
    use super::*;

    fn record(id: &str) -> Record {
        Record {
            version: VERSION,
            job: JobId::new(System::Slurm, id).unwrap(),
            group: Group::new(1000, &["0".to_owned()]),
            user_group: 100,
            run_dir: None,
            is_system: false,
            request: Request::Service,
            boot: "b".to_owned(),
            phase: Phase::Starting,
            written_unix_s: 1,
        }
    }

    fn store() -> (tempfile::TempDir, Store) {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::create(&temp.path().join("deep/batch")).unwrap();
        (temp, store)
    }

    #[test]
    fn records_come_back_and_go() {
        let (_temp, store) = store();
        let one = record("1");
        assert_eq!(store.record(&one.job).unwrap(), None);
        store.write(&one).unwrap();
        let ready = Record { phase: Phase::Refused { reason: "x".to_owned() }, ..one.clone() };
        store.write(&ready).unwrap();
        store.write(&record("2")).unwrap();
        assert_eq!(store.record(&one.job).unwrap(), Some(ready));
        assert_eq!(store.records().unwrap().len(), 2);
        store.remove(&one.job).unwrap();
        store.remove(&one.job).unwrap();
        assert_eq!(
            store.records().unwrap().into_iter().map(Result::unwrap).collect::<Vec<_>>(),
            [record("2")]
        );
        // A second `create` finds everything in order.
        Store::create(&store.root).unwrap();
    }

    #[test]
    fn damaged_records_are_reported_and_set_aside() {
        let (_temp, store) = store();
        let one = record("1");
        for (text, words) in [
            ("", "EOF"),
            ("{\"version\": 1}", "missing field"),
            (&serde_json::to_string(&record("2")).unwrap(), "the record of job slurm-2"),
            (&serde_json::to_string(&Record { version: 9, ..record("1") }).unwrap(), "version 9"),
        ] {
            fs::write(store.record_file(&one.job), text).unwrap();
            let error = store.record(&one.job).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("slurm-1.json"), "{text}: {error}");
            assert!(store.records().unwrap()[0].is_err());
        }
        store.set_aside(&one.job).unwrap();
        assert_eq!(store.record(&one.job).unwrap(), None);
        assert!(store.records().unwrap().is_empty());
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused() {
        let (_temp, store) = store();
        fs::set_permissions(store.jobs(), PermissionsExt::from_mode(0o777)).unwrap();
        let error = Store::create(&store.root).unwrap_err().to_string();
        assert!(error.contains("mode 777 instead of 700") && error.contains("--state-dir"), "{error}");
        fs::remove_dir(store.jobs()).unwrap();
        fs::write(store.jobs(), "").unwrap();
        assert!(Store::create(&store.root).unwrap_err().to_string().contains("not a directory"));
    }

    #[test]
    fn one_at_a_time_and_no_lock_files_stay() {
        let (_temp, store) = store();
        let job = record("1").job;
        let counter = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let held = store.lock_job(&job, Deadline::after(Duration::from_secs(60))).unwrap();
                        assert_eq!(counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        counter.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        drop(held);
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(store.locks()).unwrap().count(), 0);
        let _held = store.lock_job(&job, Deadline::after(Duration::ZERO)).unwrap();
        let error = store.lock_job(&job, Deadline::after(Duration::ZERO)).unwrap_err().to_string();
        assert!(error.contains("job slurm-1") && error.contains("fuser"), "{error}");
    }
}
