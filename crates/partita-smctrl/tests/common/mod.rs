//! C programs on a simulated GPU each: compiled as users compile them, with the environment that
//! the test names.
//!
//! `PARTITA_TEST_GPU=real` runs them on the machine's first GPU, if a test does not need a
//! simulated one.

// Each test file uses a part of this module.
#![allow(dead_code)]

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use partita_testing::{Machine, build, succeed, without_own_variables};

/// The directory of this package's sources.
pub fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// How a program links the library.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Link {
    Shared,
    Archive,
}

/// A directory with a driver to link with, programs, and the board of a simulated GPU.
pub struct World {
    machine: Machine,
}

impl World {
    pub fn new() -> Self {
        let machine = Machine::new("smctrl");
        fs::write(machine.path("kernels.ptx"), partita_abi::kernels::PTX_MODULE.to_bytes()).unwrap();
        Self { machine }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.machine.path(name)
    }

    /// The cache of calibrations, shared by all tests, since proving takes a second.
    pub fn calibrations(&self) -> PathBuf {
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("kept")
    }

    /// Compiles a program of `tests/c` or `examples`. Every compiler warning is an error.
    pub fn compile(&self, source: &str, link: Link) -> PathBuf {
        let folder = if source.starts_with("listing") { "examples" } else { "tests/c" };
        let extension = Path::new(source).extension().is_some();
        let file =
            sources().join(folder).join(if extension { source.to_owned() } else { format!("{source}.c") });
        let program = self.path(source.trim_end_matches(".cc"));
        let cc = if source.ends_with(".cc") { "c++" } else { "cc" };
        let mut command = Command::new(cc);
        command.args(["-O1", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-o"]).arg(&program).arg(file);
        command.arg("-I").arg(sources().join("include"));
        command.arg("-L").arg(self.machine.libraries());
        match link {
            Link::Shared => command.arg("-L").arg(build()).arg("-lsmctrl"),
            Link::Archive => command.arg(build().join("libsmctrl.a")),
        };
        command.arg("-lcuda");
        succeed(&mut command);
        program
    }

    /// A program on a device, with the kernels as its first argument.
    pub fn command(&self, program: &Path, device: &str) -> Command {
        let mut command = Command::new(program);
        command.arg(self.path("kernels.ptx"));
        self.set_environment(&mut command, device);
        command
    }

    /// Sets the environment of a program on a device.
    pub fn set_environment(&self, command: &mut Command, device: &str) {
        let mut libraries = OsString::new();
        if device == "real" {
            without_own_variables(command);
        } else {
            self.machine.surround(command, device);
            libraries.push(self.machine.libraries());
            libraries.push(":");
        }
        libraries.push(build());
        if let Some(more) = std::env::var_os("LD_LIBRARY_PATH") {
            libraries.push(":");
            libraries.push(more);
        }
        command
            .env("LD_LIBRARY_PATH", libraries)
            .env("PARTITA_LIB_DIR", build())
            .env("LIBSMCTRL_PARTITA", build().join("partita"))
            .env("PARTITA_CACHE_DIR", self.calibrations());
    }

    /// Runs a program that succeeds and prints nothing on stdout. Returns its stderr.
    pub fn passes(
        &self,
        program: &Path,
        device: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> String {
        let mut command = self.command(program, device);
        let output = command.args(arguments).envs(variables.iter().copied()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "the library printed to stdout");
        stderr_of(&output, &format!("{} on {device} {arguments:?} {variables:?}", program.display()))
    }
}

/// The stderr of a successful program.
pub fn stderr_of(output: &Output, what: &str) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{what}: {}\n{stderr}", output.status);
    stderr
}
