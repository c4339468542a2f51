//! The tenants of this machine.
//!
//! ```text
//! /dev/shm/partita/               everybody's, sticky; PARTITA_RUN_DIR overrides
//!   .lock                         held while tenants are planned, made, changed or removed
//!   GPU-1b2c…/                    one directory per GPU
//!     .mps-1000/                  the MPS service of user 1000 for this GPU
//!     train/                      a tenant: its owner's, readable by everybody
//!       limits, usage             the ledger
//!       meta.json                 who runs what, since when
//!       owner                     locked by `partita run` and by every process it started
//!       gpu-1                     of a tenant on several GPUs: a link to its directory on the next
//! ```
//!
//! A tenant lives while its `owner` file is locked or a process holds a slot
//! of its ledger. The kernel drops both with the last process, so what a
//! killed `partita run` leaves is recognised and removed by the next command.
//! A tenant appears and goes by one rename: nobody sees half of one. A tenant on
//! several GPUs has such a directory on each, all made or none under the lock;
//! it lives while any of them does.

mod lock;
mod name;
mod tenant;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use partita_ledger::{FLAG_TIMED, GPU_LINK_PREFIX, GateMap, Limits, LimitsFile, Problem, TimeMap, UsageMap};

pub use lock::RegistryLock;
pub use name::check_name;
pub use tenant::{GpuMeta, Isolation, META_VERSION, Meta, SimMeta, Tenant};

use crate::error::Error;
use crate::files::{self, Durable, open_regular};
use crate::process::user_name;

/// Where tenants are unless `PARTITA_RUN_DIR` says otherwise. Memory, because
/// the ledger is read at every launch and must not outlive a restart.
pub const DEFAULT_ROOT: &str = "/dev/shm/partita";

const LIMITS: &str = "limits";
const USAGE: &str = "usage";
/// As `partita_ledger::TIME_FILE_NAME` has it.
const TIME: &str = "time";
const META: &str = "meta.json";
const OWNER: &str = "owner";
/// In the directory of a GPU, as `partita_ledger::GATE_FILE_NAME` has it.
const GATE: &str = ".gate";
/// `TMPFS_MAGIC` of linux/magic.h.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// The directory of the tenants.
#[derive(Debug, Clone)]
pub struct Registry {
    root: PathBuf,
}

impl Registry {
    /// Opens the directory that `PARTITA_RUN_DIR` or the default names, and makes it if it is missing.
    ///
    /// # Errors
    /// [`Error::RunDirectory`].
    pub fn open() -> Result<Self, Error> {
        match std::env::var_os("PARTITA_RUN_DIR").filter(|value| !value.is_empty()) {
            Some(root) => {
                let root = std::path::absolute(&root).map_err(Error::io("PARTITA_RUN_DIR"))?;
                Self::at(&root)
            }
            None => Self::at(Path::new(DEFAULT_ROOT)),
        }
    }

    /// Opens the directory `root`, and makes it if it is missing.
    ///
    /// # Errors
    /// [`Error::RunDirectory`].
    pub fn at(root: &Path) -> Result<Self, Error> {
        shared_dir(root)?;
        Ok(Self { root: root.to_owned() })
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of one GPU. May not exist.
    pub fn gpu_dir(&self, gpu_key: &str) -> PathBuf {
        self.root.join(gpu_key)
    }

    /// Makes the directory of one GPU, if it is missing. An empty one goes with
    /// the next command that holds the lock.
    ///
    /// # Errors
    /// [`Error::RunDirectory`].
    pub fn make_gpu_dir(&self, gpu_key: &str) -> Result<(), Error> {
        shared_dir(&self.gpu_dir(gpu_key))
    }

    /// The directory of a user's MPS service of one GPU. May not exist, nor its parent.
    pub fn mps_dir(&self, gpu_key: &str, user: u32) -> PathBuf {
        self.gpu_dir(gpu_key).join(format!(".mps-{user}"))
    }

    /// The gates that there are: each GPU's name for directories, and the file.
    ///
    /// # Errors
    /// [`Error::Io`] if the run directory cannot be read.
    pub fn gates(&self) -> Result<Vec<(String, PathBuf)>, Error> {
        let gpus = directories(&self.root)?.into_iter().map(|(key, dir)| (key, dir.join(GATE)));
        Ok(gpus.filter(|(_, gate)| gate.symlink_metadata().is_ok_and(|meta| meta.is_file())).collect())
    }

    /// Waits for the registry's lock. Everything that must see or leave the
    /// tenants in one state goes through it.
    ///
    /// # Errors
    /// [`Error::RunDirectory`] if somebody holds it for longer than anything takes.
    pub fn lock(&self) -> Result<RegistryLock<'_>, Error> {
        RegistryLock::take(self)
    }
}

