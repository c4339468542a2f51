//! Children of tests.

use std::io::Write as _;
use std::panic::Location;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The caller's variables that mean something to Partita, its simulator, libsmctrl or CUDA.
const OWN_VARIABLES: [&str; 5] = ["PARTITA_", "CUDA_", "LIBSMCTRL_", "MASK_OFF", "XDG_"];

/// Keeps from a command what the caller's environment says about GPUs and directories.
pub fn without_own_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if OWN_VARIABLES.iter().any(|own| text.starts_with(own)) {
            command.env_remove(&name);
        }
    }
}

/// A child that runs one ignored test of the calling test's program: for what may crash, hang or
/// leave a process in any state. In a program of several files (`tests/it/FILE.rs`) it is the test
/// of the caller's file, unless `name` is a path.
///
/// # Panics
/// If the program's path is not known.
#[must_use]
#[track_caller]
pub fn ignored_test(name: &str) -> Command {
    let name = match Location::caller().file().split_once("/tests/it/") {
        Some((_, file)) if !name.contains("::") => {
            let module = file.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
            format!("{module}::{name}")
        }
        _ => name.to_owned(),
    };
    let mut command = Command::new(std::env::current_exe().expect("a running test has a path"));
    command.args([&name, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command
}

/// Runs a command that succeeds.
///
/// # Panics
/// If it does not, with all that it said.
pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Writes a program, or a copy of one, that the test will run.
///
/// A child writes it. A file that this process had open for writing could be inherited by a child
/// that another thread starts at that moment, and to run it would fail with «Text file busy».
///
/// # Panics
/// If the file cannot be written.
pub fn executable(path: &Path, content: &[u8]) {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"cat >"$0" && chmod 755 "$0""#]).arg(path).stdin(Stdio::piped());
    let mut child = shell.spawn().unwrap_or_else(|error| panic!("{shell:?}: {error}"));
    child.stdin.take().expect("the pipe that was asked for").write_all(content).expect("the shell reads");
    assert!(child.wait().is_ok_and(|status| status.success()), "{} cannot be written", path.display());
}

/// Waits until something is so.
///
/// # Panics
/// If it is not within 60 seconds: reached only by a hang.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
