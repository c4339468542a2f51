//! A simulated GPU of a test's own, and C programs that run on it.
//!
//! The programs in `c/` declare what they use of the driver API themselves and are linked against the library
//! under the name of the real one, as any program is.

// Each test file uses a part of this.
#![allow(dead_code)]

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};

/// The shared object, built beside this package's programs if it is not up to date: it is a package of its own.
pub fn library() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let library = BUILT.get_or_init(|| {
        let executable = std::env::current_exe().unwrap();
        // TARGET/PROFILE/deps/TEST
        let profile = executable.ancestors().nth(2).expect("tests lie in a target directory").to_owned();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet"]);
        // The same packages as the command line's tests build, so that neither builds them anew.
        for package in ["partita-simcuda", "partita-simcuda-so", "partita-hook"] {
            cargo.args(["--package", package]);
        }
        cargo.arg("--target-dir").arg(profile.parent().expect("a profile is in the target directory"));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        cargo.arg("--manifest-path").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
        assert!(cargo.status().expect("cargo runs").success(), "the library is built");
        profile.join("libpartita_simcuda.so")
    });
    library.clone()
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c")
}

/// A directory with the library under its real names; shared by the tests of one file.
fn links() -> PathBuf {
    static MADE: Once = Once::new();
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("links-{}", std::process::id()));
    MADE.call_once(|| {
        std::fs::create_dir_all(&dir).unwrap();
        for name in ["libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"] {
            let _ = std::fs::remove_file(dir.join(name));
            symlink(library(), dir.join(name)).unwrap();
        }
    });
    dir
}

/// Compiles a program of `c/`.
fn compile(name: &str) -> PathBuf {
    let program = links().join(format!("{name}-{:?}", std::thread::current().id()).replace(['(', ')'], ""));
    let output = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .arg(sources().join(format!("{name}.c")))
        .arg("-L")
        .arg(links())
        .args(["-lcuda", "-lm"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// A place for a board that nobody else uses.
pub struct World {
    dir: PathBuf,
    device: &'static str,
}

impl World {
    /// A world with an H200.
    pub fn new(name: &str) -> Self {
        Self::with(name, "h200")
    }

    /// A world with another device.
    pub fn with(name: &str, device: &'static str) -> Self {
        // Short, because socket paths are.
        let dir = std::env::temp_dir().join(format!("psc-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Self { dir, device }
    }

    /// The board's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A command with this world's environment and nothing of the caller's own simulation.
    pub fn command(&self, program: impl Into<OsString>) -> Command {
        let mut command = Command::new(program.into());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("PARTITA_") || text.starts_with("CUDA_") {
                command.env_remove(&name);
            }
        }
        command
            .env("LD_LIBRARY_PATH", links())
            .env("PARTITA_SIM_DIR", &self.dir)
            .env("PARTITA_SIM_DEVICE", self.device)
            .env("PARTITA_SIMGPU", env!("CARGO_BIN_EXE_partita-simgpu"))
            // Nobody listens there: these programs are no MPS clients.
            .env("CUDA_MPS_PIPE_DIRECTORY", self.dir.join("no-mps"))
            .stdin(Stdio::null());
        command
    }

    /// Runs a program of `c/` with a case's name and expects it to succeed. Returns what it printed.
    pub fn run(&self, program: &str, case: &str) -> String {
        self.run_with(program, case, &[])
    }

    /// As [`Self::run`], with more environment.
    pub fn run_with(&self, program: &str, case: &str, env: &[(&str, &str)]) -> String {
        let output = self.output(program, case, env);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(
            output.status.success(),
            "{program} {case}: {} (signal {:?})\n{out}{err}",
            output.status,
            output.status.signal()
        );
        out.into_owned()
    }

    /// Runs a program of `c/`, whatever comes of it.
    pub fn output(&self, program: &str, case: &str, env: &[(&str, &str)]) -> Output {
        let mut command = self.command(compile(program));
        command.arg(case).envs(env.iter().copied());
        finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(), program, case)
    }

    /// Starts a program of `c/`; its standard input and output are pipes.
    pub fn spawn(&self, program: &str, case: &str, env: &[(&str, &str)]) -> Child {
        let mut command = self.command(compile(program));
        command.arg(case).envs(env.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Whether a board has files here.
    pub fn is_clean(&self) -> bool {
        !self.dir.exists()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        eventually("the board has gone and left nothing", || self.is_clean());
    }
}

/// Waits for a program, but not for ever: a hang is a finding.
fn finish(mut child: Child, program: &str, case: &str) -> Output {
    let start = Instant::now();
    loop {
        if child.try_wait().unwrap().is_some() {
            return child.wait_with_output().unwrap();
        }
        if start.elapsed() > Duration::from_secs(30) {
            let _ = child.kill();
            let output = child.wait_with_output().unwrap();
            panic!(
                "{program} {case} hangs\n{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until something is so.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
