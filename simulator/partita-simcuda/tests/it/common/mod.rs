//! A simulated GPU for a test, and C programs that run on it.
//!
//! The programs in `c/` declare the driver calls that they use and are linked against the library
//! under the name of the real one, as any program is.

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub use partita_testing::eventually;
use partita_testing::{Machine, build, succeed};

/// The shared object.
pub fn library() -> PathBuf {
    build().join("libpartita_simcuda.so")
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c")
}

/// A machine of a test's own.
pub struct World {
    machine: Machine,
    device: &'static str,
}

impl World {
    /// A world with an H200.
    pub fn new(name: &str) -> Self {
        Self::with(name, "h200")
    }

    /// A world with another device.
    pub fn with(name: &str, device: &'static str) -> Self {
        Self { machine: Machine::new(name), device }
    }

    /// The board's directory.
    pub fn dir(&self) -> PathBuf {
        self.machine.board()
    }

    /// A command with this world's environment and without the caller's simulation settings.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        self.machine.surround(&mut command, self.device);
        command.stdin(Stdio::null());
        command
    }

    /// Compiles a program of `c/`.
    fn compile(&self, name: &str) -> PathBuf {
        let program = self.machine.path(name);
        if !program.exists() {
            let mut cc = Command::new("cc");
            cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&program);
            cc.arg(sources().join(format!("{name}.c"))).arg("-L").arg(self.machine.libraries());
            succeed(cc.args(["-lcuda", "-lm"]));
        }
        program
    }

    /// Runs a program of `c/` with a case's name and expects it to succeed. Returns what it
    /// printed.
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

    /// Runs a program of `c/` and returns its output, even if it fails.
    pub fn output(&self, program: &str, case: &str, env: &[(&str, &str)]) -> Output {
        let mut command = self.command(self.compile(program));
        command.arg(case).envs(env.iter().copied());
        finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(), program, case)
    }

    /// Starts a program of `c/`; its standard input and output are pipes.
    pub fn spawn(&self, program: &str, case: &str, env: &[(&str, &str)]) -> Child {
        let mut command = self.command(self.compile(program));
        command.arg(case).envs(env.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Whether a board has files here.
    pub fn is_clean(&self) -> bool {
        !self.dir().exists()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        eventually("the board has exited and left no files", || self.is_clean());
    }
}

/// Waits for a program, but not for ever: a hang is a finding.
fn finish(mut child: Child, program: &str, case: &str) -> Output {
    let start = Instant::now();
    loop {
        if child.try_wait().unwrap().is_some() {
            return child.wait_with_output().unwrap();
        }
        if start.elapsed() > Duration::from_secs(120) {
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
