//! The tenants of this machine.
//!
//! ```text
//! /dev/shm/partita/               root's, sticky, or one user's alone; PARTITA_RUN_DIR overrides
//!   .lock                         held while its owner's tenants are planned or changed
//!   GPU-1b2c…/                    its owner's tenants on a GPU
//!     .mps-0/                     its owner's MPS service of this GPU
//!     train/                      a tenant
//!       limits, usage             the ledger
//!       meta.json                 who runs what, since when
//!       owner                     locked by `partita run` and by every process it started
//!       gpu-1                     of a tenant on several GPUs: a link to its directory on the next
//!   user-1000/                    the same of user 1000
//! ```
//!
//! In system mode `partitad` alone makes, changes and removes tenants, of every user:
//!
//! ```text
//! /run/partita/                   root's, mode 755
//!   .system                       says that it is in system mode
//!   .lock                         held while tenants are planned, made, changed or removed
//!   GPU-1b2c…/.mps-0/             the MPS service of this GPU, for every user
//!   user-1000/                    root's too; only user 1000 can enter it, and cannot write in it
//!     GPU-1b2c…/train/            of user 1000, who owns `usage`, `time` and `owner`
//! ```
//!
//! A directory belongs to one user with all that is in it, and only that user makes, changes and
//! removes entries there: root too leaves alone what is another user's. Whose a directory is the
//! kernel says of the open one (`dir`). Others may read `limits`, `meta.json` and `owner`, to plan
//! beside the tenant and to see that it lives. They cannot open what the tenant's processes lock
//! and map.
//!
//! A tenant lives while its `owner` file is locked for writing or a process holds a slot
//! of its ledger. The kernel drops both with the last process, so what a
//! killed `partita run` leaves is recognised and removed by its user's next command.
//! A tenant appears and goes by one rename: nobody sees half of one. A tenant on
//! several GPUs has such a directory on each, all made or none under the lock;
//! it lives while any of them does.

mod dir;
mod lock;
mod name;
mod tenant;
#[cfg(test)]
mod tests;

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use partita_ledger::{
    FLAG_TIMED, GATE_FILE_NAME, GPU_LINK_PREFIX, GateMap, LIMITS_FILE_NAME, LedgerError, Limits, LimitsFile,
    Problem, TIME_FILE_NAME, TimeMap, USAGE_FILE_NAME, UsageMap,
};
use rustix::io::Errno;

use self::dir::{Dir, own_user};
pub use lock::RegistryLock;
pub use name::check_name;
pub use tenant::{GpuMeta, Isolation, META_VERSION, Meta, SimMeta, Tenant};

use crate::error::Error;
use crate::process::user_name;

/// Where tenants are unless `PARTITA_RUN_DIR` says otherwise. Memory, because
/// the ledger is read at every launch and must not outlive a restart.
pub const DEFAULT_ROOT: &str = "/dev/shm/partita";
/// Where they are instead while that directory is in system mode.
pub const SYSTEM_ROOT: &str = "/run/partita";

const META: &str = "meta.json";
const OWNER: &str = "owner";
/// In the directory of a GPU, as [`GATE_FILE_NAME`] has it.
const GATE: &str = ".gate";
/// What the directories of users in a run directory that is not theirs begin with.
const USER_PREFIX: &str = "user-";
/// The file that says that a run directory is in system mode.
const SYSTEM_MARK: &str = ".system";
/// `TMPFS_MAGIC` of linux/magic.h.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// Who makes, changes and removes tenants in a run directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Each user their own tenants: user mode.
    User,
    /// `partitad` all of them, and this process asks it: a user's command in system mode.
    Client,
    /// This process, which is root's, all of them: `partitad`, what it starts, and root's commands
    /// in system mode.
    Planner,
}

/// The user for whom this process, which is root's, makes and changes tenants.
static ACTS_FOR: OnceLock<u32> = OnceLock::new();

