//! Priorities: work of low priority waits while work of high priority is in flight, and for nothing
//! else.

use crate::common;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Answering, PATIENCE, World, compile, gpu_program};

/// A program of this priority, with its commands.
pub struct Program(Answering);

impl Program {
    pub fn start(world: &World, program: &Path, name: &str, options: &str) -> Self {
        let line = format!("run --isolation own --name {name} {options} --");
        let mut command = world.partita(line.split_whitespace());
        command.arg(program).arg(&gpu_program().1);
        Self::of(&mut command)
    }

    /// The one that this command starts.
    pub fn of(command: &mut Command) -> Self {
        let mut program = Answering::start(command);
        assert_eq!(program.tenant.next_line(), "ready");
        Self(program)
    }

    pub fn tell(&mut self, what: &str) -> String {
        self.0.ask(what).join(" ")
    }

    /// Launches, and checks for a while whether the work ends by itself. Much shorter than the
    /// longest hold, which a busy machine may exceed: hence several tries.
    pub fn is_held(&mut self) -> bool {
        self.is_held_for(Duration::from_millis(15))
    }

    fn is_held_for(&mut self, time: Duration) -> bool {
        assert_eq!(self.tell("launch"), "ok");
        let until = Instant::now() + time;
        while Instant::now() < until {
            if self.tell("query") == "idle" {
                return false;
            }
        }
        true
    }

    pub fn ends(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while self.tell("query") != "idle" {
            assert!(Instant::now() < deadline, "held for ever");
        }
    }
}

/// Whether `low` is seen to be `held` by `high`, which launches and does not wait: once in a number
/// of tries.
pub fn is_seen(held: bool, high: &mut Program, low: &mut Program) -> bool {
    (0..20).any(|_| {
        assert_eq!(high.tell("launch"), "ok");
        let found = low.is_held();
        assert_eq!(high.tell("sync"), "ok");
        low.ends();
        found == held
    })
}

#[test]
fn low_waits_while_high_has_work_in_flight() {
    let world = World::in_memory();
    let program = compile(&world, "gate");
    let mut low = Program::start(&world, &program, "low", "--sm 25% --priority low");
    // There is no other tenant to wait for.
    assert_eq!((low.tell("launch"), low.tell("sync")), ("ok".into(), "ok".into()));
    let mut high = Program::start(&world, &program, "high", "--sm 25% --priority high");
    let mut normal = Program::start(&world, &program, "normal", "--sm 25%");
    assert_eq!(world.row("high")["priority"], "high");
    assert_eq!(world.row("low")["priority"], "low");
    assert_eq!(world.row("normal")["priority"], "normal");
    assert!(is_seen(true, &mut high, &mut low));
    // Tenants without a priority neither wait nor make others wait: their kernels take a
    // microsecond.
    assert_eq!(high.tell("launch"), "ok");
    assert_eq!((normal.tell("launch"), normal.tell("sync")), ("ok".into(), "ok".into()));
    assert_eq!(high.tell("sync"), "ok");
    // A graph opens the gate after itself: low continues.
    assert_eq!(high.tell("graph"), "ok");
    assert_eq!((low.tell("graph"), low.tell("sync")), ("ok".into(), "ok".into()));
    assert_eq!(high.tell("sync"), "ok");
    // A program that polls its stream or an event until it is done, or waits for a copy, has waited
    // for it. Once would not show it: a lane that stays closed is passed for 5 ms now and then.
    for waits in ["query", "event", "copy"] {
        let mut passes = || {
            std::thread::sleep(Duration::from_millis(6));
            assert_eq!(high.tell("launch"), "ok");
            if waits == "query" {
                high.ends();
            } else {
                assert_eq!(high.tell(waits), "ok");
            }
            let held = low.is_held();
            low.ends();
            !held
        };
        let passed = (0..20).filter(|_| passes()).count();
        assert!(passed > 10, "{waits}: {passed} of 20");
    }
    // A change applies from the next launch on.
    world.ok("set low --priority normal");
    assert!(is_seen(false, &mut high, &mut low));
    world.ok("set low --priority low");
    assert!(is_seen(true, &mut high, &mut low));
    let refused = world.refused("set normal --priority low");
    assert!(refused.contains("was started without a priority"), "{refused}");
}

#[test]
fn blocks_of_low_priority_give_way_to_others_of_the_service() {
    let world = World::in_memory();
    for (options, level) in [("--priority low", "1"), ("--priority high", "-"), ("", "-")] {
        let line = format!("run --sm 10% {options} -- sh -c");
        let mut command = world.partita(line.split_whitespace());
        let output = command.arg("echo ${CUDA_MPS_CLIENT_PRIORITY--}").output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), level, "{options}: {output:?}");
    }
}

