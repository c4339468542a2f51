//! Chains of real processes: what comes out is what went in, and whoever is killed loses no frame's memory.

mod common;

use std::time::Duration;

use common::World;
use partita_chain::Policy;

/// Everything is back in the pool, or with nobody.
fn no_leak(world: &World, frames: u32) {
    let chain = world.chain();
    for role in 0..chain.plan().roles.len() as u8 {
        chain.recover(role).unwrap();
    }
    let census = chain.census();
    assert_eq!((census.lost, census.held.iter().sum::<u32>()), (0, 0), "{census:?}");
    assert_eq!(census.total() - census.unbacked, frames, "{census:?}");
}

#[test]
fn the_product_of_a_chain_of_matrices_is_the_hosts() {
    let stages =
        ["matrix S --frames 12", "matrix 48:3", "matrix S", "matrix 64", "matrix S --check S,48:3,S,64,S"];
    let world = World::of_stages("matrix", 2 * 120 * 120 * 4, 8, Policy::Wait, &stages);
    let mut processes = world.start_all();
    world.finishes(12, &mut processes);
    world.chain().stop();
    processes
        .into_iter()
        .enumerate()
        .for_each(|(role, process)| process.succeeds(&format!("component {role}")));
    let status = world.chain().status().unwrap();
    assert!(status.iter().all(|role| (role.frames_in, role.frames_out) == (12, 12)), "{status:#?}");
    assert!(status.iter().all(|role| role.dropped_of_dead + role.dropped_by_owner == 0), "{status:#?}");
    no_leak(&world, 8);
}

#[test]
fn bright_spots_are_found_where_the_host_finds_them() {
    let stages = ["decode 96x64 --frames 20", "enhance 96x64", "detect 96x64 --check"];
    let world = World::of_stages("image", 2 * 96 * 64 + 16, 5, Policy::Wait, &stages);
    let mut processes = world.start_all();
    world.finishes(20, &mut processes);
    world.chain().stop();
    processes
        .into_iter()
        .enumerate()
        .for_each(|(role, process)| process.succeeds(&format!("component {role}")));
    no_leak(&world, 5);
}

#[test]
fn killed_at_any_time_the_chain_goes_on_and_no_memory_is_lost() {
    let stages = ["matrix 32", "matrix 24", "matrix 32", "matrix 32 --check 32,24,32,32"];
    let world = World::of_stages("kills", 2 * 32 * 32 * 4, 8, Policy::Wait, &stages);
    let mut processes = world.start_all();
    let mut finished = 3;
    world.finishes(finished, &mut processes);
    let mut random = fastrand::Rng::with_seed(7);
    for kill in 0..24 {
        std::thread::sleep(Duration::from_micros(random.u64(0..4000)));
        let role = kill % stages.len();
        processes[role].kill();
        processes[role] = world.start(role);
        finished = world.chain().frames_finished() + 3;
        world.finishes(finished, &mut processes);
    }
    world.chain().stop();
    processes
        .into_iter()
        .enumerate()
        .for_each(|(role, process)| process.succeeds(&format!("component {role}")));
    no_leak(&world, 8);
}
