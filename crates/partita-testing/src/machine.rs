//! A simulated machine of a test's own.

use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::built::build;
use crate::child::without_own_variables;

/// Makes the directory of a test's simulated boards, which have the same identifiers in every test:
/// what one test has measured of them, the next ones find in the directory of calibrations.
///
/// # Panics
/// If it exists, or cannot be made.
pub fn make_boards(dir: &Path) {
    std::fs::DirBuilder::new().mode(0o700).create(dir).expect("a new directory");
    std::fs::write(dir.join("serial"), "tests").expect("a new file");
}

/// A directory with the simulated driver under the real one's names, and with the board of a
/// simulated GPU while a program runs there.
///
/// It goes with the test that owns it. A board that waits for another client then ends by itself.
#[derive(Debug)]
pub struct Machine {
    temp: tempfile::TempDir,
}

impl Machine {
    /// A machine with the built libraries. The name only identifies the directory for readers.
    ///
    /// # Panics
    /// If the directory cannot be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        // Short, and not where TMPDIR may point: paths of sockets have 107 bytes.
        let temp = tempfile::Builder::new()
            .prefix(&format!("pt-{name}-"))
            .tempdir_in("/tmp")
            .expect("a directory in /tmp");
        let machine = Self { temp };
        std::fs::create_dir(machine.libraries()).expect("a new directory");
        let simulator = build().join("libpartita_simcuda.so");
        for name in ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"] {
            symlink(&simulator, machine.libraries().join(name)).expect("a new link");
        }
        machine
    }

    /// A path in the machine's directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// The directory of the driver's libraries.
    #[must_use]
    pub fn libraries(&self) -> PathBuf {
        self.path("lib")
    }

    /// The directory of the simulated GPU, which it makes and removes itself.
    #[must_use]
    pub fn board(&self) -> PathBuf {
        self.path("board")
    }

    /// Gives a program this machine with such a device, and nothing of the caller's own simulation.
    /// It is no client of MPS.
    pub fn surround(&self, command: &mut Command, device: &str) {
        without_own_variables(command);
        command
            .env("LD_LIBRARY_PATH", self.libraries())
            .env("PARTITA_SIM_DIR", self.board())
            .env("PARTITA_SIM_DEVICE", device)
            .env("PARTITA_SIMGPU", build().join("partita-simgpu"))
            // No daemon listens there.
            .env("CUDA_MPS_PIPE_DIRECTORY", self.path("no-mps"));
    }
}
