//! The Python of `research/bench/victim` has its own tests for computations and output.

use std::path::Path;
use std::process::Command;

use partita_testing::unittest;

#[test]
fn the_tests_of_the_victims_benchmark_pass() {
    unittest(Command::new("python3"), &Path::new(env!("CARGO_MANIFEST_DIR")).join("victim"));
}
