//! Shares of the task slots: a tenant with many streams does not run more kernels at once than its
//! share, and computes what it computes without one.

use crate::common;

use common::{Answering, World, compile, gpu_program, is_real};

/// A tenant that launches by commands.
struct Program(Answering);

impl Program {
    fn start(world: &World, name: &str, options: &str) -> Self {
        let program = compile(world, "slots");
        let line = format!("run --isolation shared --name {name} {options} --");
        let mut command = world.partita(line.split_whitespace());
        command.arg(program).arg(&gpu_program().1);
        let mut program = Answering::start(&mut command);
        assert_eq!(program.tenant.next_line(), "ready");
        Self(program)
    }

    /// Kernels that ran at once, where all that were made did run.
    fn at_once(&mut self, what: &str) -> u64 {
        let lines = self.0.ask(what);
        assert_eq!(lines.len(), 1, "{what}: {lines:?}");
        at_once(what, &lines[0])
    }
}

fn at_once(what: &str, line: &str) -> u64 {
    let numbers: Vec<u64> = line.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let [made, ran, at_once] = numbers[..] else { panic!("{what}: {line}") };
    assert_eq!(made, ran, "{what}: kernels that ran");
    at_once
}

/// A GPU and a neighbour on half of it.
fn neighbour(world: &World) -> common::Tenant {
    world.idle("--isolation shared --name neighbour --sm 50%")
}

#[test]
fn a_tenant_runs_no_more_kernels_at_once_than_its_share() {
    let world = World::in_memory();
    let mut busy = Program::start(&world, "busy", "--sm 50%");
    // Alone it has no limit. A machine that holds the program up shows fewer, so it may try again.
    assert_eq!(world.row("busy")["task_slot_share"], serde_json::Value::Null);
    let is_free = (0..5).any(|_| busy.at_once("streams 128 3 100000") > 60);
    assert!(is_free, "never more than 60 at once without a neighbour");
    {
        let _neighbour = neighbour(&world);
        for name in ["busy", "neighbour"] {
            assert_eq!(world.row(name)["task_slot_share"], 60, "half of 128 without the reserve");
        }
        // The share holds from the first launch on that is made after the neighbour has come.
        for what in ["streams 128 3 5000", "streams 300 4 2000", "graphs 40 4 5000"] {
            assert!(busy.at_once(what) <= 60, "{what}");
        }
        world.ok("set busy --sm 10%");
        let share = world.row("busy")["task_slot_share"].as_u64().expect("a share");
        assert!(share < 30, "in proportion to its TPCs: {share}");
        assert!(busy.at_once("streams 128 3 5000") <= share);
        world.ok("set busy --task-slots all");
        assert_eq!(world.row("busy")["task_slot_share"], serde_json::Value::Null);
        assert!((0..5).any(|_| busy.at_once("streams 128 3 100000") > 60));
    }
    // Any command notes that the neighbour has gone.
    world.ok("set busy --task-slots share");
    assert_eq!(world.row("busy")["task_slot_share"], serde_json::Value::Null);
    assert!((0..5).any(|_| busy.at_once("streams 128 3 100000") > 60));
}

#[test]
fn a_program_with_a_share_ends_for_any_order_of_waits() {
    let world = World::in_memory();
    let _neighbour = neighbour(&world);
    let mut busy = Program::start(&world, "busy", "--sm 50%");
    // Streams that wait for a word that the last stream writes: kernels that have not begun take
    // no slot, and the hook releases the launches that wait for them. A GPU hangs with more of them
    // than the process has hardware queues, with and without Partita.
    if !is_real() {
        busy.at_once("words 100");
        busy.at_once("words 100");
    }
    // PARTITA_TEST_PROGRAMS says how many random programs are to run.
    let programs = std::env::var("PARTITA_TEST_PROGRAMS").map_or(6, |text| text.parse().expect("a number"));
    for seed in 0..programs {
        assert!(busy.at_once(&format!("random {seed}")) <= 60, "seed {seed}");
    }
    assert_eq!(busy.0.complaints(), "");
}

#[test]
fn a_capture_holds_what_the_program_launches_and_nothing_else() {
    let world = World::in_memory();
    let _neighbour = neighbour(&world);
    let mut busy = Program::start(&world, "busy", "--sm 50%");
    let lines = busy.0.ask("capture 100");
    let [nodes, ran] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(nodes, "2");
    assert!(at_once("capture", ran) <= 60);
}

#[test]
fn processes_of_a_tenant_divide_its_share() {
    let world = World::in_memory();
    let _neighbour = neighbour(&world);
    let mut busy = Program::start(&world, "busy", "--sm 50%");
    let lines = busy.0.ask("fork 128 3 5000");
    assert_eq!(lines.len(), 2, "{lines:?}");
    for line in &lines {
        // A process that has begun before it knew of the other had the whole share until then.
        assert!(at_once("fork", line) <= 60);
    }
    assert!(busy.at_once("streams 128 3 5000") <= 60);
}
