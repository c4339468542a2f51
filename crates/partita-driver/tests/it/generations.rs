//! Every generation: each device of the catalogue is calibrated, and its launches are masked
//! accordingly.

use crate::common;

use std::collections::BTreeSet;

use common::Sim;
use partita_abi::qmd::{self, QmdLayout, layouts};
use partita_core::{Topology, TpcSet};
use partita_driver::{Census, Error, Gpu, Grid, LaunchMask, Probe, probe_with, prove_gpcs, runs_clusters};
use partita_sim::{DeviceSpec, catalogue};

/// Random masks of each device, in addition to the fixed ones.
const RANDOM_MASKS: usize = 16;
/// Long enough that blocks cover every enabled SM before the first ends.
const SPIN_NS: u64 = 20_000;

/// One test a device.
macro_rules! devices {
    ($($test:ident = $device:literal;)*) => {
        $(#[test]
        fn $test() {
            if partita_testing::is_for_long_runs($device) {
                return;
            }
            let sim = Sim::new(concat!("gen-", $device), $device);
            assert_eq!(sim.child_says("child_is_calibrated_and_masked", &[]), ["done"]);
            other_versions($device);
        })*
    };
}

partita_testing::for_simulated_devices!(devices);

/// A device's driver can launch with any version that the device's compute class has. Each is
/// recognised by the descriptor alone, and either masks every TPC or is refused.
fn other_versions(device: &str) {
    let spec = catalogue::device(device).unwrap();
    let own = layout_of(&spec);
    let class = qmd::class_for(capability(&spec)).unwrap();
    for version in class.masked.iter().filter(|version| **version != own.version) {
        let byte = version.byte();
        let layout = qmd::layout_for(capability(&spec), byte).unwrap();
        let last = spec.topology.tpcs().iter().map(|tpc| u32::from(tpc.physical)).max().unwrap();
        let sim = Sim::new(&format!("gen-{device}-{byte:x}"), device);
        let variables = [("PARTITA_SIM_QMD", format!("{}.{}", byte >> 4, byte & 15))];
        let said = sim.child_says("child_is_calibrated_and_masked", &variables);
        if last < layout.mask.tpcs_max() {
            assert_eq!(said, ["done"], "{device} {version}");
        } else {
            // A tenant cannot be kept off TPCs without a bit.
            let [said] = &said[..] else { panic!("{said:?}") };
            let reason =
                format!("launch descriptors {version} of this driver have {} bits", layout.mask.tpcs_max());
            assert!(said.contains("no mask bit disables TPC") && said.contains(&reason), "{said}");
        }
    }
}

#[test]
fn no_version_is_left_out() {
    // For each version with a mask there is a device that launches with it.
    for layout in layouts::ALL {
        let launches = |spec: &DeviceSpec| core::ptr::eq(layout_of(spec), *layout);
        assert!(catalogue::all().iter().any(launches), "no device launches with {}", layout.version);
    }
}

fn capability(spec: &DeviceSpec) -> u32 {
    u32::from(spec.compute_capability.major) * 10 + u32::from(spec.compute_capability.minor)
}

fn layout_of(spec: &DeviceSpec) -> &'static QmdLayout {
    qmd::layout_for(capability(spec), spec.driver.qmd_version).unwrap()
}

