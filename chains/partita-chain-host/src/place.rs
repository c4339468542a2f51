//! Where the files of a running chain are.
//!
//! They are in the directory of the chain's tenant. In system mode that is root's, and the tenant's
//! user cannot write in it. Then the process that runs the chain makes a directory of its own in
//! shared memory, whose name says whose it is: the device and inode numbers of the tenant's
//! directory. Other users cannot enter it, and a name that another user has taken is passed over.

use std::fs::{self, DirBuilder, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use partita_host::error::Error;
use rustix::fs::FlockOperation;

/// Memory that every user can write in, as the default run directory.
const SHARED: &str = "/dev/shm";
/// The link in such a directory to that of the tenant.
const TENANT: &str = "tenant";
/// How long a directory may be without that link. Then the process that made it was killed.
const LINK_LIMIT: Duration = Duration::from_secs(60);

/// The directory of a chain's files, for the process that runs the chain. If it was made for that,
/// it ends with this.
#[derive(Debug)]
pub(super) struct ChainDir {
    path: PathBuf,
    is_made: bool,
}

impl ChainDir {
    /// The directory for the chain of this tenant.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn of_tenant(tenant: &Path) -> Result<Self, Error> {
        let failed = || Error::io(tenant.display().to_string());
        let meta = fs::metadata(tenant).map_err(failed())?;
        if is_own(&meta) {
            return Ok(Self { path: tenant.to_owned(), is_made: false });
        }
        // No two processes of this tenant make one at the same time.
        let lock = File::open(tenant).map_err(failed())?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(|error| failed()(error.into()))?;
        if let Some(path) = made_for(tenant, &meta) {
            return Ok(Self { path, is_made: false });
        }
        let path = make(tenant, &meta).map_err(Error::io(SHARED))?;
        Ok(Self { path, is_made: true })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ChainDir {
    fn drop(&mut self) {
        if self.is_made {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// The directory with the files of a chain that runs in this tenant of the current user; `None` if
/// no process has begun to run one.
pub(super) fn of(tenant: &Path) -> Option<PathBuf> {
    let meta = fs::metadata(tenant).ok()?;
    if is_own(&meta) { Some(tenant.to_owned()) } else { made_for(tenant, &meta) }
}

fn is_own(meta: &Metadata) -> bool {
    meta.uid() == rustix::process::geteuid().as_raw()
}

/// How the names of the current user's directories begin.
fn prefix() -> String {
    format!("partita-chain-{}-", rustix::process::geteuid().as_raw())
}

/// How the name of the directory for a tenant's chain begins.
fn prefix_of(tenant: &Metadata) -> String {
    format!("{}{}-{}-", prefix(), tenant.dev(), tenant.ino())
}

fn make(tenant: &Path, meta: &Metadata) -> io::Result<PathBuf> {
    for number in 0.. {
        let path = Path::new(SHARED).join(format!("{}{number}", prefix_of(meta)));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => {
                let linked = std::os::unix::fs::symlink(tenant, path.join(TENANT));
                return linked.map(|()| path.clone()).inspect_err(|_| {
                    let _ = fs::remove_dir(&path);
                });
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn made_for(tenant: &Path, meta: &Metadata) -> Option<PathBuf> {
    own_dirs(&prefix_of(meta)).find(|dir| fs::read_link(dir.join(TENANT)).is_ok_and(|of| of == tenant))
}

/// The current user's directories whose names begin so.
fn own_dirs(prefix: &str) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(SHARED).into_iter().flatten().flatten();
    let prefix = prefix.to_owned();
    let is_meant = move |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| name.starts_with(&prefix));
    entries.filter(move |entry| is_meant(&entry.file_name())).map(|entry| entry.path()).filter(|path| {
        fs::symlink_metadata(path)
            .is_ok_and(|meta| meta.is_dir() && is_own(&meta) && meta.mode() & 0o077 == 0)
    })
}

/// Removes the directories of the current user's chains whose tenants have gone: their processes
/// were killed.
pub(super) fn sweep() {
    for dir in own_dirs(&prefix()) {
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_alive = match fs::read_link(dir.join(TENANT)) {
            Ok(tenant) => fs::metadata(tenant).is_ok_and(|meta| name.starts_with(&prefix_of(&meta))),
            Err(_) => age(&dir).is_none_or(|age| age < LINK_LIMIT),
        };
        if !is_alive {
            let _ = fs::remove_dir_all(&dir);
        }
    }
}

fn age(dir: &Path) -> Option<Duration> {
    fs::symlink_metadata(dir).ok()?.modified().ok()?.elapsed().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenants_own_directory_is_the_chains() {
        let tenant = tempfile::tempdir().unwrap();
        let dir = ChainDir::of_tenant(tenant.path()).unwrap();
        assert_eq!((dir.path(), of(tenant.path()).as_deref()), (tenant.path(), Some(tenant.path())));
        drop(dir);
        assert!(tenant.path().exists());
    }

    #[test]
    fn the_directory_for_a_tenant_of_system_mode_is_found_and_goes_with_it() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root makes a directory of another user");
            return;
        }
        let tenant = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(tenant.path(), Some(1), None).unwrap();
        let (tenant, meta) = (tenant.path(), fs::metadata(tenant.path()).unwrap());
        assert_eq!(of(tenant), None);
        let dir = ChainDir::of_tenant(tenant).unwrap();
        assert_eq!(of(tenant).as_deref(), Some(dir.path()));
        assert_eq!(fs::metadata(dir.path()).unwrap().mode() & 0o777, 0o700);
        // A second process of the tenant finds the first one's, and does not remove it.
        drop(ChainDir::of_tenant(tenant).unwrap());
        assert_eq!(of(tenant).as_deref(), Some(dir.path()));
        // Another user's has that name.
        let path = dir.path().to_owned();
        drop(dir);
        assert!(!path.exists() && of(tenant).is_none());
        fs::create_dir(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(1), None).unwrap();
        let dir = ChainDir::of_tenant(tenant).unwrap();
        assert!(dir.path() != path && of(tenant).as_deref() == Some(dir.path()));
        fs::remove_dir(&path).unwrap();
        // What a killed process has left of a tenant that has gone.
        let left = make(Path::new("/no/such/tenant"), &meta).unwrap();
        sweep();
        assert!(!left.exists() && dir.path().exists());
    }
}
