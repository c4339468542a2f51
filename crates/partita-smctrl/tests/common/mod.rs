//! C programs on a GPU of their own: compiled as their users would, run with nothing around them but what a test names.
//!
//! `PARTITA_TEST_GPU=real` runs them on the machine's first GPU, where a test does not need a simulated one.

// Each test file uses a part of this.
#![allow(dead_code)]

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

pub fn is_real() -> bool {
    std::env::var_os("PARTITA_TEST_GPU").is_some_and(|value| value == "real")
}

/// The devices to run on: the real one, or these.
pub fn devices<'d>(simulated: &[&'d str]) -> Vec<&'d str> {
    if is_real() { vec!["real"] } else { simulated.to_vec() }
}

/// For tests that need the simulator: says so and tells to stop.
pub fn needs_simulator(why: &str) -> bool {
    if is_real() {
        eprintln!("skipped on a real GPU: {why}");
    }
    is_real()
}

/// The directory of this package's sources.
pub fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The directory of the built programs and libraries, built if they are not up to date.
pub fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(dir) = std::env::var_os("PARTITA_TEST_LIB_DIR") {
            return dir.into();
        }
        let executable = std::env::current_exe().unwrap();
        // TARGET/PROFILE/deps/TEST
        let profile = executable.ancestors().nth(2).expect("tests lie in a target directory").to_owned();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet"]);
        for package in
            ["partita-smctrl", "partita-simcuda", "partita-simcuda-so", "partita-hook", "partita-cli"]
        {
            cargo.args(["--package", package]);
        }
        cargo.arg("--target-dir").arg(profile.parent().expect("a profile is in the target directory"));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        cargo.arg("--manifest-path").arg(sources().join("Cargo.toml"));
        assert!(cargo.status().expect("cargo runs").success(), "the libraries are built");
        profile
    })
}

/// How a program gets the library.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Link {
    Shared,
    Archive,
}

/// A directory with a driver to link with, programs, and the board of a simulated GPU.
pub struct World {
    temp: tempfile::TempDir,
}

impl World {
    pub fn new() -> Self {
        // Short: socket paths have 107 bytes.
        let temp = tempfile::Builder::new().prefix("ps").tempdir_in("/tmp").unwrap();
        let lib = temp.path().join("lib");
        fs::create_dir(&lib).unwrap();
        let simulator = built().join("libpartita_simcuda.so");
        for name in ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"] {
            symlink(&simulator, lib.join(name)).unwrap();
        }
        fs::write(temp.path().join("kernels.ptx"), partita_abi::kernels::PTX_MODULE.to_bytes()).unwrap();
        Self { temp }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// Where calibrations are kept: for all tests together, since proving takes a second.
    pub fn kept(&self) -> PathBuf {
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("kept")
    }

    /// Compiles a program of `tests/c` or `examples`. Everything that a compiler complains about is an error.
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
        command.arg("-L").arg(self.path("lib"));
        match link {
            Link::Shared => command.arg("-L").arg(built()).arg("-lsmctrl"),
            Link::Archive => command.arg(built().join("libsmctrl.a")),
        };
        command.arg("-lcuda");
        let output = command.output().expect("the tests need a C compiler, `cc`");
        assert!(output.status.success(), "{source}: {}", String::from_utf8_lossy(&output.stderr));
        program
    }

    /// A program with the kernels as its first argument, on a device.
    pub fn command(&self, program: &Path, device: &str) -> Command {
        let mut command = Command::new(program);
        command.arg(self.path("kernels.ptx"));
        self.surround(&mut command, device);
        command
    }

    /// The environment of a program on a device.
    pub fn surround(&self, command: &mut Command, device: &str) {
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["PARTITA_", "CUDA_", "LIBSMCTRL_", "XDG_", "MASK_OFF"].iter().any(|own| text.starts_with(own))
            {
                command.env_remove(&name);
            }
        }
        let mut libraries = OsString::new();
        if device != "real" {
            libraries.push(self.path("lib"));
            libraries.push(":");
            command
                .env("PARTITA_SIM_DIR", self.path("board"))
                .env("PARTITA_SIM_DEVICE", device)
                .env("PARTITA_SIMGPU", built().join("partita-simgpu"))
                .env("CUDA_MPS_PIPE_DIRECTORY", self.path("no-mps"));
        }
        libraries.push(built());
        if let Some(more) = std::env::var_os("LD_LIBRARY_PATH") {
            libraries.push(":");
            libraries.push(more);
        }
        command
            .env("LD_LIBRARY_PATH", libraries)
            .env("PARTITA_LIB_DIR", built())
            .env("LIBSMCTRL_PARTITA", built().join("partita"))
            .env("PARTITA_CACHE_DIR", self.kept());
    }

    /// Runs a program that succeeds and prints nothing. Returns what it said on stderr.
    pub fn passes(
        &self,
        program: &Path,
        device: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> String {
        let mut command = self.command(program, device);
        let output = command.args(arguments).envs(variables.iter().copied()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "nothing is printed for a program");
        said(&output, &format!("{} on {device} {arguments:?} {variables:?}", program.display()))
    }
}

/// What a successful program said on stderr.
pub fn said(output: &Output, what: &str) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{what}: {}\n{stderr}", output.status);
    stderr
}