#[test]
fn without_partitions_both_have_the_whole_gpu() {
    let world = World::in_memory();
    let program = compile(&world, "gate");
    let mut low = Program::start(&world, &program, "low", "--via time --priority low");
    let mut high = Program::start(&world, &program, "high", "--via time --priority high");
    assert_eq!(world.row("high")["sms"], world.row("low")["sms"]);
    assert!(is_seen(true, &mut high, &mut low));
    // The two ways of taking turns exclude each other, and a partition finds no room beside tenants
    // that have everything.
    let refused = world.refused("run --via time --time 30% --name timed -- true");
    assert!(refused.contains("by a priority"), "{refused}");
    assert!(world.refused("run --sm 10% --name part -- true").contains("free"));
}

#[test]
fn a_process_that_yields_has_short_turns_while_another_needs_them() {
    if partita_testing::is_real() {
        eprintln!("skipped: only the simulated driver tells a process's time slice");
        return;
    }
    let world = World::in_memory();
    let program = compile(&world, "gate");
    let mut low = Program::start(&world, &program, "low", "--via time --priority low");
    let given = low.tell("slice");
    assert_ne!(given, "50");
    let mut launch_until = |slice: &str| {
        let deadline = Instant::now() + PATIENCE;
        while low.tell("slice") != slice {
            assert!(Instant::now() < deadline, "it has {}, not {slice}", low.tell("slice"));
            assert_eq!((low.tell("launch"), low.tell("sync")), ("ok".into(), "ok".into()));
        }
    };
    {
        let mut high = Program::start(&world, &program, "high", "--via time --priority high");
        assert_eq!((high.tell("launch"), high.tell("sync")), ("ok".into(), "ok".into()));
        launch_until("50");
        assert_eq!(high.tell("slice"), given);
        // Priorities change while programs run.
        world.ok("set low --priority normal");
        launch_until(&given);
        world.ok("set low --priority low");
        launch_until("50");
        // Two of them would lose their time to switches.
        let mut other = Program::start(&world, &program, "other", "--via time --priority low");
        assert_eq!((other.tell("launch"), other.tell("sync")), ("ok".into(), "ok".into()));
        launch_until(&given);
        drop(other);
        launch_until("50");
    }
    launch_until(&given);
}

/// A program of low priority with an executable graph of 40 kernels in a row, which waits inside
/// after every eighth: no length is known.
fn low_with_graph(world: &World) -> Program {
    let program = compile(world, "gate_graph");
    let mut low = Program::start(world, &program, "low", "--sm 25% --priority low");
    assert_eq!(low.tell("make 40"), "same");
    low
}

impl Program {
    fn progress(&mut self) -> u32 {
        self.tell("progress").parse().unwrap()
    }

    /// Launches the graph, and returns before its end.
    fn begin_graph(&mut self) {
        assert_eq!(self.tell("run"), "ok");
        let deadline = Instant::now() + PATIENCE;
        while self.progress() < 3 {
            assert!(Instant::now() < deadline, "it never begins");
        }
    }
}

#[test]
fn a_long_graph_stops_in_its_midst() {
    let world = World::in_memory();
    let mut low = low_with_graph(&world);
    let mut high = Program::start(&world, &compile(&world, "gate"), "high", "--sm 25% --priority high");
    // No other tenant existed when the executable was made, and its launch passes an open gate.
    let stops = |_| {
        low.begin_graph();
        assert_eq!(high.tell("launch"), "ok");
        // A launch that has passed the wait continues to the next one.
        std::thread::sleep(Duration::from_millis(12));
        let stopped = low.progress();
        std::thread::sleep(Duration::from_millis(8));
        let still = low.progress();
        assert_eq!(high.tell("sync"), "ok");
        low.ends();
        assert_eq!(low.progress(), 40);
        stopped == still && (8..40).contains(&still) && still.is_multiple_of(8)
    };
    // A lane that stays closed is passed for a while: hence several tries, one of which has 20 ms
    // for itself.
    assert!((0..20).any(stops));
}

#[test]
fn branches_of_a_graph_stop_in_their_midst_and_the_graph_stays_what_it_was() {
    const BRANCHES: u32 = 3;
    let world = World::in_memory();
    let program = compile(&world, "gate_graph");
    let mut low = Program::start(&world, &program, "low", "--sm 25% --priority low");
    assert_eq!(low.tell(&format!("make 40 {BRANCHES}")), "same");
    let mut high = Program::start(&world, &compile(&world, "gate"), "high", "--sm 25% --priority high");
    let progress = |low: &mut Program| -> Vec<u32> {
        (0..BRANCHES).map(|branch| low.tell(&format!("progress {branch}")).parse().unwrap()).collect()
    };
    let stops = |_| {
        low.begin_graph();
        assert_eq!(high.tell("launch"), "ok");
        std::thread::sleep(Duration::from_millis(12));
        let stopped = progress(&mut low);
        std::thread::sleep(Duration::from_millis(8));
        let still = progress(&mut low);
        assert_eq!(high.tell("sync"), "ok");
        low.ends();
        assert_eq!(progress(&mut low), [40; BRANCHES as usize]);
        stopped == still && still.iter().all(|ended| (1..40).contains(ended))
    };
    assert!((0..20).any(stops));
    assert_eq!(low.tell(&format!("update 40 {BRANCHES}")), "0 none same");
    let told = low.tell(&format!("update 40 {}", BRANCHES - 1));
    assert!(told.starts_with("910 ") && told.ends_with(" same") && !told.contains("foreign"), "{told}");
    assert_eq!((low.tell("run"), low.tell("sync")), ("ok".into(), "ok".into()));
    assert_eq!(progress(&mut low), [1040; BRANCHES as usize]);
}

