//! `--via persistent`: kernels rewritten into persistent blocks keep to their tenant's SMs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::{World, sms_of, text};

/// What NVIDIA's compiler made of the sample kernels.
fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../partita-ptx/tests/ptx/kernels/samples.ptx")
}

fn compiled(world: &World, name: &str) -> PathBuf {
    let program = world.dir().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hook").join(name).with_extension("c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-ffp-contract=off", "-o"]).arg(&program).arg(source).arg("-ldl");
    partita_testing::succeed(&mut cc);
    program
}

fn run(world: &World, options: &str, program: &Path, arguments: &[&str]) -> Output {
    let mut command = world.partita("run --via persistent".split_whitespace());
    command.args(options.split_whitespace()).arg("--").arg(program).args(arguments);
    command.output().unwrap()
}

fn sms(line: &str) -> BTreeSet<String> {
    line.split_whitespace().skip(1).map(str::to_owned).collect()
}

/// A kernel that every introduction to CUDA begins with, a matrix product through shared memory, and
/// one that tells where its blocks run: the same results as with masks, and no block outside.
#[test]
fn kernels_compute_the_same_on_their_sms() {
    let world = World::new();
    let program = compiled(&world, "own_kernels");
    let samples = samples();
    for set in ["0-3", "5,9,33"] {
        let output = run(&world, &format!("--sm tpc:{set} --mem 1GiB"), &program, &[samples.to_str().unwrap()]);
        let (said, complaints) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{said}{complaints}");
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[..2], ["vecAdd: 0 of 100000 wrong", "matmul: 0 of 4900 wrong"], "{complaints}");
        let (found, allowed) = (sms(lines[2]), sms(&format!("sms {}", sms_of(set))));
        assert!(!found.is_empty() && found.is_subset(&allowed), "{found:?} of {allowed:?}");
    }
}
