//! Device and host memory, as a C program sees them.

use crate::common;

use common::World;

#[test]
fn allocations_are_exact_and_come_back() {
    World::new("routes").run("memory", "routes");
}

#[test]
fn bytes_move_between_all_kinds_of_memory() {
    World::new("copies").run("memory", "copies");
}

#[test]
fn host_memory_is_copied_in_stream_order_and_reached_by_kernels() {
    World::new("host").run("memory", "host");
}

#[test]
fn pools_keep_and_return_memory() {
    World::new("pools").run("memory", "pools");
}

#[test]
fn physical_memory_is_mapped_at_reserved_addresses() {
    World::new("mapped").run("memory", "mapped");
}

#[test]
fn attributes_of_an_address_need_a_context() {
    World::new("told").run("memory", "told");
}

#[test]
fn a_bad_address_is_a_sticky_error() {
    World::new("illegal").run("memory", "illegal");
}
