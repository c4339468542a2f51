//! A tenant that is moved back and forth while six of its threads launch without pause.

use crate::common;

use std::process::Stdio;

use common::{Tenant, World, compile, gpu_program};

/// Moves between the two sets.
const MOVES: u32 = 30;

#[test]
fn no_launch_straddles_a_move() {
    let world = World::new();
    let program = compile(&world, "storm");
    let mut command = world.partita("run --name storm --isolation own --sm tpc:0-7 --".split_whitespace());
    command.arg(&program).arg(&gpu_program().1).args(["8", "2"]).stdin(Stdio::piped());
    let mut tenant = Tenant::start(&mut command);
    let input = tenant.child.stdin.take().expect("a pipe");
    assert_eq!(tenant.next_line(), "ready");
    for turn in 1..=MOVES {
        world.ok(if turn % 2 == 0 { "set storm --sm tpc:0-7" } else { "set storm --sm tpc:8-15" });
    }
    drop(input);
    for route in ["stream", "default", "per-thread", "graph", "per-thread-graph", "context"] {
        let line = tenant.next_line();
        let mut words = line.split_whitespace();
        assert_eq!(words.next(), Some(route), "{line}");
        let numbers: Vec<i64> = words.map(|word| word.parse().expect("a number")).collect();
        let [launches, mixed, moves, last] = numbers[..] else { panic!("{line}") };
        assert_eq!(mixed, 0, "{route}: launches of {launches} ran in both sets");
        // Otherwise the test has tested nothing.
        assert!(moves >= 4, "{route}: {launches} launches saw {moves} moves");
        assert_eq!(last, i64::from(MOVES % 2), "{route}: a launch after the last move");
    }
    assert_eq!(tenant.exit_code(), 0);
}
