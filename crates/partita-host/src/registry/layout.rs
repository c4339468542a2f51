//! The layout of a run directory, and the owners of its parts.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

use super::dir::{Dir, own_user};
use crate::error::Error;
use crate::process::user_name;

/// Where tenants are unless `PARTITA_RUN_DIR` says otherwise. Memory, because
/// the ledger is read at every launch and must not outlive a restart.
pub const DEFAULT_ROOT: &str = "/dev/shm/partita";
/// Where they are instead while that directory is in system mode.
pub const SYSTEM_ROOT: &str = "/run/partita";

/// The variable with the directory of a process's tenant.
pub const LEDGER_VARIABLE: &str = match partita_ledger::LEDGER_VARIABLE.to_str() {
    Ok(name) => name,
    Err(_) => panic!("it is ASCII"),
};

/// The kind of the CDI devices of tenants for containers.
pub const CDI_KIND: &str = "partita.dev/tenant";
/// The directory of everything of Partita's in a container. `libpartita.so` knows it too.
pub(crate) const CONTAINER_DIR: &str = "/usr/local/partita";

/// The directory in a container of the tenant's files on its GPU of this number. What it shares
/// with others there is in the directory above, as on the host.
pub(crate) fn container_dir(gpu: usize) -> std::path::PathBuf {
    Path::new(CONTAINER_DIR).join(format!("gpu/{gpu}/tenant"))
}

pub(super) const META: &str = "meta.json";
pub(super) const OWNER: &str = "owner";
/// In the directory of a GPU: the directory and the file of
/// [`GATE_FILE_NAME`](partita_ledger::GATE_FILE_NAME).
pub(super) const TURNS: &str = ".turns";
pub(super) const GATE: &str = "gate";
/// The same of [`ELASTIC_FILE_NAME`](partita_ledger::ELASTIC_FILE_NAME).
pub(super) const ELASTIC: &str = ".elastic";
/// There is one while a tenant there has, or had, a target or a goal; the controller locks it.
pub(super) const CONTROL: &str = ".slo";
/// The prefix of users' directories in a run directory of another user.
const USER_PREFIX: &str = "user-";
/// The file that says that a run directory is in system mode.
pub(super) const SYSTEM_MARK: &str = ".system";
pub(super) const LOCK: &str = ".lock";

pub(super) fn refuse_root(path: &Path, reason: String) -> Error {
    Error::RunDirectory { path: path.to_owned(), reason }
}

