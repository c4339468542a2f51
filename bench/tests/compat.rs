//! What the Python of `bench/compat` chooses, runs, judges and prints has tests of its own.

use std::path::Path;
use std::process::Command;

#[test]
fn the_tests_of_the_compatibility_benchmark_pass() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("compat");
    let run = Command::new("python3").args(["-B", "-m", "unittest", "discover", "-s"]).arg(tests).output();
    let Ok(output) = run else {
        println!("no python3 here: skipped");
        return;
    };
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("OK"), "{told}");
}
