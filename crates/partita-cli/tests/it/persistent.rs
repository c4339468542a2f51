//! `--via persistent`: kernels rewritten into persistent blocks keep to their tenant's SMs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::bad_input;
use crate::common::{self, Answering, World, is_real, sms_of, text};

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

/// A kernel that every introduction to CUDA begins with, a matrix product through shared memory,
/// and one that tells where its blocks run: the same results as with masks, and no block outside.
#[test]
fn kernels_compute_the_same_on_their_sms() {
    let world = World::new();
    let program = compiled(&world, "own_kernels");
    let samples = samples();
    for set in ["0-3", "5,9,33"] {
        let output =
            run(&world, &format!("--sm tpc:{set} --mem 1GiB"), &program, &[samples.to_str().unwrap()]);
        let (said, complaints) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{said}{complaints}");
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[..2], ["vecAdd: 0 of 100000 wrong", "matmul: 0 of 4900 wrong"], "{complaints}");
        let (found, allowed) = (sms(lines[2]), sms(&format!("sms {}", sms_of(set))));
        assert!(!found.is_empty() && found.is_subset(&allowed), "{found:?} of {allowed:?}");
    }
}

/// The sample program of the installation, whose kernel the simulated board knows by its name: what
/// runs is the rewritten one.
#[test]
fn the_sample_program_keeps_to_its_sms() {
    let world = World::new();
    let output = run(&world, "--sm tpc:3-10", common::program(), &["sim", "census", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let census: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let found: Vec<String> = census["sms"].as_array().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(found.join(" "), sms_of("3-10"), "{census}");
    assert!(census["blocks"].as_u64().unwrap() >= 4 * 132, "{census}");
}

/// It is for drivers whose launch descriptors are unknown: nothing of them is needed.
#[test]
fn a_driver_that_cannot_be_proved_runs_them() {
    if is_real() {
        eprintln!("skipped on a real GPU: the driver is altered");
        return;
    }
    let world = bad_input::unproved();
    let mut program = start(&world, "--sm 10tpc");
    for tpcs in ["0-9", "40,65"] {
        world.ok(&format!("set keeps --sm tpc:{tpcs}"));
        let allowed = set(tpcs);
        for line in program.ask("places") {
            let found: BTreeSet<String> = line.split_whitespace().skip(2).map(str::to_owned).collect();
            assert!(!found.is_empty() && found.is_subset(&allowed), "{line}: not only {tpcs}");
        }
    }
    let beside = world.ok("run --via persistent --isolation own --sm 30% --dry-run -- true");
    assert!(beside.contains("38 of 132 SMs (tpc:0-18)"), "{beside}");
    let line = world.refused("run --via persistent --isolation own --sm gpc:0-1 -- true");
    assert!(line.contains("which TPCs share a GPC is not proved"), "{line}");
    let line = world.refused("run --isolation own --sm 30% -- true");
    assert!(line.contains("could not be proved"), "{line}");
}

/// `tests/hook/persistent.c` as a tenant.
fn start(world: &World, options: &str) -> Answering {
    let mut command = world.partita("run --name keeps --isolation own --via persistent".split_whitespace());
    command.args(options.split_whitespace()).arg("--").arg(compiled(world, "persistent"));
    let mut program = Answering::start(&mut command);
    assert_eq!(program.tenant.next_line(), "ready");
    program
}

fn set(tpcs: &str) -> BTreeSet<String> {
    sms_of(tpcs).split_whitespace().map(str::to_owned).collect()
}

#[test]
fn every_way_to_launch_obeys_new_limits_at_once() {
    let world = World::new();
    let mut program = start(&world, "--sm tpc:0-3");
    for tpcs in ["0-3", "8-11", "2,40"] {
        world.ok(&format!("set keeps --sm tpc:{tpcs}"));
        let allowed = set(tpcs);
        let mut routes = Vec::new();
        for line in program.ask("places") {
            let mut words = line.split_whitespace();
            routes.push(words.next().unwrap().to_owned());
            // 600 blocks, every one of them inside.
            assert_eq!(words.next(), Some("600"), "{line}");
            let found: BTreeSet<String> = words.map(str::to_owned).collect();
            assert!(!found.is_empty() && found.is_subset(&allowed), "{line}: not only {tpcs}");
        }
        assert_eq!(routes, ["stream", "default", "extra", "ex", "graph"]);
    }
    let ps: serde_json::Value = serde_json::from_str(&world.ok("ps --json")).unwrap();
    assert_eq!(ps[0]["via"], "persistent", "{ps}");
    // Four routes in three rounds, and the captured launch. What a graph launches is not counted.
    assert_eq!(ps[0]["launches"], 13, "{ps}");
}

#[test]
fn a_kernel_that_runs_leaves_sms_at_the_end_of_a_block() {
    let world = World::new();
    let mut program = start(&world, "--sm tpc:0-3");
    program.ask("begin 400");
    program.ask("go 100");
    world.ok("set keeps --sm tpc:2");
    program.ask("touch");
    program.ask("go 400");
    let order = program.line("order 400");
    let places: Vec<&str> = order.split_whitespace().collect();
    assert_eq!(places.len(), 400);
    let (before, now) = (set("0-3"), set("2"));
    assert!(places.iter().all(|sm| before.contains(*sm)), "every block ran, and inside: {order}");
    // Blocks that had a number finish it, and others take a few before one inside takes its next.
    assert!(places[300..].iter().all(|sm| now.contains(*sm)), "{order}");
    assert!(places[..100].iter().any(|sm| !now.contains(*sm)), "{order}");
}

/// No call of the program brings the set to the GPU: the hook's thread does.
#[test]
fn a_kernel_leaves_sms_while_its_program_waits() {
    let world = World::new();
    let mut program = start(&world, "--sm tpc:0-3");
    let now = set("2");
    let leaves = |nap_ms: &u64| {
        world.ok("set keeps --sm tpc:0-3");
        program.ask("begin 400");
        program.ask("go 100");
        world.ok("set keeps --sm tpc:2");
        std::thread::sleep(std::time::Duration::from_millis(*nap_ms));
        program.ask("go 400");
        program.line("order 400").split_whitespace().skip(300).all(|sm| now.contains(sm))
    };
    // The thread looks every 5 ms, if the machine lets it.
    assert!([100, 1000, 10_000].iter().any(leaves));
}

#[test]
fn what_cannot_run_as_persistent_blocks_is_refused_by_name() {
    let world = World::new();
    let mut program = start(&world, "--sm tpc:0-3");
    assert_eq!(
        program.ask("refusals"),
        [
            "cooperative 720",
            "cluster 912",
            "clustered 500",
            "cubin 209",
            "no-ptx 218",
            "again 801",
            "clone 801",
            "node 801",
        ]
    );
    // The program sees its own parameters and shared memory.
    assert_eq!(program.ask("seen"), ["parameters 0 0 8, 0 8 4, 1 shared 64"]);
    let said = program.complaints();
    for line in [
        "kernel 'clustered', line ",
        "'.reqnctapercluster': the kernel needs clusters: it cannot run as persistent blocks",
        "kernel 'product' was refused: it has no PTX for this GPU",
        "a cooperative launch was refused",
        "a launch with clusters was refused",
        "a second executable of a graph was refused",
        "a kernel node of a graph was refused",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let refused = world.refused("run --via persistent --time 30% -- true");
    assert!(refused.contains("--via persistent with --time or --priority"), "{refused}");
}
