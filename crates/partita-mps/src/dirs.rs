//! The directories of one service and the limits on their names.

use std::fs::{DirBuilder, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::Pid;
use crate::error::MpsError;
use crate::files;

/// `sockaddr_un.sun_path` holds 108 bytes, one of them the final NUL.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The longest of the socket names that the daemon makes in its pipe directory.
const LONGEST_SOCKET: &str = "control_privileged";

/// The directories of one control daemon: its sockets, its pid file and its logs.
///
/// The directory and its contents belong to one user and no other user can enter: MPS serves one
/// user, and a process that can open the sockets can command it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceDirs {
    root: PathBuf,
    is_open: bool,
}

/// The file that marks root's service for all users.
const OPEN_MARK: &str = "all-users";
/// A number and its line end, with spare room.
const PID_BYTES_MAX: u64 = 64;

impl ServiceDirs {
    /// Names the directories under `root` without touching the file system.
    ///
    /// # Errors
    /// [`MpsError::PathTooLong`] if a socket's path would not fit in a socket address: the daemon
    /// itself would then fail to start without a message.
    pub fn new(root: &Path) -> Result<Self, MpsError> {
        let dirs = Self { root: root.to_owned(), is_open: false };
        let longest = dirs.pipe().join(LONGEST_SOCKET);
        let bytes = longest.as_os_str().as_bytes().len();
        if bytes > SOCKET_PATH_BYTES_MAX {
            return Err(MpsError::PathTooLong { path: longest, bytes, limit: SOCKET_PATH_BYTES_MAX });
        }
        Ok(dirs)
    }

    /// The same directories, which all users may enter and read: for root's service for all users.
    pub(crate) fn open_to_all(mut self) -> Self {
        self.is_open = true;
        self
    }

    /// Whether root has started a service for all users here.
    #[must_use]
    pub fn are_open_to_all(root: &Path) -> bool {
        let owner = |path: &Path| path.symlink_metadata().ok().map(|meta| meta.uid());
        owner(root) == Some(0) && owner(&root.join(OPEN_MARK)) == Some(0)
    }

    /// The directory that has the other two.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The value of `CUDA_MPS_PIPE_DIRECTORY`.
    pub fn pipe(&self) -> PathBuf {
        self.root.join("pipe")
    }

    /// The value of `CUDA_MPS_LOG_DIRECTORY`.
    pub fn log(&self) -> PathBuf {
        self.root.join("log")
    }

    /// The control daemon's log file.
    pub fn control_log(&self) -> PathBuf {
        self.log().join("control.log")
    }

    /// The servers' log file.
    pub fn server_log(&self) -> PathBuf {
        self.log().join("server.log")
    }

    /// The file that processes lock while they start or stop the service.
    pub(crate) fn start_lock(&self) -> PathBuf {
        self.root.join("start.lock")
    }

    /// The file that a process locks while it tests whether the service runs kernels.
    pub(crate) fn canary_lock(&self) -> PathBuf {
        self.root.join("canary.lock")
    }

    /// The starting daemon's output before it has a log.
    pub(crate) fn start_output(&self) -> PathBuf {
        self.log().join("start.out")
    }

    fn pid_file(&self) -> PathBuf {
        self.pipe().join("nvidia-cuda-mps-control.pid")
    }

