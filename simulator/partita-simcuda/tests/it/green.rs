//! Green contexts, as a C program uses them.

use crate::common;

use common::World;

#[test]
fn an_h200_is_split_as_measured() {
    let printed = World::new("splits").run("green", "splits");
    let measured = [
        "8 0: 15 of 8, 12",
        "16 0: 8 of 16, 4",
        "34 0: 3 of 40, 12",
        "2 1: 66 of 2, 0",
        "16 1: 8 of 16, 4",
        "34 1: 3 of 34, 30",
    ];
    assert_eq!(printed.lines().collect::<Vec<_>>(), measured);
}

#[test]
fn launches_stay_on_the_sms_of_their_context() {
    World::new("contexts").run("green", "contexts");
}

#[test]
fn the_finest_contexts_make_up_the_device() {
    World::new("finest").run("green", "finest");
}

#[test]
fn old_drivers_have_no_green_contexts() {
    World::new("old").run_with("green", "old", &[("PARTITA_SIM_DRIVER", "12.3")]);
}
