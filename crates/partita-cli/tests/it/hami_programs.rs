//! The calls of HAMi-core's test programs (`test/`) and vgpu-manager's (`library/test/`), in
//! containers that have HAMi-core's variables. Theirs show by their exit codes whether calls
//! succeed; `tests/hook/peer_programs.c` makes the same calls and checks the account after each of
//! them.
//!
//! Without a counterpart here: HAMi-core's tests of its shared region, of parsing its variables and
//! of its broker of process ids, and vgpu-manager's of its `nogpu`, all of which test internals;
//! `test_alloc_async_failure_leak`, in which HAMi-core's own calls of the driver fail;
//! `test_dlsym_hijack`, which reads vgpu-manager's log; `test_cuda13_abi`, which accepts any code;
//! those of Vulkan, which has no limits; and those of the runtime, which make the same calls of the
//! driver (`runtime.rs` has the runtime itself).

use crate::common;

use common::container::{CORES, Container, MEMORY, bare, program, proved};
use common::{World, gpu_program, needs_simulator, text};

/// Runs one of the programs, which expects everything in order, in a new container with this many
/// MiB.
fn agrees_with(world: &World, what: &str, mib: u32, variables: &[(&str, &str)]) {
    let limit = if mib.is_multiple_of(1024) { format!("{}g", mib / 1024) } else { format!("{mib}m") };
    let mut container =
        Container::new(world, &format!("{what}-{mib}-{}", variables.len())).with(MEMORY, &limit);
    for (name, value) in variables {
        container = container.with(name, value);
    }
    let mut command = container.command(&program(world, "peer_programs"));
    let output =
        command.args([what, &mib.to_string()]).arg(&gpu_program().1).output().expect("the program runs");
    assert_eq!(text(&output.stdout), "ok\n", "{what} within {limit}: {output:?}");
    assert_eq!(text(&output.stderr), "", "{what} within {limit}");
    assert!(output.status.success(), "{what} within {limit}: {output:?}");
    assert!(!container.tenants().is_empty(), "{what} was in no tenant");
}

fn agrees(what: &str, limits: &[u32]) {
    let world = World::plan().own().start();
    for &mib in limits {
        agrees_with(&world, what, mib, &[]);
    }
}

#[test]
fn allocations_of_every_size_are_had_where_they_fit_and_refused_where_not() {
    agrees("plain", &[1024, 2048, 4096]);
}

#[test]
fn managed_memory_is_had_until_the_limit_is_reached() {
    agrees("managed", &[1024, 2048, 4096]);
}

#[test]
fn pitched_memory_costs_its_pitch() {
    agrees("pitch", &[1024]);
}

#[test]
fn arrays_cost_what_their_elements_take() {
    agrees("array", &[1024]);
    agrees("array-3d", &[1024]);
}

#[test]
fn memory_of_the_host_costs_nothing() {
    for what in ["host-alloc", "host-register", "host-plain"] {
        agrees(what, &[1024]);
    }
}

#[test]
fn of_two_processes_that_ask_at_once_for_more_than_half_exactly_one_has_it() {
    agrees("race", &[1024]);
}

#[test]
fn processes_that_fit_together_are_never_refused() {
    agrees("together", &[4, 1024]);
}

#[test]
fn physical_memory_of_many_threads_is_counted_once_each() {
    agrees("physical", &[128, 1024]);
}

#[test]
fn managed_pointers_are_distinguished_from_others() {
    agrees("attributes", &[1024]);
}

#[test]
fn memory_in_the_order_of_a_stream_and_of_captures_is_charged_and_credited_once() {
    agrees("ordered", &[1024, 2048]);
}

#[test]
fn memory_of_pools_is_within_the_limit() {
    agrees("pools", &[2048]);
}

#[test]
fn every_way_to_a_function_leads_to_the_one_that_holds_the_limit() {
    agrees("routing", &[1024]);
}

#[test]
fn pointers_to_nowhere_are_answered_and_charged_nothing() {
    agrees("nulls", &[1024]);
}

#[test]
fn children_take_nothing_of_their_parents_with_them() {
    agrees("forks", &[1024]);
    if !needs_simulator("what the driver does at the end of a child that it was not told of is its own") {
        agrees("clones", &[1024]);
    }
}

#[test]
fn graphs_run_as_often_as_they_are_launched_with_a_core_limit_and_without() {
    let world = World::plan().own().start();
    agrees_with(&world, "graph", 2048, &[]);
    agrees_with(&world, "graph", 2048, &[(CORES, "30"), ("PARTITA_CACHE_DIR", &proved(&world))]);
}

#[test]
fn what_is_freed_while_another_device_is_current_is_credited_where_it_was_had() {
    if needs_simulator("two are needed") {
        return;
    }
    let world = World::plan().own().start();
    agrees_with(&world, "two", 1024, &[("PARTITA_SIM_GPUS", "2"), ("CUDA_DEVICE_MEMORY_LIMIT_1", "512m")]);
}

/// `PARTITA_TEST_PEER_PROGRAMS` names a directory with the peers' own, built: each that succeeds
/// without limits must succeed within 1 GiB.
#[test]
fn the_peers_own_programs_succeed_where_they_do_without_limits() {
    let Some(dir) = std::env::var_os("PARTITA_TEST_PEER_PROGRAMS") else {
        eprintln!("skipped: PARTITA_TEST_PEER_PROGRAMS names no directory of programs");
        return;
    };
    let world = World::plan().own().start();
    let mut programs: Vec<_> =
        std::fs::read_dir(&dir).expect("it can be read").map(|entry| entry.unwrap().path()).collect();
    programs.sort();
    assert!(!programs.is_empty(), "nothing in {}", dir.display());
    let mut worse = Vec::new();
    for program in programs {
        let name = program.file_name().unwrap().to_string_lossy().into_owned();
        let alone = bare(&world, &program).output().expect("the program runs");
        let container = Container::new(&world, &name).with(MEMORY, "1g");
        let held = container.command(&program).output().expect("the program runs");
        eprintln!("{name}: {} without limits, {} within", alone.status, held.status);
        if alone.status.success() && !held.status.success() {
            worse.push(format!("{name}: {held:?}"));
        }
    }
    assert!(worse.is_empty(), "{}", worse.join("\n"));
}
