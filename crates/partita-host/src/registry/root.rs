//! The directory of the tenants.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use partita_ledger::{GATE_FILE_NAME, GateMap};
use rustix::io::Errno;

use super::dir::{Dir, own_user};
use super::layout::{
    DEFAULT_ROOT, GATE, Home, SYSTEM_MARK, SYSTEM_ROOT, TURNS, gpus, home_name, home_of, homes, is_system,
    open_lock, open_root, refuse_root,
};
use super::name::check_name;
use super::user::acting_user;
use crate::error::Error;

/// A holder needs milliseconds. This covers a machine that swaps, and many starts at once on a
/// loaded one.
const LOCK_LIMIT: Duration = Duration::from_secs(60);

/// Which processes make, change and remove tenants in a run directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Each user their own tenants: user mode.
    User,
    /// `partitad` all of them, and this process asks it: a user's command in system mode.
    Client,
    /// This process of root, for all users: `partitad`, the processes that it starts, and root's
    /// commands in system mode.
    Planner,
}

/// The directory of the tenants.
#[derive(Debug, Clone)]
pub struct Registry {
    pub(super) root: PathBuf,
    /// Where the acting user's tenants are.
    pub(super) home: PathBuf,
    pub(super) role: Role,
    /// The user for whom tenants are made.
    pub(super) user: u32,
    /// How long its locks are waited for.
    pub(super) lock_limit: Duration,
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

    /// The same, with locks that are waited for up to `limit` rather than a minute.
    #[must_use]
    pub fn with_lock_limit(self, limit: Duration) -> Self {
        Self { lock_limit: limit, ..self }
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
            open_lock(&dir).map_err(failed)?;
            dir.set_mode(0o755).map_err(failed)?;
        }
        if is_new || is_system(&dir) {
            return Self::at(root);
        }
        let shown = root.display();
        let reason = format!(
            "it is in user mode: every user makes tenants in it; end them, remove it with `sudo rm -r \
             {shown}`, and start partitad again, or set PARTITA_RUN_DIR"
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
                    // Before other users can: none can take this name in root's directory then.
                    open_lock(&dir).map_err(failed)?;
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
        Ok(Self { root: root.to_owned(), home, role, user, lock_limit: LOCK_LIMIT })
    }

    /// Whether this process asks `partitad` for tenants: it runs for a user in system mode.
    pub fn is_client(&self) -> bool {
        self.role == Role::Client
    }

    /// The same run directory, as root's own: the place of services for all users.
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

    /// The current user's directory of one GPU, or root's, if it exists and belongs to that user:
    /// then no other user can replace it.
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
    pub fn gates(&self) -> Result<Vec<(String, PathBuf, File)>, Error> {
        let root = open_root(&self.root)?;
        let mut found = Vec::new();
        for Home { dir: home, .. } in homes(root)?.iter().filter(|home| home.dir.is_own()) {
            for (key, gpu) in gpus(home)? {
                let Ok(turns) = gpu.sub_of_owner(TURNS) else { continue };
                if let Ok(gate) = turns.file(GATE) {
                    found.push((key, turns.path().join(GATE), gate));
                }
            }
        }
        Ok(found)
    }

    /// The current user's gate on a GPU, if there is one.
    pub(crate) fn gate(&self, gpu_key: &str) -> Option<GateMap> {
        let homes = homes(open_root(&self.root).ok()?).ok()?;
        let home = homes.into_iter().find(|home| home.dir.is_own())?;
        let gpu = home.dir.sub_of_owner(gpu_key).ok()?;
        GateMap::open(gpu.at(GATE_FILE_NAME)).ok()
    }

    /// The directories that may be tenants', living or not: the GPU's key, the tenant's name, the
    /// path, and the owner.
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
}
