//! The kernel driver's control interface, queried by a C program.

use crate::common;

use common::World;

/// The answer of an H200's driver in the program's format: the first SM of a TPC and the fields but
/// `localSmId`.
fn measured() -> Vec<String> {
    let text = include_str!("../../../../crates/partita-core/src/topology/survey/tests/h200.txt");
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn an_h200_answers_as_the_measured_one() {
    let printed = World::new("order").run("control", "sm_order");
    let mut lines = printed.lines();
    assert_eq!(lines.next(), Some("9240 132 66"));
    assert_eq!(lines.by_ref().take(66).collect::<Vec<_>>(), measured());
    let gpcs = [
        "gpc 0 9 1ff",
        "gpc 1 8 1bf",
        "gpc 2 8 1bf",
        "gpc 3 8 1bf",
        "gpc 4 8 1bf",
        "gpc 5 8 1ff",
        "gpc 6 8 1bf",
        "gpc 7 9 1bf",
        "gpc 8 0 0",
    ];
    assert_eq!(lines.collect::<Vec<_>>(), gpcs);
}

#[test]
fn other_devices_answer_in_the_form_of_their_drivers() {
    // Driver 570 and driver 470.
    for (device, first) in [("a100", "6168 108 54"), ("gtx1060-3gb", "6168 9 9")] {
        let printed = World::with(device, device).run("control", "sm_order");
        assert_eq!(printed.lines().next(), Some(first), "{device}");
    }
}

#[test]
fn the_card_is_listed_where_cuda_sees_it() {
    World::new("cards").run("control", "cards");
}

#[test]
fn calls_that_a_driver_refuses_are_refused() {
    World::new("refusals").run("control", "refusals");
}