/// Opens the run directory, and checks that only its owner can remove or replace its content, and
/// that its owner is root or the current user.
pub(super) fn open_root(path: &Path) -> Result<Dir, Error> {
    let dir = Dir::open(path).map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOTDIR | Errno::LOOP) => {
            refuse_root(path, "it is no directory; remove it, or set PARTITA_RUN_DIR".to_owned())
        }
        _ => refuse_root(path, format!("{error}; set PARTITA_RUN_DIR to a directory that can be read")),
    })?;
    let shown = path.display();
    if dir.user != 0 && !dir.is_own() {
        let remedy = format!(
            "set PARTITA_RUN_DIR to a directory of your own, or have root make one for all: `sudo rm -r \
             {shown}`, then `sudo mkdir -m 1777 {shown}`"
        );
        let owner = user_name(dir.user);
        return Err(refuse_root(
            path,
            format!("it belongs to {owner}, who could replace its content; {remedy}"),
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

/// The name of a user's directory in a run directory of root.
pub(super) fn home_name(user: u32) -> String {
    format!("{USER_PREFIX}{user}")
}

/// Where the tenants of one user are.
#[derive(Debug, Clone)]
pub(super) struct Home {
    pub dir: Arc<Dir>,
    /// In system mode the directory is root's, whatever user's tenants are in it.
    pub user: u32,
}

/// The directory of a user in a run directory of another user. Any user can take any name: the
/// kernel reports the owner.
pub(super) fn home_of(root: &Dir, user: u32, is_system: bool) -> Option<Dir> {
    let keeper = if is_system { 0 } else { user };
    root.sub(&home_name(user)).ok().filter(|home| home.user == keeper)
}

/// The directories of the run directory's owner and of each other user.
pub(super) fn homes(root: Dir) -> Result<Vec<Home>, Error> {
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
pub(super) fn is_system(root: &Dir) -> bool {
    root.user == 0 && root.mode & 0o022 == 0 && root.file(SYSTEM_MARK).is_ok()
}

/// The GPUs on which the owner of a directory has tenants. Other users' entries are ignored.
pub(super) fn gpus(home: &Dir) -> Result<Vec<(String, Dir)>, Error> {
    let names = home.texts().map_err(Error::io(home.path().display().to_string()))?;
    let names = names.into_iter().filter(|name| is_gpu_key(name));
    Ok(names.filter_map(|name| home.sub_of_owner(&name).ok().map(|gpu| (name, gpu))).collect())
}

/// Whether `name` can be the key of a GPU: a UUID, or the key of a simulated board.
fn is_gpu_key(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte))
        && !name.starts_with(['.', '-'])
        && !name.starts_with(USER_PREFIX)
}

/// Makes or opens a directory in a run directory, or in the current user's part of it: it must be
/// that user's, too.
pub(super) fn make_own(parent: &Dir, name: &str) -> Result<Dir, Error> {
    let path = parent.path().join(name);
    let refuse = |reason| Error::RunDirectory { path: path.clone(), reason };
    let dir = parent.make(name).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => refuse(format!(
            "{error}; set PARTITA_RUN_DIR to a directory of your own, or have root open this one: `sudo \
             chmod 1777 {}`",
            parent.path().display()
        )),
        _ => refuse(error.to_string()),
    })?;
    if dir.is_own() {
        return Ok(dir);
    }
    Err(refuse(format!(
        "it belongs to {}, and tenants are made in directories of their own user only; have root remove it: \
         `sudo rm -r {}`, or set PARTITA_RUN_DIR to a directory of your own",
        user_name(dir.user),
        path.display()
    )))
}

/// A path as the ledger takes it.
pub fn c_path(path: &Path) -> Result<CString, Error> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::RunDirectory {
        path: path.to_owned(),
        reason: "its name holds a zero byte".to_owned(),
    })
}

/// Whether `name` is that of a directory that is being made or removed.
pub(super) fn is_scratch(name: &str) -> bool {
    name.starts_with(".new-") || name.starts_with(".dead-")
}

/// Whether the tenant's owner, or a process that it started, lives; false also if there is no file.
pub(super) fn is_owned(dir: &Dir) -> bool {
    dir.file(OWNER).is_ok_and(|file| partita_ledger::is_locked_alone(file.as_raw_fd()).unwrap_or(false))
}

/// Opens the lock file of a user's directory, which that user alone can open, and makes it if it is
/// missing.
pub(super) fn open_lock(home: &Dir) -> io::Result<File> {
    let file = match home.file(LOCK) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => match home.create(LOCK, 0o600) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => home.file(LOCK)?,
            created => created?,
        },
        opened => opened?,
    };
    let owner = std::os::unix::fs::MetadataExt::uid(&file.metadata()?);
    if owner == own_user() {
        return Ok(file);
    }
    Err(io::Error::other(format!(
        "it belongs to {}, who could hold it forever; have root remove it: `sudo rm -r {}`",
        user_name(owner),
        home.path().join(LOCK).display()
    )))
}

/// Refuses an action that only `partitad` and root may do in system mode.
pub fn only_the_daemon(root: &Path) -> Error {
    Error::RunDirectory {
        path: root.to_owned(),
        reason:
            "it is in system mode, where partitad makes and changes tenants for `partita run`, `set` and \
            `kill` alone; ask root, or set PARTITA_RUN_DIR to a directory of your own"
                .to_owned(),
    }
}
