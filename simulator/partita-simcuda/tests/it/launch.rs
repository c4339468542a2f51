//! Modules, launches, masks and hangs, as a C program sees them.

use crate::common;

use std::io::{BufRead, BufReader};

use common::{World, eventually};

#[test]
fn known_kernels_compute_and_others_cost_what_is_declared() {
    let world = World::new("kernels");
    let output = world.output("launch", "kernels", &[("PARTITA_SIM_KERNEL_US", "500")]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(!text.contains("not simulated"), "{text}");
}

#[test]
fn modules_are_read_and_unloaded() {
    World::new("modules").run("launch", "modules");
}

#[test]
fn the_oldest_way_of_launching_works_and_missing_settings_are_refused() {
    World::new("oldways").run("launch", "old_ways");
}

#[test]
fn impossible_launches_are_refused() {
    World::new("misuse").run("launch", "misuse");
}

#[test]
fn the_callback_sees_and_masks_genuine_descriptors() {
    World::new("descriptor").run("launch", "descriptor");
}

#[test]
fn clusters_are_counted_over_the_whole_device() {
    World::new("count").run("launch", "clusters");
}

#[test]
fn stream_structures_carry_masks() {
    World::new("stream").run("launch", "stream_mask");
}

#[test]
fn launches_that_do_not_fit_their_mask_hang() {
    let world = World::new("hang");
    for case in ["clusters", "large_clusters", "cooperative", "dead", "busy"] {
        world.run_with("hang", case, &[("PARTITA_SIM_WATCHDOG_MS", "100")]);
    }
    let mut child = world.spawn("hang", "for_ever", &[]);
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "launched\n");
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the board noticed", || world.is_clean());
}