/// Makes this process, which is root's, act for a user from now on: tenants that it makes are that
/// user's.
pub(crate) fn act_for(user: u32) {
    // A second call would be for the same connection.
    let _ = ACTS_FOR.set(user);
}

/// The user for whom this process acts: its own, unless `partitad` has started it for another.
pub(crate) fn acting_user() -> u32 {
    ACTS_FOR.get().copied().unwrap_or_else(own_user)
}

/// The directory of the tenants.
#[derive(Debug, Clone)]
pub struct Registry {
    root: PathBuf,
    /// Where the acting user's tenants are.
    home: PathBuf,
    role: Role,
    /// The user for whom tenants are made.
    user: u32,
}

impl Registry {
    /// Opens the directory that `PARTITA_RUN_DIR` or the default names, and makes it if it is
    /// missing.
    ///
    /// # Errors
    /// [`Error::RunDirectory`].
    pub fn open() -> Result<Self, Error> {
        match std::env::var_os("PARTITA_RUN_DIR").filter(|value| !value.is_empty()) {
            Some(root) => {
                let root = std::path::absolute(&root).map_err(Error::io("PARTITA_RUN_DIR"))?;
                Self::at(&root)
            }
            None => {
                let system = Path::new(SYSTEM_ROOT);
                let is_system = Dir::open(system).is_ok_and(|dir| is_system(&dir));
                Self::at(if is_system { system } else { Path::new(DEFAULT_ROOT) })
            }
        }
    }

