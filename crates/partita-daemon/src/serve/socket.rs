//! The daemon's Unix socket: one daemon a path, whatever an earlier one left.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use partita::process::ProcessId;
use tokio::net::UnixListener;

/// How long a daemon that was killed may leave its lock with a process that it was about to start.
const DEAD_LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(5);

/// Why the socket is unavailable.
#[derive(Debug, thiserror::Error)]
#[error("the socket {}: {reason}", .path.display())]
pub(super) struct SocketError {
    path: PathBuf,
    reason: String,
}

/// The right to listen at a path. The file there goes with it.
#[derive(Debug)]
pub(super) struct Socket {
    path: PathBuf,
    lock_path: PathBuf,
    /// Whether this daemon put the file at the path.
    is_there: bool,
    _lock: File,
}

impl Socket {
    /// Takes the path: no other daemon does from now on.
    pub fn claim(path: &Path) -> Result<Self, SocketError> {
        let refuse = |reason: String| SocketError { path: path.to_owned(), reason };
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let lock_path = PathBuf::from(lock_path);
        let mut lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0))
            .open(&lock_path)
            .map_err(|error| {
                refuse(format!("its lock {}: {error}; name another path with --socket", lock_path.display()))
            })?;
        // In a directory that all users can write to, another user can be first.
        let owner = lock.metadata().map_err(|error| refuse(error.to_string()))?.uid();
        if owner != rustix::process::geteuid().as_raw() {
            let shown = lock_path.display();
            return Err(refuse(format!(
                "its lock {shown} belongs to user {owner}; have root remove it: `sudo rm {shown}`, or name another path with --socket"
            )));
        }
        let deadline = Instant::now() + DEAD_LIMIT;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(fs::TryLockError::Error(error)) => return Err(refuse(error.to_string())),
                Err(fs::TryLockError::WouldBlock) => {}
            }
            let mut holder = String::new();
            let _ = lock.rewind().and_then(|()| lock.read_to_string(&mut holder));
            let holder = holder.trim();
            let lives = holder.parse().is_ok_and(|pid| ProcessId::living(pid).is_some());
            if lives || Instant::now() >= deadline {
                return Err(refuse(format!(
                    "another partitad serves it (process {holder}); use that one, end it, or name another path with --socket and \
                     another directory with --state (with --system: another run directory in PARTITA_RUN_DIR)"
                )));
            }
            thread::sleep(POLL);
        }
        // A daemon that just ended can remove the file while we open it: then this is not the lock
        // of the path.
        let is_it = |meta: fs::Metadata| {
            lock.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (meta.dev(), meta.ino()))
        };
        if !lock_path.symlink_metadata().is_ok_and(is_it) {
            return Self::claim(path);
        }
        let note = lock
            .set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| writeln!(lock, "{}", std::process::id()));
        note.map_err(|error| refuse(error.to_string()))?;
        Ok(Self { path: path.to_owned(), lock_path, is_there: false, _lock: lock })
    }

    /// Listens. Replaces the socket of a killed daemon; refuses to replace anything else.
    pub fn listen(&mut self) -> Result<UnixListener, SocketError> {
        let refuse = |reason: String| SocketError { path: self.path.clone(), reason };
        let user = rustix::process::geteuid().as_raw();
        match self.path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(refuse(error.to_string())),
            Ok(meta) if meta.file_type().is_socket() && meta.uid() == user => {}
            Ok(meta) => {
                return Err(refuse(format!(
                    "another file is there (mode {:o}, of user {}); remove it, or name another path \
                     with --socket",
                    meta.mode(),
                    meta.uid()
                )));
            }
        }
        // One rename puts it in place with its mode, so that it is never missing or accessible to
        // the wrong users.
        let fresh = self.path.with_extension(format!("new-{}", std::process::id()));
        let _ = fs::remove_file(&fresh);
        let listen = || -> io::Result<UnixListener> {
            let listener = net::UnixListener::bind(&fresh)?;
            listener.set_nonblocking(true)?;
            // Root's daemon serves all users and checks each request. A user's daemon serves only
            // that user.
            fs::set_permissions(&fresh, Permissions::from_mode(if user == 0 { 0o666 } else { 0o600 }))?;
            fs::rename(&fresh, &self.path)?;
            UnixListener::from_std(listener)
        };
        let listener = listen().map_err(|error| {
            let _ = fs::remove_file(&fresh);
            refuse(format!(
                "{error}; its path may have 100 bytes and its directory must be writable, see --socket"
            ))
        })?;
        self.is_there = true;
        Ok(listener)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.is_there {
            let _ = fs::remove_file(&self.path);
        }
        // Last: a process that waits for it would find no socket.
        let _ = fs::remove_file(&self.lock_path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_daemon_a_path_and_nothing_foreign_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let mut first = Socket::claim(&path).unwrap();
        let listener = first.listen().unwrap();
        let second = Socket::claim(&path).unwrap_err().to_string();
        assert!(second.contains(&format!("process {}", std::process::id())), "{second}");
        drop(listener);
        assert!(path.exists(), "as after a kill");
        let again = first.listen().unwrap();
        net::UnixStream::connect(&path).unwrap();
        drop((again, first));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);

        fs::write(&path, "another user's").unwrap();
        let mut third = Socket::claim(&path).unwrap();
        assert!(third.listen().unwrap_err().to_string().contains("another file"));
        drop(third);
        assert_eq!(fs::read_to_string(&path).unwrap(), "another user's");
    }

    #[test]
    fn a_lock_that_another_user_has_made_is_refused() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root, to make another user's file");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let lock = dir.path().join("s.sock.lock");
        fs::write(&lock, "\u{1b}[2J").unwrap();
        std::os::unix::fs::chown(&lock, Some(65_534), None).unwrap();
        let held = File::open(&lock).unwrap();
        held.try_lock().unwrap();
        let said = Socket::claim(&path).unwrap_err().to_string();
        assert!(said.contains("belongs to user 65534") && said.contains("sudo rm"), "{said}");
        assert!(!said.contains('\u{1b}'), "{said:?}");
    }
}
