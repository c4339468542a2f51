//! Tests that are written in Python.

use std::path::Path;
use std::process::Command;

/// Whether Python is installed. Prints that the test is skipped if it is not.
#[must_use]
pub fn has_python() -> bool {
    let has = Command::new("python3").arg("--version").output().is_ok();
    if !has {
        println!("no python3 here: skipped");
    }
    has
}

/// Runs the Python tests of a directory with this command of the interpreter, if there is a Python.
/// Prints their names, and why some were skipped.
///
/// # Panics
/// If a test fails, or if no test ran.
pub fn unittest(mut python: Command, tests: &Path) {
    if !has_python() {
        return;
    }
    let run = python.args(["-B", "-m", "unittest", "discover", "-v", "-s"]).arg(tests).output();
    let output = run.expect("python3 runs");
    let said = String::from_utf8_lossy(&output.stderr);
    let has_run = said.contains("OK") && !said.contains("Ran 0 tests");
    assert!(output.status.success() && has_run, "{said}");
    println!("{said}");
}
