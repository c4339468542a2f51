//! MIG instances: listed like GPUs, refused where masks would be needed, and limited by a memory
//! quota if the environment gives one.

use crate::common;

use std::process::Command;

use common::container::{Container, MEMORY, program};
use common::{World, needs_simulator, text};
use partita_testing::succeed;
use serde_json::Value;

const CUT: &str = "3g.71gb,1g.18gb";

/// A simulated machine whose GPU is in MIG mode.
fn machine(_: &std::path::Path) -> common::Variables {
    vec![("PARTITA_SIM_MIG", CUT.into())]
}

fn partita(world: &World, line: &str) -> Command {
    world.partita(line.split_whitespace())
}

/// The GPU in the output of `devices`.
fn gpu(world: &World) -> Value {
    let told = succeed(&mut partita(world, "devices --gpu sim:h200 --json"));
    let rows: Value = serde_json::from_slice(&told.stdout).unwrap();
    rows[0].clone()
}

fn names(gpu: &Value) -> Vec<String> {
    let instances = gpu["mig_instances"].as_array().unwrap();
    instances.iter().map(|instance| instance["uuid"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn instances_are_listed_and_no_tenant_is_made_on_a_gpu_that_is_cut_up() {
    if needs_simulator("it cuts the GPU up") {
        return;
    }
    let world = World::plan().on(machine);
    let gpu = gpu(&world);
    assert_eq!(gpu["mig_enabled"], true);
    let [first, second] = &names(&gpu)[..] else { panic!("{gpu}") };
    assert!(first.starts_with("MIG-") && second.starts_with("MIG-") && first != second, "{gpu}");
    assert_eq!(gpu["mig_instances"][1]["name"], "NVIDIA H200 MIG 1g.18gb");
    assert_eq!(gpu["mig_instances"][1]["memory_total_bytes"], 16u64 << 30);
    let table = text(&succeed(&mut partita(&world, "devices --gpu sim:h200")).stdout);
    assert!(table.contains(first) && table.contains("  1g.18gb"), "{table}");

    let refused = common::refusal(&mut partita(&world, "run --gpu sim:h200 --sm 25% -- true"));
    assert!(refused.contains("cut up by MIG") && refused.contains("CUDA_VISIBLE_DEVICES=MIG-"), "{refused}");
    let doctor = partita(&world, "doctor --gpu sim:h200").output().unwrap();
    let said = text(&doctor.stdout);
    assert!(!doctor.status.success(), "{said}");
    assert!(said.contains(&format!("{first} is 3g.71gb, {second} is 1g.18gb")), "{said}");
    // Without that, the GPU is whole.
    let whole = succeed(&mut partita(&World::new(), "devices --gpu sim:h200 --json"));
    let whole: Value = serde_json::from_slice(&whole.stdout).unwrap();
    assert_eq!((&whole[0]["mig_enabled"], names(&whole[0]).len()), (&Value::from(false), 0));
}

#[test]
fn a_quota_holds_in_an_instance_however_the_list_names_it() {
    if needs_simulator("it cuts the GPU up") {
        return;
    }
    let world = World::plan().own().on(machine);
    let gpu = gpu(&world);
    let [first, second] = &names(&gpu)[..] else { panic!("{gpu}") };
    let container = Container::new(&world, "cut").with("PARTITA_SIM_MIG", CUT).with(MEMORY, "64m");
    let visible = program(&world, "visible");
    let sees = |list: &str| {
        let mut command = container.command(&visible);
        command.env("CUDA_VISIBLE_DEVICES", list);
        text(&command.output().unwrap().stdout).trim_end().to_owned()
    };
    let uuid = gpu["uuid"].as_str().unwrap();
    for list in [
        first.clone(),
        second.clone(),
        second[..12].to_owned(),
        format!("MIG-{uuid}/1/0"),
        format!("MIG-{uuid}/2/0"),
        // The GPU's own names mean its first instance, and an instance is alone.
        "0".to_owned(),
        uuid.to_owned(),
        format!("{second},{first}"),
    ] {
        assert_eq!(sees(&list), "64", "{list}");
    }
    for list in ["1", "MIG-", &format!("MIG-{uuid}/3/0"), &format!("MIG-{uuid}"), "GPU-0/1/0"] {
        assert_eq!(sees(list), "code 100", "{list}");
    }
    // Each instance has its own account, by its own name.
    let at_once = |name: &str| {
        let mut command = container.command(&program(&world, "spill"));
        command.env("CUDA_VISIBLE_DEVICES", name);
        common::Answering::start(&mut command)
    };
    let (mut one, mut same, mut other) = (at_once(first), at_once(first), at_once(second));
    assert_eq!(one.line("a 48"), "0 16");
    assert_eq!(other.line("a 64"), "0 0");
    assert_eq!(same.line("a 17"), "2 16");
    assert_eq!(same.line("a 16"), "0 0");
    let rows = container.rows();
    let mut told: Vec<_> =
        rows.iter().map(|row| (row["gpu_uuid"].as_str(), &row["memory_used_bytes"])).collect();
    told.sort_by_key(|(uuid, _)| *uuid != Some(first));
    let full = Value::from(64 << 20);
    assert_eq!(told, [(Some(first.as_str()), &full), (Some(second.as_str()), &full)]);
    // The audit finds the processes in the instances, and no escaped one.
    let mut audit = partita(&world, "ps --audit --json");
    let output = audit
        .envs(common::container::driver(&world))
        .env("PARTITA_RUN_DIR", container.root())
        .output()
        .unwrap();
    let rows: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|wrong| panic!("{wrong}: {output:?}"));
    let ledgers: Vec<_> =
        rows.as_array().unwrap().iter().map(|row| row["ledger_bytes"].as_u64().unwrap() >> 20).collect();
    assert_eq!(
        (output.status.code(), ledgers.iter().sum::<u64>(), ledgers.len()),
        (Some(0), 128, 3),
        "{rows}"
    );
    drop((one, same, other));
    // The management library reports the quota for the instance too.
    let mut command = container.command(&program(&world, "nvml"));
    let mut asked = common::Answering::start(command.arg(first).env("CUDA_VISIBLE_DEVICES", first));
    assert!(asked.ask("i").is_empty() && asked.ask("a").is_empty());
    assert_eq!(asked.line("l"), "total 64 used 64 free 0 processes self:64");
}