#[test]
fn a_process_that_dies_while_a_graph_waits_inside_holds_it_no_longer() {
    let world = World::in_memory();
    let mut low = low_with_graph(&world);
    let mut high = Program::start(&world, &compile(&world, "gate"), "high", "--sm 25% --priority high");
    // No process had claimed a lane at its launch.
    low.begin_graph();
    assert_eq!(high.tell("launch"), "ok");
    let pid = world.row("high")["processes"][0]["pid"].as_i64().unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    assert_eq!(low.tell("sync"), "ok");
    assert_eq!(low.progress(), 40);
}

#[test]
fn the_programs_graph_and_its_nodes_stay_what_they_were() {
    let world = World::in_memory();
    let mut low = low_with_graph(&world);
    // A graph of the same shape updates it; a longer one does not, and the error names only nodes
    // of the program.
    assert_eq!(low.tell("update 40"), "0 none same");
    assert_eq!((low.tell("run"), low.tell("sync")), ("ok".into(), "ok".into()));
    assert_eq!(low.progress(), 1040);
    for kernels in [39, 41, 3] {
        let told = low.tell(&format!("update {kernels}"));
        assert!(told.starts_with("910 ") && told.ends_with(" same") && !told.contains("foreign"), "{told}");
    }
    // Every kernel is changed through the node that it was captured as, and the first one disabled
    // and enabled.
    assert_eq!(low.tell("change"), "ok");
    assert_eq!((low.tell("run"), low.tell("sync")), ("ok".into(), "ok".into()));
    assert_eq!(low.progress(), 1040);
    // Its kernels carry the mask of the limits, through nodes of the same graph.
    world.ok("set low --sm 50%");
    assert_eq!((low.tell("run"), low.tell("sync")), ("ok".into(), "ok".into()));
    assert_eq!(low.progress(), 1040);
    // Nodes cannot be removed from a graph with memory nodes, so none are added.
    assert_eq!(low.tell("memory"), "same");
}

#[test]
fn who_is_not_low_any_more_does_not_wait_for_itself() {
    let world = World::in_memory();
    let mut low = low_with_graph(&world);
    world.ok("set low --priority high");
    // Its graph would wait for the lane that its own launches close, up to the longest hold: many
    // times.
    assert_eq!(
        (low.tell("launch"), low.tell("run"), low.tell("launch")),
        ("ok".into(), "ok".into(), "ok".into())
    );
    assert_eq!(low.tell("sync"), "ok");
    assert_eq!(low.progress(), 40);
    let other = compile(&world, "gate");
    let mut other = Program::start(&world, &other, "other", "--sm 25% --priority low");
    // No other tenant waits for it either, until it is instantiated again. Once would not show it:
    // see above.
    let mut passes = || {
        std::thread::sleep(Duration::from_millis(6));
        assert_eq!(low.tell("launch"), "ok");
        let held = other.is_held_for(Duration::from_millis(35));
        assert_eq!(low.tell("sync"), "ok");
        other.ends();
        !held
    };
    let passed = (0..20).filter(|_| passes()).count();
    assert!(passed > 10, "{passed} of 20");
}

#[test]
fn a_process_that_dies_or_never_waits_holds_no_other_for_ever() {
    let world = World::in_memory();
    let program = compile(&world, "gate");
    let mut low = Program::start(&world, &program, "low", "--sm 25% --priority low");
    let mut high = Program::start(&world, &program, "high", "--sm 25% --priority high");
    // It launches, and never waits: low still passes.
    assert_eq!(high.tell("launch"), "ok");
    assert_eq!((low.tell("launch"), low.tell("sync")), ("ok".into(), "ok".into()));
    assert_eq!(high.tell("sync"), "ok");
    // It is killed with its lane closed, and low has its work queued.
    assert_eq!(high.tell("launch"), "ok");
    assert_eq!(low.tell("launch"), "ok");
    let pid = world.row("high")["processes"][0]["pid"].as_i64().unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    assert_eq!(low.tell("sync"), "ok");
    assert_eq!((low.tell("launch"), low.tell("sync")), ("ok".into(), "ok".into()));
}