    /// Makes the directories, or checks existing ones.
    ///
    /// # Errors
    /// [`MpsError::Directory`] if one cannot be made, is not a directory, or other users may enter
    /// it.
    pub fn create(&self) -> Result<(), MpsError> {
        for path in [self.root.clone(), self.pipe(), self.log()] {
            let refuse = |reason: String| MpsError::Directory { path: path.clone(), reason };
            let mode = if self.is_open { 0o755 } else { 0o700 };
            match DirBuilder::new().mode(mode).create(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(refuse(error.to_string())),
            }
            let meta = path.symlink_metadata().map_err(|error| refuse(error.to_string()))?;
            if !meta.is_dir() {
                return Err(refuse("it is not a directory: remove it".to_owned()));
            }
            let user = rustix::process::geteuid().as_raw();
            if meta.uid() != user {
                return Err(refuse(format!("it belongs to user {}, not to user {user}", meta.uid())));
            }
            if meta.mode() & 0o777 != mode {
                std::fs::set_permissions(&path, Permissions::from_mode(mode))
                    .map_err(|error| refuse(error.to_string()))?;
            }
        }
        let mark = self.root.join(OPEN_MARK);
        let refuse =
            |error: std::io::Error| MpsError::Directory { path: mark.clone(), reason: error.to_string() };
        if self.is_open {
            std::fs::write(&mark, "").map_err(refuse)
        } else {
            match std::fs::remove_file(&mark) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(refuse(error)),
                _ => Ok(()),
            }
        }
    }

    /// The process in the pid file, if that has a number.
    pub fn recorded_pid(&self) -> Option<Pid> {
        let text = files::read_text(&self.pid_file(), PID_BYTES_MAX).ok()?;
        text.trim().parse().ok().filter(|&pid| pid > 1)
    }

    /// Removes a dead daemon's files from the pipe directory.
    ///
    /// # Errors
    /// [`MpsError::Directory`] if a file cannot be removed.
    pub(crate) fn sweep(&self) -> Result<(), MpsError> {
        let pipe = self.pipe();
        let refuse =
            |error: std::io::Error| MpsError::Directory { path: pipe.clone(), reason: error.to_string() };
        for entry in std::fs::read_dir(&pipe).map_err(refuse)? {
            let entry = entry.map_err(refuse)?;
            if !entry.file_type().map_err(refuse)?.is_dir() {
                std::fs::remove_file(entry.path()).map_err(refuse)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paths_are_refused_before_anything_is_made() {
        let fits = "/".to_owned() + &"d".repeat(SOCKET_PATH_BYTES_MAX - "/pipe/control_privileged".len() - 1);
        assert!(ServiceDirs::new(Path::new(&fits)).is_ok());
        let error = ServiceDirs::new(Path::new(&(fits + "d"))).unwrap_err().to_string();
        assert!(error.contains("108 bytes") && error.contains("PARTITA_RUN_DIR"), "{error}");
    }

    #[test]
    fn directories_are_private_and_checked() {
        let temp = tempfile::tempdir().unwrap();
        let dirs = ServiceDirs::new(&temp.path().join("mps")).unwrap();
        dirs.create().unwrap();
        std::fs::set_permissions(dirs.pipe(), Permissions::from_mode(0o777)).unwrap();
        dirs.create().unwrap();
        for path in [dirs.root().to_owned(), dirs.pipe(), dirs.log()] {
            assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o700);
        }
        std::fs::remove_dir(dirs.log()).unwrap();
        std::os::unix::fs::symlink("/tmp", dirs.log()).unwrap();
        assert!(dirs.create().unwrap_err().to_string().contains("not a directory"));
    }

    #[test]
    fn a_service_for_all_is_open_and_marked_until_it_is_not() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("mps");
        let dirs = ServiceDirs::new(&root).unwrap();
        dirs.clone().open_to_all().create().unwrap();
        assert_eq!(dirs.pipe().metadata().unwrap().mode() & 0o777, 0o755);
        assert_eq!(ServiceDirs::are_open_to_all(&root), rustix::process::geteuid().is_root());
        dirs.create().unwrap();
        assert_eq!(dirs.pipe().metadata().unwrap().mode() & 0o777, 0o700);
        assert!(!ServiceDirs::are_open_to_all(&root));
    }

    #[test]
    fn only_a_pid_is_a_pid() {
        let temp = tempfile::tempdir().unwrap();
        let dirs = ServiceDirs::new(&temp.path().join("mps")).unwrap();
        dirs.create().unwrap();
        assert_eq!(dirs.recorded_pid(), None);
        for (text, pid) in
            [("123\n", Some(123)), ("", None), ("x", None), ("-5", None), ("0", None), ("1", None)]
        {
            std::fs::write(dirs.pid_file(), text).unwrap();
            assert_eq!(dirs.recorded_pid(), pid, "{text:?}");
        }
    }
}
