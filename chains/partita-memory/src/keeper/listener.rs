//! The keeper's socket: one keeper for each path, and an old socket is not in the way.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::net::SocketFlags;
use thiserror::Error;

use crate::socket;

/// Connections that the kernel queues until they are accepted.
const BACKLOG: i32 = 256;

/// Why the socket cannot be made.
#[derive(Debug, Error)]
pub enum BindError {
    /// Another keeper has it.
    #[error("another keeper serves {}: connect to it, or choose another socket", .0.display())]
    Busy(PathBuf),
    /// The path is not a socket.
    #[error("{} exists and is not a socket: remove it, or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// A failed system call.
    #[error("the socket {} cannot be made: {reason}; its directory must exist, and this user must be able \
        to write to it", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        reason: io::Error,
    },
}

/// A listening socket; removed when dropped.
pub(super) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    lock_path: PathBuf,
    /// Locked as long as this process lives, however it ends.
    _lock: File,
}

impl Listener {
    pub(super) fn bind(path: &Path) -> Result<Self, BindError> {
        let failed = |reason: io::Error| BindError::Io { path: path.to_owned(), reason };
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let lock_path = PathBuf::from(lock_path);
        let lock = lock(&lock_path).map_err(failed)?.ok_or_else(|| BindError::Busy(path.to_owned()))?;
        match Self::listen(path) {
            Ok(socket) => Ok(Self { socket, path: path.to_owned(), lock_path, _lock: lock }),
            Err(error) => {
                // While holding the lock, as in drop().
                let _ = fs::remove_file(&lock_path);
                Err(error)
            }
        }
    }

    /// The socket, if no other process serves one: an existing one is of a killed keeper.
    fn listen(path: &Path) -> Result<OwnedFd, BindError> {
        let failed = |reason: io::Error| BindError::Io { path: path.to_owned(), reason };
        match path.symlink_metadata() {
            Ok(status) if status.file_type().is_socket() => fs::remove_file(path).map_err(failed)?,
            Ok(_) => return Err(BindError::NotASocket(path.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let made = socket::address(path).and_then(|address| {
            let socket = socket::packet_socket(SocketFlags::NONBLOCK)?;
            // On Linux the file gets the socket's own mode, so it never exists with another one.
            rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
            rustix::net::bind(&socket, &address)?;
            rustix::net::listen(&socket, BACKLOG)?;
            Ok(socket)
        });
        made.map_err(failed)
    }

    /// The next waiting connection; `None` without one.
    pub(super) fn accept(&self) -> io::Result<Option<OwnedFd>> {
        match rustix::net::accept_with(&self.socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok(socket) => Ok(Some(socket)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => {
                Ok(None)
            }
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // While holding the lock, so that no other keeper's is removed.
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(&self.lock_path);
    }
}

/// Locks a file; `None` if another process has it locked.
fn lock(path: &Path) -> io::Result<Option<File>> {
    loop {
        // Others may write to the directory, and a link would lead to a file of this user.
        let flags = OFlags::NOFOLLOW.bits() as i32;
        let mut options = OpenOptions::new();
        let file =
            options.create(true).truncate(false).write(true).mode(0o600).custom_flags(flags).open(path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(errno.into()),
            Ok(()) => {}
        }
        // The former holder may have removed it in between: then this lock has no effect.
        let id = |status: fs::Metadata| (status.dev(), status.ino());
        if fs::metadata(path).map(id).ok() == Some(id(file.metadata()?)) {
            return Ok(Some(file));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_keeper_a_path_and_a_dead_ones_socket_is_taken_over() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("keeper");
        let first = Listener::bind(&path).unwrap();
        assert_eq!(path.symlink_metadata().unwrap().mode() & 0o777, 0o600);
        assert!(matches!(Listener::bind(&path), Err(BindError::Busy(_))));
        drop(first);
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0, "nothing stays behind");
        // The state after a killed keeper.
        let left = socket::packet_socket(SocketFlags::empty()).unwrap();
        rustix::net::bind(&left, &socket::address(&path).unwrap()).unwrap();
        drop(Listener::bind(&path).unwrap());
        fs::write(&path, "a file").unwrap();
        assert!(matches!(Listener::bind(&path), Err(BindError::NotASocket(_))));
        assert_eq!(fs::read(&path).unwrap(), b"a file");
        let linked = temp.path().join("linked");
        let lock = linked.with_extension("lock");
        std::os::unix::fs::symlink(temp.path().join("elsewhere"), &lock).unwrap();
        assert!(Listener::bind(&linked).err().unwrap().to_string().contains("symbolic link"));
        assert!(!temp.path().join("elsewhere").exists());
        fs::remove_file(lock).unwrap();
        let long = temp.path().join("x".repeat(120));
        assert!(Listener::bind(&long).err().unwrap().to_string().contains("107 bytes"));
        assert!(Listener::bind(&temp.path().join("none/keeper")).is_err());
        let left: Vec<_> = fs::read_dir(temp.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(left, [path], "of those that came to nothing, neither");
    }
}
