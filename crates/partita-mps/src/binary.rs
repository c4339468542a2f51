//! Find the control binary and query its version.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::MpsError;
use crate::exec::{self, Outcome};

/// The name of the control program on every Linux driver.
pub const NAME: &str = "nvidia-cuda-mps-control";

/// The name of the server's program, which the daemon starts. It is installed beside the control
/// program.
pub const SERVER_NAME: &str = "nvidia-cuda-mps-server";

/// The directories searched without a `PATH`.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The time limit of `-v`.
const VERSION_LIMIT: Duration = Duration::from_secs(10);

/// The control program of the installed driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlBinary {
    path: PathBuf,
}

/// The output of `-v`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// The CUDA version as one number, thousands for the major: 13000 is 13.0.
    pub number: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.number / 1000, self.number % 1000 / 10)
    }
}

impl ControlBinary {
    /// The program at `path`.
    ///
    /// # Errors
    /// [`MpsError::BinaryNotFound`] if there is no executable file.
    pub fn at(path: &Path) -> Result<Self, MpsError> {
        if is_executable(path) {
            Ok(Self { path: path.to_owned() })
        } else {
            Err(MpsError::BinaryNotFound { searched: format!("no executable file {}", path.display()) })
        }
    }

    /// The first program of that name in the directories of `search_path`, a value in the form of
    /// `PATH`. Without one it searches the shells' default directories: batch systems give their
    /// scripts an empty environment.
    ///
    /// # Errors
    /// [`MpsError::BinaryNotFound`] if none has an executable file of that name.
    pub fn find(search_path: Option<&OsStr>) -> Result<Self, MpsError> {
        let given = search_path.filter(|path| !path.is_empty());
        let search_path = given.unwrap_or(OsStr::new(PATH_DEFAULT));
        std::env::split_paths(search_path)
            .filter(|dir| dir.is_absolute())
            .map(|dir| dir.join(NAME))
            .find(|path| is_executable(path))
            .map(|path| Self { path })
            .ok_or_else(|| MpsError::BinaryNotFound {
                searched: match given {
                    Some(path) => format!("not in PATH={}", path.to_string_lossy()),
                    None => format!("PATH is not set, and it is not in {PATH_DEFAULT}"),
                },
            })
    }

    /// The program's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Queries the program's version. Needs no running daemon.
    ///
    /// # Errors
    /// [`MpsError::Spawn`], [`MpsError::Timeout`], or [`MpsError::NoVersion`] if the answer has no
    /// number of the expected form.
    pub fn version(&self) -> Result<Version, MpsError> {
        Self::query(&self.path)
    }

    /// Queries the version of the server's program. Starts no server.
    ///
    /// # Errors
    /// [`MpsError::BinaryNotFound`] if it is not beside the control program; then as
    /// [`Self::version`].
    pub fn server_version(&self) -> Result<Version, MpsError> {
        let server = self.path.with_file_name(SERVER_NAME);
        if !is_executable(&server) {
            return Err(MpsError::BinaryNotFound {
                searched: format!("the daemon starts {}, which is no executable file", server.display()),
            });
        }
        Self::query(&server)
    }

    fn query(program: &Path) -> Result<Version, MpsError> {
        let mut command = Command::new(program);
        command.arg("-v").env_remove("LD_PRELOAD");
        let outcome = exec::run(&mut command, "", VERSION_LIMIT)
            .map_err(|source| MpsError::Spawn { binary: program.to_owned(), source })?;
        match outcome {
            Outcome::TimedOut => {
                Err(MpsError::Timeout { command: "-v".to_owned(), waited_s: VERSION_LIMIT.as_secs() })
            }
            Outcome::Done { output, .. } => parse_version(&output).ok_or_else(|| MpsError::NoVersion {
                binary: program.to_owned(),
                reply: output.trim().to_owned(),
            }),
        }
    }
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Reads `13000` (alone or after a label) or `13.0`.
fn parse_version(reply: &str) -> Option<Version> {
    let word = reply
        .split(|c: char| !(c.is_ascii_digit() || c == '.'))
        .map(|word| word.trim_matches('.'))
        .find(|word| !word.is_empty())?;
    let number = match word.split_once('.') {
        None => word.parse().ok()?,
        Some((major, rest)) => {
            let minor: u32 = rest.split('.').next()?.parse().ok()?;
            major.parse::<u32>().ok()?.checked_mul(1000)?.checked_add(minor.checked_mul(10)?)?
        }
    };
    (1000..1_000_000).contains(&number).then_some(Version { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_every_known_form() {
        for (reply, shown) in [
            ("13000\n", "13.0"),
            (
                "CUDA MPS Control for Linux/Unix/QNX. Binary version: 13010\nCopyright (C) 2003 - 2025\n",
                "13.1",
            ),
            ("CUDA MPS Control binary version: 12040", "12.4"),
            ("13.4\n", "13.4"),
        ] {
            assert_eq!(parse_version(reply).expect(reply).to_string(), shown, "{reply:?}");
        }
        for reply in ["", "no version here", "7", ".", "99999999999999999999", "1.x"] {
            assert_eq!(parse_version(reply), None, "{reply:?}");
        }
    }

    #[test]
    fn the_servers_program_is_beside_the_control_program() {
        let dir = tempfile::tempdir().unwrap();
        let install = |name, version: &str| {
            let file = dir.path().join(name);
            std::fs::write(&file, format!("#!/bin/sh\necho {version}\n")).unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
            file
        };
        let control = ControlBinary::at(&install(NAME, "13000")).unwrap();
        let missing = control.server_version().unwrap_err();
        assert!(missing.to_string().contains(SERVER_NAME), "{missing}");
        install(SERVER_NAME, "12040");
        assert_eq!(control.server_version().unwrap().to_string(), "12.4");
    }

    #[test]
    fn only_executables_in_absolute_directories_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(NAME);
        std::fs::write(&file, "#!/bin/sh\necho 13000\n").unwrap();
        let search = dir.path().as_os_str();
        assert!(ControlBinary::find(Some(search)).is_err(), "not executable");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(ControlBinary::find(Some(search)).unwrap().path(), file);
        assert!(ControlBinary::find(Some(OsStr::new("relative"))).is_err());
        for unset in [None, Some(OsStr::new(""))] {
            match ControlBinary::find(unset) {
                Ok(binary) => assert!(PATH_DEFAULT.split(':').any(|dir| binary.path().starts_with(dir))),
                Err(error) => assert!(error.to_string().contains("PATH is not set"), "{error}"),
            }
        }
        assert_eq!(ControlBinary::at(&file).unwrap().version().unwrap().number, 13000);
    }
}