    /// Opens the run directory in system mode, as root, and makes it if it is missing: the one that
    /// `PARTITA_RUN_DIR` names, or [`SYSTEM_ROOT`].
    ///
    /// # Errors
    /// [`Error::RunDirectory`] if this process is not root's, or if the directory is in user mode.
    pub fn open_system() -> Result<Self, Error> {
        let named = std::env::var_os("PARTITA_RUN_DIR").filter(|value| !value.is_empty());
        let root = std::path::absolute(named.map_or_else(|| SYSTEM_ROOT.into(), PathBuf::from))
            .map_err(Error::io("PARTITA_RUN_DIR"))?;
        let root = root.as_path();
        if own_user() != 0 {
            return Err(refuse_root(
                root,
                "only root keeps it in system mode; start partitad as root".to_owned(),
            ));
        }
        let failed = |error: io::Error| refuse_root(root, error.to_string());
        match rustix::fs::mkdir(root, rustix::fs::Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed(error.into())),
        }
        let dir = open_root(root)?;
        // An empty one of root's was made for this, as systemd does.
        let is_new = dir.is_own() && dir.mode & 0o022 == 0 && dir.names().map_err(failed)?.is_empty();
        if is_new {
            dir.create(SYSTEM_MARK, 0o644).map_err(failed)?;
            lock::open_lock(&dir).map_err(failed)?;
            dir.set_mode(0o755).map_err(failed)?;
        }
        if is_new || is_system(&dir) {
            return Self::at(root);
        }
        let shown = root.display();
        let reason = format!(
            "it is in user mode: every user makes tenants in it; end them, remove it with `sudo rm -r {shown}`, and start \
             partitad again, or set PARTITA_RUN_DIR"
        );
        Err(refuse_root(root, reason))
    }

    /// Opens the directory `root`, and makes it if it is missing: root for every user, anyone else
    /// for themselves.
    ///
    /// # Errors
    /// [`Error::RunDirectory`].
    pub fn at(root: &Path) -> Result<Self, Error> {
        match rustix::fs::mkdir(root, rustix::fs::Mode::RWXU) {
            Ok(()) => {
                let dir = open_root(root)?;
                if own_user() == 0 {
                    let failed = |error: io::Error| refuse_root(root, error.to_string());
                    // Before anybody else can: nobody takes this name in root's directory then.
                    lock::open_lock(&dir).map_err(failed)?;
                    dir.set_mode(0o1777).map_err(failed)?;
                }
            }
            Err(Errno::EXIST) => {}
            Err(error) => {
                let reason = format!(
                    "{}; set PARTITA_RUN_DIR to a directory that can be written",
                    io::Error::from(error)
                );
                return Err(refuse_root(root, reason));
            }
        }
        let dir = open_root(root)?;
        let role = match is_system(&dir) {
            false => Role::User,
            true if own_user() == 0 => Role::Planner,
            true => Role::Client,
        };
        let user = acting_user();
        let home = if dir.user == user { root.to_owned() } else { root.join(home_name(user)) };
        Ok(Self { root: root.to_owned(), home, role, user })
    }

    /// Whether this process asks `partitad` for tenants: it runs for a user in system mode.
    pub fn is_client(&self) -> bool {
        self.role == Role::Client
    }

    /// The same run directory, as root has it for itself: where services for all users are.
    pub(crate) fn of_root(&self) -> Self {
        Self { home: self.root.clone(), user: 0, ..self.clone() }
    }

    /// Whether the run directory is in system mode.
    pub fn is_system(&self) -> bool {
        self.role != Role::User
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The current user's directory of one GPU. May not exist.
    pub fn gpu_dir(&self, gpu_key: &str) -> PathBuf {
        self.home.join(gpu_key)
    }

    /// The current user's directory of one GPU, or root's, if it is there and really that user's:
    /// then nobody else can exchange it.
    ///
    /// # Errors
    /// [`Error::RunDirectory`].
    pub(crate) fn gpu_dir_of(&self, gpu_key: &str, user: u32) -> Result<Option<PathBuf>, Error> {
        let root = open_root(&self.root)?;
        let home = match user {
            user if root.user == user => root,
            user => match home_of(&root, user, self.is_system()) {
                Some(home) => home,
                None => return Ok(None),
            },
        };
        Ok(home.sub_of_owner(gpu_key).ok().map(|gpu| gpu.path().to_owned()))
    }

    /// The gates of the current user: each GPU's name for directories, and the open file.
    ///
    /// # Errors
    /// [`Error::Io`] if the run directory cannot be read.
    pub(crate) fn gates(&self) -> Result<Vec<(String, PathBuf, File)>, Error> {
        let root = open_root(&self.root)?;
        let mut found = Vec::new();
        for Home { dir: home, .. } in homes(root)?.iter().filter(|home| home.dir.is_own()) {
            for (key, gpu) in gpus(home)? {
                if let Ok(gate) = gpu.file(GATE) {
                    found.push((key, gpu.path().join(GATE), gate));
                }
            }
        }
        Ok(found)
    }

    /// The directories that could be tenants', living or not: the GPU's name for directories, the
    /// tenant's name, the path, and the user whom it belongs to.
    ///
    /// # Errors
    /// [`Error::RunDirectory`], [`Error::Io`].
    pub fn places(&self) -> Result<Vec<(String, String, PathBuf, u32)>, Error> {
        let mut found = Vec::new();
        for Home { dir: home, user } in homes(open_root(&self.root)?)? {
            for (key, gpu) in gpus(&home)? {
                let names = gpu.texts().map_err(Error::io(gpu.path().display().to_string()))?;
                for name in names.into_iter().filter(|name| check_name(name).is_ok()) {
                    if gpu.sub_of_owner(&name).is_ok() {
                        let path = gpu.path().join(&name);
                        found.push((key.clone(), name, path, user));
                    }
                }
            }
        }
        Ok(found)
    }

    /// Waits for the current user's lock: nobody else of this user makes, changes or removes
    /// tenants meanwhile.
    ///
    /// # Errors
    /// [`Error::RunDirectory`] if somebody holds it for longer than anything takes.
    pub fn lock(&self) -> Result<RegistryLock<'_>, Error> {
        RegistryLock::take(self)
    }

    /// The same for those who change what tenants have: as long as all users mean each other well,
    /// none of them plans meanwhile.
    ///
    /// # Errors
    /// As [`Registry::lock`].
    pub fn lock_to_plan(&self) -> Result<RegistryLock<'_>, Error> {
        RegistryLock::take_to_plan(self, false)
    }

    /// The same for those who make tenants or services. Makes the current user's directory if it is
    /// missing.
    ///
    /// # Errors
    /// As [`Registry::lock`], and [`Error::RunDirectory`] if that directory cannot be made.
    pub fn lock_to_make(&self) -> Result<RegistryLock<'_>, Error> {
        RegistryLock::take_to_plan(self, true)
    }
}

