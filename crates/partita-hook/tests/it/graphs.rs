//! Executable graphs follow the limits, against a driver that treats them as an H200's does.

use crate::common;

use common::{Fixture, limits};
use partita_ledger::{FLAG_ON_MISFIT_WIDEN, Limits};

/// The limits that the program asks for by name.
fn named(name: &str) -> Limits {
    let (set, flags) = match name.split_once(' ') {
        Some((set, "wide")) => (set, FLAG_ON_MISFIT_WIDEN),
        Some((set, _)) => (set, 0),
        None => (name, 0),
    };
    let (set, disable) = match set {
        "A" => ([0x1_ffff_ffff, 0, 0, 0], [0, !1, !0, !0, !0, !0, !0, !0]),
        "B" => ([!0x1_ffff_ffff, 3, 0, 0], [!0, 1, !3, !0, !0, !0, !0, !0]),
        "C" => ([!0, 3, 0, 0], [0, 0, !3, !0, !0, !0, !0, !0]),
        other => panic!("no limits {other}"),
    };
    let quota = if name.ends_with("quota") { 2 << 30 } else { 1 << 30 };
    Limits { set, qmd_disable: disable, flags, memory_quota_bytes: quota, ..limits() }
}

#[test]
fn graphs_carry_the_mask_of_the_limits_at_their_launch() {
    let fixture = Fixture::new(&limits());
    let mut file = fixture.limits_file();
    let said = fixture.talk("graphs.c", &[], |line| {
        let name = line.strip_prefix("set ")?;
        file.store(&named(name)).expect("stored");
        Some("done".to_owned())
    });
    let expected = [
        // Kept, with the embedded graph and the body, until its executable goes.
        "destroy 0 twice 1 living 3",
        "first 0 AAA calls 3",
        "unchanged 0 AAA calls 0",
        "changed 0 BBB calls 3",
        "unchanged 0 BBB calls 0",
        "quota 0 BBB calls 0",
        "disabled 0 .AA calls 2",
        "enabled 0 AAA calls 1",
        "during 0 CBB calls 3",
        "back 0 CCC calls 3",
        "parameters 0 CCC calls 1",
        "living 0",
        "two 0 AA calls 2",
        "wider 0 AA calls 0",
        "elsewhere 1 AA calls 0",
        "misfit 912 -- calls 0",
        "without 0 A. calls 2",
        "widened 0 A- calls 2",
        "widened 0 A- calls 0",
        "widened 0 B- calls 2",
        "misfit 912 B- calls 0",
        // An executable that was armed again kernel by kernel is made again after 16 launches.
        "at first 0 own of 1 AA",
        "changed 0 own of 1 BB",
        "settled 0 other of 2 BB",
        "changed again 0 other of 2 AA",
        // The one before may still run.
        "settled again 0 other of 3 AA",
        "enabled 0",
        "disabled 0 other of 3 .A",
        "and changed 0 other of 3 .B",
        "enabled 0 other of 3 BB",
        "executables 0",
        "two streams 0 own of 1 BB",
        "two streams 0 own of 1 AA",
        "one stream 0 own of 1 AA",
        "own parameters 0 own of 1 AA",
        "own parameters 0 own of 1 BB",
        "edge 0 own of 1 BB",
        "edge 0 own of 1 AA",
        "node 0 own of 1 AA",
        "node 0 own of 1 BB",
        "destroyed 0 own of 1 BB",
        "destroyed 0 other of 2 AA",
        "executables 0",
        "device-launch 1",
    ];
    assert_eq!(said.lines, expected);
    let slot = fixture.usage().slots().next().expect("one slot").expect("readable");
    assert_eq!(slot.widened, 3);
    // One line each: the graph that cannot be armed, the first misfit, the first widened launch,
    // the launch from the device.
    assert_eq!(said.complaints.len(), 4, "{:?}", said.complaints);
    assert!(said.complaints[0].contains("instantiate it again"), "{:?}", said.complaints);
    assert!(said.complaints[1].contains("was refused: the largest cluster"), "{:?}", said.complaints);
    assert!(said.complaints[2].contains("(--on-misfit widen)"), "{:?}", said.complaints);
    assert!(said.complaints[3].contains("launch from the device"), "{:?}", said.complaints);
}
