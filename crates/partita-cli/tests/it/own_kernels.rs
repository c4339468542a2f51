//! A tenant's own kernels compute, and run on the tenant's SMs.

use std::path::Path;
use std::process::Command;

use partita_testing::succeed;

use crate::common::{World, sms_of, text};

/// The kernel that every introduction to CUDA begins with, a matrix product through shared memory,
/// and one that tells where its blocks run.
#[test]
fn a_tenants_own_kernels_compute_on_its_sms() {
    let world = World::new();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let program = world.dir().join("own_kernels");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-ffp-contract=off", "-o"]).arg(&program).arg(tests.join("hook/own_kernels.c"));
    succeed(cc.arg("-ldl"));
    let samples = tests.join("../../partita-ptx/tests/ptx/kernels/samples.ptx");
    let mut command = world.partita("run --sm tpc:0-3 --mem 1GiB --".split_whitespace());
    let output = succeed(command.arg(&program).arg(samples));
    let expected = format!("vecAdd: 0 of 100000 wrong\nmatmul: 0 of 4900 wrong\nsms {}\n", sms_of("0-3"));
    assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
}