fn refuse_root(path: &Path, reason: String) -> Error {
    Error::RunDirectory { path: path.to_owned(), reason }
}

/// Opens the run directory, and checks that nobody but its owner removes or exchanges what is in
/// it, and that its owner is root or the current user.
fn open_root(path: &Path) -> Result<Dir, Error> {
    let dir = Dir::open(path).map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOTDIR | Errno::LOOP) => {
            refuse_root(path, "it is no directory; remove it, or set PARTITA_RUN_DIR".to_owned())
        }
        _ => refuse_root(path, format!("{error}; set PARTITA_RUN_DIR to a directory that can be read")),
    })?;
    let shown = path.display();
    if dir.user != 0 && !dir.is_own() {
        let remedy = format!(
            "set PARTITA_RUN_DIR to a directory of your own, or have root make one for all: `sudo rm -r {shown}`, then \
             `sudo mkdir -m 1777 {shown}`"
        );
        let owner = user_name(dir.user);
        return Err(refuse_root(
            path,
            format!("it belongs to {owner}, who could exchange what is in it; {remedy}"),
        ));
    }
    if dir.mode & 0o022 != 0 && dir.mode & 0o1000 == 0 {
        let owner = user_name(dir.user);
        let reason = format!(
            "it has mode {:o} and belongs to {owner}; it must have mode 1777: `sudo chmod 1777 {shown}`",
            dir.mode
        );
        return Err(refuse_root(path, reason));
    }
    Ok(dir)
}

/// What the directory of a user is called in a run directory of root's.
fn home_name(user: u32) -> String {
    format!("{USER_PREFIX}{user}")
}

/// Where the tenants of one user are.
#[derive(Debug, Clone)]
struct Home {
    dir: Arc<Dir>,
    /// In system mode the directory is root's, whatever user's tenants are in it.
    user: u32,
}

/// The directory of a user in a run directory that is another user's. Anybody may take any name:
/// the kernel says whose it is.
fn home_of(root: &Dir, user: u32, is_system: bool) -> Option<Dir> {
    let keeper = if is_system { 0 } else { user };
    root.sub(&home_name(user)).ok().filter(|home| home.user == keeper)
}

/// The directories of the run directory's owner and of each other user.
fn homes(root: Dir) -> Result<Vec<Home>, Error> {
    let names = root.texts().map_err(Error::io(root.path().display().to_string()))?;
    let users = names.iter().filter_map(|name| name.strip_prefix(USER_PREFIX)?.parse().ok());
    let is_system = is_system(&root);
    let others: Vec<Home> = users
        .filter(|&user| user != root.user)
        .filter_map(|user| Some(Home { dir: Arc::new(home_of(&root, user, is_system)?), user }))
        .collect();
    let user = root.user;
    Ok([Home { dir: Arc::new(root), user }].into_iter().chain(others).collect())
}

/// Whether a run directory is in system mode: `partitad` makes, changes and removes all tenants in
/// it.
fn is_system(root: &Dir) -> bool {
    root.user == 0 && root.mode & 0o022 == 0 && root.file(SYSTEM_MARK).is_ok()
}

