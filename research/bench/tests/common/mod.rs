//! Helpers of the tests of the Python benchmarks.

use std::path::Path;
use std::process::Command;

/// Whether Python is installed. Prints that the test is skipped if it is not.
pub fn has_python() -> bool {
    let has = Command::new("python3").arg("--version").output().is_ok();
    if !has {
        println!("no python3 here: skipped");
    }
    has
}

/// Runs the Python tests of a directory, if there is a Python.
///
/// # Panics
/// If a test fails, or if no test ran.
pub fn unittest(scripts: &Path) {
    if !has_python() {
        return;
    }
    let run = Command::new("python3").args(["-B", "-m", "unittest", "discover", "-s"]).arg(scripts).output();
    let output = run.expect("python3 runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("OK"), "{told}");
}
