//! A tenant on every simulated device: the whole path from `partita run` through the hook into each
//! generation's launch descriptors.

use crate::common;

use common::{World, gpu_program, needs_simulator, sms, text};
use partita_testing::{SIMULATED_DEVICES, is_for_long_runs};
use serde_json::Value;

/// The SMs that a program's blocks ran on, as a tenant with these TPCs.
fn census(world: &World, device: &str, set: &str) -> Vec<u32> {
    let (program, kernels) = gpu_program();
    let mut command =
        world.partita(["run", "--isolation", "own", "--mem", "64MiB", "--gpu", device, "--sm", set, "--"]);
    let output = command.arg(program).arg(kernels).arg("census").output().expect("partita runs");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{device} {set}: {out}{err}");
    sms(out.lines().last().unwrap_or_default())
}

fn tenants_stay_in_their_tpcs(device: &str) {
    if needs_simulator("it is about the catalogue") || is_for_long_runs(device) {
        return;
    }
    let world = World::new();
    let chart: Value =
        serde_json::from_str(&world.ok(&format!("topology --json --gpu {device}"))).expect("JSON");
    let (all, tpcs) = (chart["sms"].as_u64().unwrap() as u32, chart["tpcs"].as_u64().unwrap() as u32);
    let per_tpc = all / tpcs;
    let expected =
        |tpcs: std::ops::Range<u32>| -> Vec<u32> { (tpcs.start * per_tpc..tpcs.end * per_tpc).collect() };
    // The smallest partition, at both ends of the device: beyond 64 TPCs if it has as many.
    assert_eq!(census(&world, device, "tpc:0"), expected(0..1));
    assert_eq!(census(&world, device, &format!("tpc:{}", tpcs - 1)), expected(tpcs - 1..tpcs));
    let half = tpcs / 2;
    assert_eq!(census(&world, device, &format!("tpc:{half}-{}", tpcs - 1)), expected(half..tpcs));
    // Only the requested TPCs are masked.
    assert_eq!(census(&world, device, "100%"), expected(0..tpcs));
}

/// One test a device.
macro_rules! devices {
    ($($test:ident = $device:literal;)*) => {
        $(#[test]
        fn $test() {
            tenants_stay_in_their_tpcs(concat!("sim:", $device));
        })*
    };
}

partita_testing::for_simulated_devices!(devices);

#[test]
fn a_refusal_names_every_device() {
    if needs_simulator("it is about the catalogue") {
        return;
    }
    // The refusal of an unknown name lists those that are known.
    let known = World::new().refused("topology --gpu sim:none");
    let known: Vec<&str> = known
        .split([' ', ',', ')', '('])
        .filter_map(|word| word.strip_prefix("sim:"))
        .filter(|name| *name != "none")
        .collect();
    for device in SIMULATED_DEVICES {
        assert!(known.contains(device), "{device} is not named: {known:?}");
    }
}
