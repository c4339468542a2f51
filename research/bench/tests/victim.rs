//! The Python of `research/bench/victim` has its own tests for computations and output.

mod common;

use std::path::Path;

#[test]
fn the_tests_of_the_victims_benchmark_pass() {
    common::unittest(&Path::new(env!("CARGO_MANIFEST_DIR")).join("victim"));
}
