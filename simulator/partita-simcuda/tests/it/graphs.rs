//! Graphs and stream capture, as a C program sees them.

use crate::common;

use common::World;

#[test]
fn graphs_run_their_nodes() {
    World::new("byhand").run("graphs", "by_hand");
}

#[test]
fn branches_run_at_the_same_time() {
    World::new("branches").run("graphs", "branches");
}

#[test]
fn masks_are_baked_in_at_the_first_upload() {
    World::new("gmasks").run("graphs", "masks");
}

#[test]
fn descriptors_of_nodes_keep_the_subscribers_changes() {
    World::new("gkept").run("graphs", "kept");
}

#[test]
fn streams_are_captured() {
    World::new("capture").run("graphs", "capture");
}

#[test]
fn recording_nodes_count() {
    World::new("gevents").run("graphs", "events");
}

#[test]
fn graphs_hold_memory_and_objects() {
    World::new("belongings").run("graphs", "belongings");
}

#[test]
fn nodes_of_nested_graphs_are_rearmed_by_their_own_names() {
    World::new("nested").run("graphs", "nested");
}