/// Makes a directory that everybody may make entries in and nobody may remove
/// those of others from, or checks that it is one.
fn shared_dir(path: &Path) -> Result<(), Error> {
    let refuse = |reason: String| Error::RunDirectory { path: path.to_owned(), reason };
    let made = match fs::DirBuilder::new().mode(0o1777).create(path) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => {
            return Err(refuse(format!("{error}; set PARTITA_RUN_DIR to a directory that can be written")));
        }
    };
    if made {
        // The mode of `create` went through the umask.
        fs::set_permissions(path, Permissions::from_mode(0o1777))
            .map_err(|error| refuse(error.to_string()))?;
        return Ok(());
    }
    let meta = path.symlink_metadata().map_err(|error| refuse(error.to_string()))?;
    if !meta.is_dir() {
        return Err(refuse("it is no directory; remove it, or set PARTITA_RUN_DIR".to_owned()));
    }
    let user = rustix::process::geteuid().as_raw();
    let open_to_others = meta.mode() & 0o022 != 0;
    if (open_to_others && meta.mode() & 0o1000 == 0) || (!open_to_others && meta.uid() != user && user != 0) {
        return Err(refuse(format!(
            "it has mode {:o} and belongs to {}; it must have mode 1777: `sudo chmod 1777 {}`",
            meta.mode() & 0o7777,
            user_name(meta.uid()),
            path.display()
        )));
    }
    Ok(())
}

/// A part of a tenant that is to be made: what it is on one GPU.
#[derive(Debug)]
pub struct NewPart {
    /// The name of the GPU's directory.
    pub gpu_key: String,
    /// What is known of it.
    pub meta: Meta,
    /// Its limits there.
    pub limits: Limits,
}

/// A tenant that this process owns: its `partita run`.
#[derive(Debug)]
pub struct OwnedTenant {
    /// One for each GPU, in the order in which programs see them. Never empty.
    parts: Vec<OwnedPart>,
}

#[derive(Debug)]
struct OwnedPart {
    dir: PathBuf,
    meta: Meta,
    owner: File,
}

impl OwnedTenant {
    /// The tenant's directory on its first GPU: the value of `PARTITA_LEDGER`.
    pub fn dir(&self) -> &Path {
        &self.parts[0].dir
    }

    /// The open and locked files that keep the tenant alive, one for each GPU. A process that
    /// inherits them keeps the tenant alive too.
    pub fn owner_files(&self) -> impl Iterator<Item = &File> {
        self.parts.iter().map(|part| &part.owner)
    }

    /// What is known of the tenant on its first GPU.
    pub fn meta(&self) -> &Meta {
        &self.parts[0].meta
    }

    /// Changes what is known of the tenant, for others to read.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn update_meta(&mut self, change: impl Fn(&mut Meta)) -> Result<(), Error> {
        for part in &mut self.parts {
            change(&mut part.meta);
            write_meta(&part.dir, &part.meta)?;
        }
        Ok(())
    }
}

fn write_meta(dir: &Path, meta: &Meta) -> Result<(), Error> {
    let path = dir.join(META);
    let json = serde_json::to_vec_pretty(meta)
        .map_err(|error| Error::io(path.display().to_string())(io::Error::other(error)))?;
    files::replace(&path, &json, 0o644, Durable::No).map_err(Error::io(path.display().to_string()))
}

fn create_file(path: &Path, mode: u32) -> io::Result<File> {
    let file = OpenOptions::new().create(true).truncate(true).write(true).mode(mode).open(path)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    Ok(file)
}

/// A path as the ledger takes it.
pub(crate) fn c_path(path: &Path) -> Result<CString, Error> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::RunDirectory {
        path: path.to_owned(),
        reason: "its name holds a zero byte".to_owned(),
    })
}

/// The tenants of one look, by GPU and name.
pub(crate) type Entries = BTreeMap<(String, String), PathBuf>;

fn entries(root: &Path) -> Result<Entries, Error> {
    let mut found = Entries::new();
    for (gpu, gpu_dir) in directories(root)? {
        for (name, dir) in directories(&gpu_dir)? {
            found.insert((gpu.clone(), name), dir);
        }
    }
    Ok(found)
}

