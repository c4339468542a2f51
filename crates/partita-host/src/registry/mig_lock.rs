//! Locks on MIG instances, and on the division of a GPU or another device.
//!
//! Their files lie in the run directory, whoever made them: to lock a file it is enough to read it.
//! They stay, as `.lock` does; a lock ends with the last process that has the file open.

use std::fs::File;
use std::io;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::dir::Dir;
use super::layout::{only_the_daemon, open_root};
use super::root::Registry;
use crate::error::Error;

impl Registry {
    /// Locks the MIG instance or the GPU with this UUID; `None` while another process has the lock.
    ///
    /// # Errors
    /// [`Error::RunDirectory`], [`Error::Io`].
    pub(crate) fn try_lock_mig(&self, uuid: &str) -> Result<Option<File>, Error> {
        self.try_lock_file(&lock_name(uuid))
    }

    /// Locks the division of the device at this PCI address; `None` while another process has the
    /// lock.
    ///
    /// # Errors
    /// [`Error::RunDirectory`], [`Error::Io`].
    pub(crate) fn try_lock_device(&self, address: &str) -> Result<Option<File>, Error> {
        self.try_lock_file(&format!(".vf-{address}.lock"))
    }

    fn try_lock_file(&self, name: &str) -> Result<Option<File>, Error> {
        if self.is_client() {
            return Err(only_the_daemon(&self.root));
        }
        let root = open_root(&self.root)?;
        let failed = || Error::io(root.path().join(name).display().to_string());
        let file = match root.file(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(&root, name),
            opened => opened,
        };
        let file = file.map_err(failed())?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(failed()(error.into())),
        }
    }

    /// Whether a process has that lock.
    ///
    /// # Errors
    /// [`Error::RunDirectory`], [`Error::Io`].
    pub(crate) fn is_mig_locked(&self, uuid: &str) -> Result<bool, Error> {
        let root = open_root(&self.root)?;
        let name = lock_name(uuid);
        let failed = || Error::io(root.path().join(&name).display().to_string());
        let file = match root.file(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            opened => opened.map_err(failed())?,
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(error) => Err(failed()(error.into())),
        }
    }
}

fn lock_name(uuid: &str) -> String {
    format!(".mig-{uuid}.lock")
}

/// Makes the file, unless another process does at the same time.
fn make(root: &Dir, name: &str) -> io::Result<File> {
    match root.create(name, 0o644) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => root.file(name),
        created => created,
    }
}