/// The GPUs that the owner of a directory has tenants on. What others have put there is nobody's.
fn gpus(home: &Dir) -> Result<Vec<(String, Dir)>, Error> {
    let names = home.texts().map_err(Error::io(home.path().display().to_string()))?;
    let names = names.into_iter().filter(|name| is_gpu_key(name));
    Ok(names.filter_map(|name| home.sub_of_owner(&name).ok().map(|gpu| (name, gpu))).collect())
}

/// Whether `name` could be a GPU's: a UUID, or what tells simulated boards apart.
fn is_gpu_key(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte))
        && !name.starts_with(['.', '-'])
        && !name.starts_with(USER_PREFIX)
}

/// Makes or opens a directory in a run directory, or in the current user's part of it: it must be
/// that user's, too.
fn make_own(parent: &Dir, name: &str) -> Result<Dir, Error> {
    let path = parent.path().join(name);
    let refuse = |reason| Error::RunDirectory { path: path.clone(), reason };
    let dir = parent.make(name).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => refuse(format!(
            "{error}; set PARTITA_RUN_DIR to a directory of your own, or have root open this one: `sudo chmod 1777 {}`",
            parent.path().display()
        )),
        _ => refuse(error.to_string()),
    })?;
    if dir.is_own() {
        return Ok(dir);
    }
    Err(refuse(format!(
        "it belongs to {}, and tenants are made in directories of their own user only; have root remove it: `sudo rm -r {}`, or \
         set PARTITA_RUN_DIR to a directory of your own",
        user_name(dir.user),
        path.display()
    )))
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
    /// None in a client, which cannot write there.
    dir: Option<Dir>,
    /// Its path, which the open directory is known by since it got its name.
    path: PathBuf,
    gpu_key: String,
    meta: Meta,
    owner: File,
}

impl OwnedTenant {
    /// The tenant's directory on its first GPU: the value of `PARTITA_LEDGER`.
    pub fn dir(&self) -> &Path {
        &self.parts[0].path
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
            if let Some(dir) = &part.dir {
                write_meta(dir, &part.path, &part.meta)?;
            }
        }
        Ok(())
    }

    /// The tenant that `partitad` has made for this process: for each of its GPUs the directory,
    /// what is known of it, and the locked file that keeps it alive.
    pub(crate) fn received(parts: impl IntoIterator<Item = (PathBuf, Meta, File)>) -> Self {
        let part = |(path, meta, owner): (PathBuf, Meta, File)| OwnedPart {
            dir: None,
            path,
            gpu_key: meta.gpu.key.clone(),
            meta,
            owner,
        };
        Self { parts: parts.into_iter().map(part).collect() }
    }

    /// What a client needs to have it: see [`OwnedTenant::received`].
    pub(crate) fn handed_out(&self) -> impl Iterator<Item = (&Path, &Meta, &File)> {
        self.parts.iter().map(|part| (part.path.as_path(), &part.meta, &part.owner))
    }
}

fn write_meta(dir: &Dir, path: &Path, meta: &Meta) -> Result<(), Error> {
    let what = || path.join(META).display().to_string();
    let json = serde_json::to_vec_pretty(meta).map_err(|error| Error::io(what())(io::Error::other(error)))?;
    dir.replace(META, &json, 0o644).map_err(Error::io(what()))
}

/// A path as the ledger takes it.
pub(crate) fn c_path(path: &Path) -> Result<CString, Error> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::RunDirectory {
        path: path.to_owned(),
        reason: "its name holds a zero byte".to_owned(),
    })
}

/// Whether `name` is that of a directory that is being made or removed.
fn is_scratch(name: &str) -> bool {
    name.starts_with(".new-") || name.starts_with(".dead-")
}