/// The directories in `dir` with names that are text. Those of other programs,
/// and links, are not Partita's.
fn directories(dir: &Path) -> Result<Vec<(String, PathBuf)>, Error> {
    let listing = match fs::read_dir(dir) {
        Ok(listing) => listing,
        // It went, or belongs to somebody who does not let us look.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(Error::io(dir.display().to_string())(error)),
    };
    let mut found = Vec::new();
    for entry in listing {
        let entry = entry.map_err(Error::io(dir.display().to_string()))?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir())
            && let Some(name) = entry.file_name().to_str()
        {
            found.push((name.to_owned(), entry.path()));
        }
    }
    Ok(found)
}

/// Whether `name` is that of a directory that is being made or removed.
fn is_scratch(name: &str) -> bool {
    name.starts_with(".new-") || name.starts_with(".dead-")
}

/// Makes everything of a tenant on one GPU in `dir`, which must not exist. `links` lead to its other GPUs'.
fn make(dir: &Path, meta: &Meta, limits: &Limits, links: &[PathBuf]) -> Result<File, Error> {
    let describe = || dir.display().to_string();
    fs::DirBuilder::new().mode(0o755).create(dir).map_err(Error::io(describe()))?;
    fs::set_permissions(dir, Permissions::from_mode(0o755)).map_err(Error::io(describe()))?;
    let owner = create_file(&dir.join(OWNER), 0o644).map_err(Error::io(describe()))?;
    owner.try_lock().map_err(|error| Error::io(describe())(io::Error::other(error.to_string())))?;
    let ledger =
        |error: partita_ledger::LedgerError| Error::io("the ledger")(io::Error::other(error.to_string()));
    LimitsFile::create(&c_path(&dir.join(LIMITS))?, limits, 0o644).map_err(ledger)?;
    UsageMap::create(&c_path(&dir.join(USAGE))?, 0o644).map_err(ledger)?;
    if limits.flags & FLAG_TIMED != 0 {
        check_memory(dir, "no share of time")?;
        TimeMap::create(&c_path(&dir.join(TIME))?, 0o644).map_err(ledger)?;
    }
    for file in [LIMITS, USAGE] {
        fs::set_permissions(dir.join(file), Permissions::from_mode(0o644)).map_err(Error::io(describe()))?;
    }
    for (link, number) in links.iter().zip(1..) {
        symlink(link, dir.join(format!("{GPU_LINK_PREFIX}{number}"))).map_err(Error::io(describe()))?;
    }
    write_meta(dir, meta)?;
    Ok(owner)
}

/// Refuses a directory whose files no GPU maps, where tenants are to be given what needs that.
///
/// The driver is to map them, and long-lasting pins are for memory: the kernel refuses them for pages that a file system writes back.
fn check_memory(dir: &Path, without: &str) -> Result<(), Error> {
    let place = rustix::fs::statfs(dir).map_err(|code| Error::io(dir.display().to_string())(code.into()))?;
    if place.f_type == TMPFS {
        return Ok(());
    }
    Err(Error::RunDirectory {
        path: dir.to_owned(),
        reason: format!(
            "it is on no tmpfs, and a GPU maps no page of another file system, so that tenants here can have {without}; \
             leave PARTITA_RUN_DIR unset or put it below /dev/shm"
        ),
    })
}

/// Makes the gate between the tenants of a GPU, if it is missing. Whoever may be a tenant there may open and close it, so it can be written
/// by everybody whom the run directory lets in: those of a group, if its mode is 1770. A file for each user would not do: whose work waits
/// on the GPU opens the lanes of the dead, whosoever they were.
fn make_gate(gpu_dir: &Path) -> Result<(), Error> {
    check_memory(gpu_dir, "no priority and no share of time")?;
    let path = gpu_dir.join(GATE);
    let at = c_path(&path)?;
    let made = match GateMap::create(&at, 0o666) {
        Err(error) if *error.problem() == Problem::Exists => GateMap::open(&at),
        made => made,
    };
    made.map(drop).map_err(|error| Error::io(path.display().to_string())(io::Error::other(error.to_string())))
}

/// Whether somebody holds the lock of the file; false also if there is no file.
fn is_owned(dir: &Path) -> bool {
    match open_regular(&dir.join(OWNER)) {
        // A shared lock: two who look at the same time do not see each other.
        Ok(file) => matches!(file.try_lock_shared(), Err(fs::TryLockError::WouldBlock)),
        Err(_) => false,
    }
}

/// For messages and file names.
fn file_name(path: &Path) -> &OsStr {
    path.file_name().unwrap_or(path.as_os_str())
}