#[test]
#[ignore = "the tests run it in child processes"]
fn child_is_calibrated_and_masked() {
    let mut spec = catalogue::device(&std::env::var("PARTITA_SIM_DEVICE").unwrap()).unwrap();
    if let Ok(version) = std::env::var("PARTITA_SIM_QMD") {
        let (major, minor) = version.split_once('.').unwrap();
        spec.driver.qmd_version = major.parse::<u8>().unwrap() << 4 | minor.parse::<u8>().unwrap();
        if layout_of(&spec).cga.is_none() {
            spec.sm.cluster_blocks_max = 1;
        }
    }
    let cuda = common::cuda();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let mut mask = LaunchMask::install(&cuda).unwrap();
    assert!(mask.layout(gpu.facts().compute_capability).is_none());

    let mut probe = match probe_with(&gpu, &mut mask) {
        Ok(probe) => probe,
        Err(error @ Error::Disproved(_)) => return common::say(error),
        Err(error) => panic!("{error}"),
    };
    let layout = mask.layout(gpu.facts().compute_capability).unwrap().unwrap();
    assert!(core::ptr::eq(layout, layout_of(&spec)));
    assert_eq!(probe.qmd_version, layout.version.byte());
    is_the_board(&probe, &spec);
    gpcs_are_proved(&gpu, &mut mask, &mut probe, &spec);

    // What follows trusts the catalogue, not the probe.
    let topology = &spec.topology;
    let all = topology.all();
    for tpc in all.iter() {
        masked(&gpu, &mut mask, layout, topology, TpcSet::from_iter([tpc]));
    }
    let beyond = |bit: u16| -> TpcSet {
        all.iter().filter(|tpc| topology.tpcs()[usize::from(*tpc)].physical >= bit).collect()
    };
    for set in [all, beyond(64), all - beyond(64), beyond(128), all - beyond(128)] {
        if !set.is_empty() {
            masked(&gpu, &mut mask, layout, topology, set);
        }
    }
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..RANDOM_MASKS {
        let mut chosen = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random >> 32 & 1 != 0
        };
        let set: TpcSet = all.iter().filter(|_| chosen()).collect();
        if !set.is_empty() {
            masked(&gpu, &mut mask, layout, topology, set);
        }
    }

    // A mask for another version is not written.
    let other = layouts::ALL.iter().find(|other| other.version != layout.version).unwrap();
    mask.set(other, &topology.disable_words(&TpcSet::first(1)));
    assert_eq!(seen(&gpu, topology), all);
    mask.clear();
    common::say("done");
}

/// The probe found the board's bits in logical order.
fn is_the_board(probe: &Probe, spec: &DeviceSpec) {
    assert_eq!(probe.sms_per_tpc, spec.topology.sms_per_tpc());
    let found: Vec<u16> = probe.tpcs.iter().map(|tpc| tpc.physical).collect();
    let expected: Vec<u16> = spec.topology.tpcs().iter().map(|tpc| tpc.physical).collect();
    assert_eq!(found, expected);
}

/// Clusters prove the board's GPCs, where there are clusters.
fn gpcs_are_proved(gpu: &Gpu<'_>, mask: &mut LaunchMask, probe: &mut Probe, spec: &DeviceSpec) {
    assert_eq!(runs_clusters(gpu), spec.sm.cluster_blocks_max > 1);
    if !runs_clusters(gpu) {
        assert!(!probe.gpcs_proved);
        return;
    }
    let groups: Vec<u8> = spec.topology.tpcs().iter().map(|tpc| tpc.gpc).collect();
    if !probe.gpcs_proved {
        prove_gpcs(gpu, mask, probe, &groups).unwrap();
    }
    assert!(probe.gpcs_proved);
    let found: Vec<u8> = probe.tpcs.iter().map(|tpc| tpc.gpc).collect();
    assert_eq!(found, groups);
}

/// Blocks of a masked launch run on all TPCs of the set and on no other.
fn masked(
    gpu: &Gpu<'_>,
    mask: &mut LaunchMask,
    layout: &'static QmdLayout,
    topology: &Topology,
    set: TpcSet,
) {
    mask.set(layout, &topology.disable_words(&set));
    assert_eq!(seen(gpu, topology), set, "{} {}", gpu.facts().name, layout.version);
}

/// The TPCs that a launch runs on; every SM of each of them must have run blocks.
fn seen(gpu: &Gpu<'_>, topology: &Topology) -> TpcSet {
    let grid = Grid { blocks: gpu.facts().sms * 4, threads: 1024, cluster_blocks: 1 };
    let sms: BTreeSet<u32> = Census::new(gpu, grid, SPIN_NS).unwrap().sms().unwrap();
    let tpcs = topology.logical_from_smids(sms.iter().copied()).unwrap();
    assert_eq!(sms.len() as u32, tpcs.len() * topology.sms_per_tpc());
    tpcs
}
