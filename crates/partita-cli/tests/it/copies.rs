//! Large copies beside neighbours: made in pieces, so that small copies of others go between them.

use crate::common;

use std::process::{Command, Stdio};

use common::{Answering, World, compile, is_real, succeeds};

/// A program of copies in a tenant.
fn copies(world: &World, name: &str, what: &str) -> Command {
    let mut command = world.partita(format!("run --name {name} --sm 25% --").split_whitespace());
    command.arg(compile(world, "copies")).args(what.split_whitespace());
    command
}

#[test]
fn what_is_copied_in_pieces_arrives_and_what_is_refused_is_refused_as_a_whole() {
    let world = World::in_memory();
    let alone = succeeds(copies(&world, "alone", "check").stderr(Stdio::inherit()));
    assert_eq!(alone, "too long: 1, first byte ee\n");
    let _neighbour = world.idle("--name neighbour --sm 25%");
    assert_eq!(succeeds(copies(&world, "beside", "check").stderr(Stdio::inherit())), alone);
}

/// The median and the most of the time that small copies take, in microseconds of the GPU.
fn small(world: &World, way: &str) -> (u32, u32) {
    let told = succeeds(copies(world, "victim", &format!("small {way} 30")).stderr(Stdio::inherit()));
    let (median, most) = told.trim().split_once(' ').unwrap_or_else(|| panic!("{told}"));
    (median.parse().unwrap(), most.parse().unwrap())
}

/// In the simulator's time, as on an H200, 32 MiB take 0.6 ms, and a client that copies all the
/// time keeps the engine for 1 ms from the moment at which another one waits.
#[test]
fn a_small_copy_does_not_wait_for_the_large_ones_of_another_tenant() {
    let world = World::in_memory();
    for (way, other) in [("up", "down"), ("down", "up")] {
        let flood = format!("flood {way}");
        // A process that is no tenant copies as it likes. On a GPU it is no client of the service
        // either, so that they take turns.
        if !is_real() {
            // On a busy machine the engine may run out of copies.
            let mut command = world.bare(&compile(&world, "copies"));
            let mut bare = Answering::start(command.args(flood.split_whitespace()));
            assert_eq!(bare.tenant.next_line(), "ready");
            assert!((0..5).any(|_| small(&world, way).1 > 900), "{way}: no copy waited");
        }
        // It starts alone, and learns of the neighbour while it copies.
        let mut flooding = Answering::start(&mut copies(&world, "flood", &flood));
        assert_eq!(flooding.tenant.next_line(), "ready");
        for way in [way, other] {
            let (beside, _) = small(&world, way);
            assert!(beside < 500, "{way} beside {flood}: {beside} us");
        }
        // The simulator copies real bytes. On a busy machine the service may seem to be stuck
        // meanwhile, and a line says so.
        flooding.complaints();
    }
}
