//! The directories of the service and their contents.

use std::env;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::shared::socket;
use crate::shared::sys::check;

/// The directory of sockets and pid file.
pub const ENV_PIPE: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// The directory of logs.
pub const ENV_LOG: &str = "CUDA_MPS_LOG_DIRECTORY";
const PIPE_DEFAULT: &str = "/tmp/nvidia-mps";
const LOG_DEFAULT: &str = "/var/log/nvidia-mps";

fn from_env(name: &str, default: &str) -> PathBuf {
    let value = env::var_os(name).filter(|value| !value.is_empty());
    let path = value.map_or_else(|| PathBuf::from(default), PathBuf::from);
    std::path::absolute(&path).unwrap_or(path)
}

/// The pipe directory of this process's environment.
pub fn pipe() -> PathBuf {
    from_env(ENV_PIPE, PIPE_DEFAULT)
}

/// The log directory of this process's environment.
pub fn log() -> PathBuf {
    from_env(ENV_LOG, LOG_DEFAULT)
}

/// The socket that programs and commands connect to.
pub fn control(pipe: &Path) -> PathBuf {
    pipe.join("control")
}

/// The files of a running daemon in its pipe directory. Removed on drop, except for the directory
/// and the lock: a lock on a removed file would be useless.
#[derive(Debug)]
pub struct PipeFiles {
    /// For programs and commands.
    pub control: OwnedFd,
    /// For commands of the daemon's own user.
    pub privileged: OwnedFd,
    /// Held for the life of the daemon.
    _lock: File,
    paths: Vec<PathBuf>,
}

/// Why a daemon cannot have a pipe directory.
#[derive(Debug)]
pub enum PipeError {
    /// Another daemon uses it.
    InUse,
    /// The system refuses.
    Io(PathBuf, io::Error),
}

impl std::fmt::Display for PipeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InUse => f.write_str("An instance of this daemon is already running"),
            Self::Io(path, error) => write!(f, "Failed to make {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for PipeError {}

impl PipeFiles {
    /// Creates the directory if it does not exist, and everything in it, with the permissions of
    /// the real daemon's.
    ///
    /// # Errors
    /// [`PipeError`].
    pub fn create(pipe: &Path) -> Result<Self, PipeError> {
        let refuse = |path: &Path| {
            let path = path.to_owned();
            move |error| PipeError::Io(path, error)
        };
        fs::create_dir_all(pipe).map_err(refuse(pipe))?;
        let lock_path = pipe.join("control_lock");
        let lock = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o666)
            .open(&lock_path)
            .map_err(refuse(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(PipeError::InUse),
            Err(fs::TryLockError::Error(error)) => return Err(PipeError::Io(lock_path, error)),
        }
        let mut paths = Vec::new();
        let mut listen = |name: &str, mode| {
            let path = pipe.join(name);
            // The holder of the lock may remove the files of a killed daemon.
            let _ = fs::remove_file(&path);
            let listener = socket::listen(&path).map_err(refuse(&path))?;
            fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(refuse(&path))?;
            paths.push(path);
            Ok(listener)
        };
        let control = listen("control", 0o666)?;
        let privileged = listen("control_privileged", 0o755)?;
        let fifo = pipe.join("log");
        let _ = fs::remove_file(&fifo);
        make_fifo(&fifo).map_err(refuse(&fifo))?;
        paths.push(fifo);
        let pid = pipe.join("nvidia-cuda-mps-control.pid");
        let _ = fs::remove_file(&pid);
        OpenOptions::new()
            .create_new(true)
            .write(true)
            .mode(0o666)
            .open(&pid)
            .and_then(|mut file| write!(file, "{}", std::process::id()))
            .map_err(refuse(&pid))?;
        paths.push(pid);
        Ok(Self { control, privileged, _lock: lock, paths })
    }
}

impl Drop for PipeFiles {
    fn drop(&mut self) {
        for path in self.paths.iter().rev() {
            let _ = fs::remove_file(path);
        }
    }
}

fn make_fifo(path: &Path) -> io::Result<()> {
    let name = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the name is a C string.
    check(unsafe { libc::mkfifo(name.as_ptr(), 0o777) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn one_daemon_has_a_directory_and_clears_it() {
        let temp = tempfile::tempdir().unwrap();
        let pipe = temp.path().join("pipe");
        let files = PipeFiles::create(&pipe).unwrap();
        assert_eq!(
            names(&pipe),
            ["control", "control_lock", "control_privileged", "log", "nvidia-cuda-mps-control.pid"]
        );
        assert!(matches!(PipeFiles::create(&pipe), Err(PipeError::InUse)));
        assert!(socket::connect(&control(&pipe)).is_ok(), "a refused rival does not touch the sockets");
        drop(files);
        assert_eq!(names(&pipe), ["control_lock"]);
        drop(PipeFiles::create(&pipe).unwrap());
    }

    #[test]
    fn a_killed_daemons_leavings_are_replaced() {
        let temp = tempfile::tempdir().unwrap();
        let files = PipeFiles::create(temp.path()).unwrap();
        // A killed daemon's lock is released, its files stay.
        files._lock.unlock().unwrap();
        let second = PipeFiles::create(temp.path()).unwrap();
        assert!(socket::connect(&control(temp.path())).is_ok());
        std::mem::forget(files);
        drop(second);
    }

    #[test]
    fn a_place_that_cannot_be_is_named() {
        let error = PipeFiles::create(Path::new("/dev/null/mps")).unwrap_err().to_string();
        assert!(error.contains("/dev/null/mps"), "{error}");
    }
}
