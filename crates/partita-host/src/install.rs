//! Where the parts of this installation are.
//!
//! Partita's programs and shared libraries work only together, so they are
//! looked for where the running program is: beside it (a build directory) or
//! in `../lib/partita` (an installation). `PARTITA_LIB_DIR` overrides both.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::error::Error;
pub use crate::error::OWN_ERROR;

/// The library that is preloaded into tenants.
pub const HOOK: &str = "libpartita.so";
/// The simulated driver: libcuda and libnvidia-ml in one.
pub const SIMCUDA: &str = "libpartita_simcuda.so";
/// The process that is the simulated GPU's board.
pub const SIMGPU: &str = "partita-simgpu";
/// The simulated MPS control program.
pub const SIM_MPS_CONTROL: &str = "partita-sim-mps-control";

/// The SPANK plugin, without a version of Slurm.
pub const SPANK: &str = "libspank_partita.so";

/// The daemon, which is the keeper of chains' memory too.
pub const DAEMON: &str = "partitad";

/// The command-line program.
pub const COMMAND: &str = "partita";

/// The parts of one installation.
#[derive(Debug, Clone)]
pub struct Install {
    program: PathBuf,
    directories: Vec<PathBuf>,
}

impl Install {
    /// The installation that the running program belongs to.
    ///
    /// # Errors
    /// [`Error::Program`] if the running program's path is unknown.
    pub fn of_this_program() -> Result<Self, Error> {
        let program = std::env::current_exe()
            .map_err(|source| Error::Io { what: "the path of the running program".to_owned(), source })?;
        Ok(Self::of(program, std::env::var_os("PARTITA_LIB_DIR")))
    }

    /// The installation that has `program` as its command-line program.
    pub fn of(program: PathBuf, library_directory: Option<OsString>) -> Self {
        let directories = match library_directory {
            Some(directory) => vec![PathBuf::from(directory)],
            None => {
                let bin = program.parent().unwrap_or(Path::new("/")).to_owned();
                vec![bin.clone(), bin.join("../lib/partita")]
            }
        };
        Self { program, directories }
    }

    /// The `partita` program itself: it runs whatever may hang or crash in a
    /// child process of itself.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The path of a part.
    ///
    /// # Errors
    /// [`Error::PartMissing`] if it is nowhere.
    pub fn part(&self, name: &'static str) -> Result<PathBuf, Error> {
        self.directories
            .iter()
            .map(|directory| directory.join(name))
            .find(|path| path.is_file())
            .and_then(|path| path.canonicalize().ok())
            .ok_or_else(|| Error::PartMissing {
                name,
                searched: self
                    .directories
                    .iter()
                    .map(|directory| directory.display().to_string())
                    .collect::<Vec<_>>()
                    .join(", "),
            })
    }
}
