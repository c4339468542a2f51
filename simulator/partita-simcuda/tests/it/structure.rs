//! Streams' private structures: masks at each driver's offset, and the detection of other writes.

use crate::common;

use common::World;
use partita_sim::StreamMaskLayout;
use partita_simcuda::shared::driver;

#[test]
fn every_driver_reads_masks_at_its_own_offset() {
    // A version without a published offset, one of the old layout, and offsets of this test.
    for (device, version, offset) in [
        ("h200", "12.9", None),
        ("h200", "11.8", None),
        ("h200", "13.0", Some("0x7a4")),
        ("a100", "11.0", Some("0x3dc")),
        ("gtx1060-3gb", "8.0", None),
        ("gtx1060-3gb", "13.0", Some("0x40")),
    ] {
        let mut spec = partita_sim::catalogue::device(device).unwrap();
        driver::set_version(&mut spec, version).unwrap();
        offset.map_or(Ok(()), |offset| driver::set_stream_offset(&mut spec, offset)).unwrap();
        let place = spec.driver.stream_mask;
        let words = if place.layout == StreamMaskLayout::UpperLower { "2" } else { "5" };
        let at = place.offset_bytes.to_string();
        let mut env =
            vec![("PARTITA_SIM_DRIVER", version), ("MASK_OFFSET", at.as_str()), ("MASK_WORDS", words)];
        env.extend(offset.map(|offset| ("PARTITA_SIM_STREAM_OFFSET", offset)));
        let printed = World::with("place", device).run_with("devices", "masks", &env);
        let per_tpc = spec.topology.sms_per_tpc();
        // With the old layout 64 TPCs can be named, and the others stay enabled.
        let beyond = if words == "2" { spec.tpc_count().saturating_sub(64) } else { 0 };
        let expected = format!("{0} {0} {1} {per_tpc}", spec.sm_count(), per_tpc * (1 + beyond));
        assert_eq!(printed.trim(), expected, "{device} {version} {offset:?}");
    }
}

#[test]
fn the_simulated_version_is_reported_and_decides_the_exports() {
    let world = World::new("versions");
    let newest = world.run("devices", "versions");
    assert_eq!(newest.trim(), "13000 1 1 1");
    for (version, expected) in [("13.2", "13020 1 1 1"), ("12.3", "12030 1 0 1"), ("11.8", "11080 0 0 1")] {
        let printed = world.run_with("devices", "versions", &[("PARTITA_SIM_DRIVER", version)]);
        assert_eq!(printed.trim(), expected, "{version}");
    }
    let output = world.output("devices", "versions", &[("PARTITA_SIM_DRIVER", "14.7")]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("PARTITA_SIM_DRIVER is '14.7'"), "{text}");
}

#[test]
fn a_write_beside_the_mask_ends_the_work_of_its_process_only() {
    let world = World::new("corrupt");
    for (case, offset) in [
        ("relied_on", "0x448"),
        ("beside", "0x530"),
        ("queried", "0x518"),
        ("context_wide", "0x8fc"),
        ("destroyed", "0x3e0"),
    ] {
        let output = world.output("structure", case, &[]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{case}: {text}");
        assert!(text.contains(&format!("offset {offset} of a stream structure")), "{case}: {text}");
        world.run("structure", "sound");
    }
}

#[test]
fn a_copy_of_the_process_destroys_its_own_memory_only() {
    World::new("copy").run("structure", "copied");
}
