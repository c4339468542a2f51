//! Programs' own kernels, as a C program sees them.

use crate::common;

use common::World;

/// What NVIDIA's compiler made of the sample kernels.
const SAMPLES: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/partita-ptx/tests/ptx/kernels/samples.ptx");

#[test]
fn kernels_of_the_compiler_compute() {
    World::new("samples").run_with("own", "samples", &[("SAMPLES", SAMPLES)]);
}

#[test]
fn faults_of_kernels_have_the_codes_of_hardware() {
    let world = World::new("faults");
    for case in ["illegal", "misaligned", "traps", "asserts", "recursive", "deadlock"] {
        world.run("own", case);
    }
}

#[test]
fn a_kernel_that_waits_for_the_host_ends_when_the_host_writes() {
    World::new("waits").run("own", "waits");
}

#[test]
fn kernels_take_the_time_of_the_model() {
    World::new("sleeps").run("own", "sleeps");
}

#[test]
fn unknown_instructions_are_refused_by_name_at_the_launch() {
    let output = World::new("refused").output("own", "refused", &[]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let line = "partita-sim: kernel 'product' cannot be launched: line ";
    assert!(text.contains(line) && text.contains("'mma.sync.aligned.m8n8k4"), "{text}");
    assert!(text.contains("tensor cores are not simulated"), "{text}");
}

#[test]
fn modules_are_linked() {
    World::new("linked").run("own", "linked");
}