/// Makes everything of a tenant on one GPU in `dir`, which is new and its owner's alone. `links`
/// lead to its other GPUs'.
///
/// In system mode the tenant's user gets the files that its processes lock and write. The others
/// stay root's.
fn make(dir: &Dir, meta: &Meta, limits: &Limits, links: &[PathBuf], user: u32) -> Result<File, Error> {
    let describe = || dir.path().display().to_string();
    let owner = dir.create(OWNER, 0o644).map_err(Error::io(describe()))?;
    match partita_ledger::lock_alone(owner.as_raw_fd()) {
        Ok(true) => {}
        Ok(false) => return Err(Error::io(describe())(io::ErrorKind::WouldBlock.into())),
        Err(partita_ledger::Errno(code)) => {
            return Err(Error::io(describe())(io::Error::from_raw_os_error(code)));
        }
    }
    let ledger = |error: LedgerError| Error::io("the ledger")(io::Error::other(error.to_string()));
    // Others read the limits to plan beside the tenant. What its processes lock and map is theirs
    // alone.
    LimitsFile::create(dir.at(LIMITS_FILE_NAME), limits, 0o644).map_err(ledger)?;
    UsageMap::create(dir.at(USAGE_FILE_NAME), 0o600).map_err(ledger)?;
    if limits.flags & FLAG_TIMED != 0 {
        check_memory(dir, "no share of time")?;
        TimeMap::create(dir.at(TIME_FILE_NAME), 0o600).map_err(ledger)?;
    }
    for (link, number) in links.iter().zip(1..) {
        dir.link(link, &format!("{GPU_LINK_PREFIX}{number}")).map_err(Error::io(describe()))?;
    }
    write_meta(dir, dir.path(), meta)?;
    if user != own_user() {
        let time = (limits.flags & FLAG_TIMED != 0).then_some(TIME_FILE_NAME);
        for name in [Some(USAGE_FILE_NAME), time].into_iter().flatten() {
            dir.give(&name.to_string_lossy(), user).map_err(Error::io(describe()))?;
        }
        // Nobody but the user can open it, and so nobody else can lock it.
        dir.give(OWNER, user).map_err(Error::io(describe()))?;
        rustix::fs::fchmod(&owner, rustix::fs::Mode::from_raw_mode(0o600))
            .map_err(|error| Error::io(describe())(error.into()))?;
    }
    dir.set_mode(0o755).map_err(Error::io(describe()))?;
    Ok(owner)
}

/// Refuses a directory whose files no GPU maps, where tenants are to be given what needs that.
///
/// The driver is to map them, and long-lasting pins are for memory: the kernel refuses them for
/// pages that a file system writes back.
fn check_memory(dir: &Dir, without: &str) -> Result<(), Error> {
    if dir.is_on(TMPFS).map_err(Error::io(dir.path().display().to_string()))? {
        return Ok(());
    }
    Err(Error::RunDirectory {
        path: dir.path().to_owned(),
        reason: format!(
            "it is on no tmpfs, and a GPU maps no page of another file system, so that tenants here can have {without}; \
             leave PARTITA_RUN_DIR unset or put it below /dev/shm"
        ),
    })
}

/// Makes the gate between the tenants of a user on a GPU, if it is missing. It is that user's
/// alone: whoever could write it could end every process that has it mapped.
fn make_gate(gpu: &Dir, user: u32) -> Result<(), Error> {
    check_memory(gpu, "no priority and no share of time")?;
    let made = match GateMap::create(gpu.at(GATE_FILE_NAME), 0o600) {
        Err(error) if *error.problem() == Problem::Exists => GateMap::open(gpu.at(GATE_FILE_NAME)),
        made => made,
    };
    let path = gpu.path().join(GATE).display().to_string();
    made.map(drop).map_err(|error| Error::io(path.clone())(io::Error::other(error.to_string())))?;
    if user != own_user() {
        gpu.give(GATE, user).map_err(Error::io(path))?;
    }
    Ok(())
}

/// Whether the tenant's owner, or a process that it started, lives; false also if there is no file.
fn is_owned(dir: &Dir) -> bool {
    dir.file(OWNER).is_ok_and(|file| partita_ledger::is_locked_alone(file.as_raw_fd()).unwrap_or(false))
}
