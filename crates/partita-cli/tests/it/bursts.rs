//! Bursts of work and steps: counted where their end is seen, merged over processes, kept after
//! their end.

use crate::common;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use common::{Answering, World, compile, gpu_program};
use partita_testing::eventually;
use serde_json::Value;

const MS: u64 = 1_000_000;

/// `tests/hook/bursts.c` as a tenant, or as another program in one.
struct Program(Answering);

impl Program {
    fn start(world: &World, line: &str) -> Self {
        let mut command = world.partita(line.split_whitespace());
        command.arg("--").arg(compile(world, "bursts")).arg(&gpu_program().1);
        let mut program = Answering::start(&mut command);
        assert_eq!(program.tenant.next_line(), "ready");
        Self(program)
    }

    /// How long a burst took as the program sees it, in nanoseconds; 0 for other commands.
    fn tell(&mut self, what: &str) -> u64 {
        let said = self.0.ask(what);
        said.first().map_or(0, |line| line.parse().unwrap_or_else(|_| panic!("{said:?}")))
    }
}

/// Count and sum in nanoseconds.
fn of(row: &Value, kind: &str) -> (u64, u64) {
    let number = |name: &str| row[kind][name].as_f64().unwrap_or_else(|| panic!("no {kind}.{name}: {row}"));
    (number("count") as u64, (number("sum_s") * 1e9) as u64)
}

fn bursts(world: &World) -> (u64, u64) {
    of(&world.row("t"), "bursts")
}

/// Runs some commands and returns the bursts that they add.
fn added(world: &World, program: &mut Program, commands: &[&str]) -> (u64, u64) {
    let before = bursts(world);
    commands.iter().for_each(|what| _ = program.tell(what));
    let after = bursts(world);
    (after.0 - before.0, after.1 - before.1)
}

/// The same until they add as many bursts as this, and the time of these: a burst at whose end the
/// hook has just put a fence is not counted. More are never added.
fn adds(world: &World, program: &mut Program, commands: &[&str], bursts: u64) -> u64 {
    let mut tries = (0..20).map(|_| added(world, program, commands));
    let tried = tries.find(|(count, _)| {
        assert!(*count <= bursts, "{count} of {bursts}: {commands:?}");
        *count == bursts
    });
    tried.expect("the bursts are counted").1
}

/// Runs a burst until its end is seen, and returns its time as it was counted, and as the program
/// sees it, in nanoseconds. One wait may not see it: an event is done a moment before its stream,
/// and the hook's own thread may be asking meanwhile. The burst is repeated if it is not counted.
fn burst(world: &World, program: &mut Program, what: &str) -> (u64, u64) {
    let before = bursts(world);
    let end = what.split(' ').next().unwrap();
    let mut seen_ns = 0;
    eventually(&format!("the end of a burst ({what}) is seen"), || {
        seen_ns = program.tell(&format!("burst {what}"));
        (0..20).any(|_| {
            bursts(world).0 > before.0 || {
                seen_ns = program.tell(&format!("again {end}"));
                false
            }
        })
    });
    let after = bursts(world);
    assert_eq!(after.0 - before.0, 1, "{what}");
    (after.1 - before.1, seen_ns)
}

/// Tenants whose launches take different ways through the hook.
const WAYS: [&str; 4] = ["--sm 50%", "--sm 50% --via persistent", TIMED, "--sm 50% --priority high"];
const TIMED: &str = "--time 50% --isolation own";

#[test]
fn bursts_of_known_length_are_counted_in_every_kind_of_tenant() {
    for options in WAYS {
        let world = World::in_memory();
        let mut program = Program::start(&world, &format!("run --name t {options}"));
        burst(&world, &mut program, "context 1 1000000");
        for end in ["stream", "context", "event", "copy", "ask-stream", "ask-event"] {
            for _ in 0..3 {
                let (time_ns, seen_ns) = burst(&world, &mut program, &format!("{end} 2 5000000"));
                // The sum in JSON is rounded.
                assert!(time_ns <= seen_ns + 1000, "{options}, {end}: {time_ns} ns of {seen_ns}");
                // Beside a share of time, the program's own clock sees some of them end early, too.
                let least_ns = if options == TIMED { MS } else { 10 * MS };
                assert!(time_ns + 1000 >= least_ns, "{options}, {end}: {time_ns} ns");
            }
        }
        let row = world.row("t");
        let [p50, p99] = ["p50_us", "p99_us"].map(|name| row["bursts"][name].as_f64().unwrap());
        assert!(p99 >= p50 && (options == TIMED || p50 >= 10_000.0 * 15.0 / 16.0), "{row}");
        if options == WAYS[0] {
            assert_eq!(row["burst_launches"], 1 + 6 * 3 * 2, "{row}");
            let age_s = row["age_s"].as_f64().unwrap();
            let duty = (age_s > 0.0).then(|| row["bursts"]["sum_s"].as_f64().unwrap() * 100.0 / age_s);
            let is_it = match (duty, row["duty_percent"].as_f64()) {
                (Some(duty), Some(shown)) => (duty - shown).abs() < 0.001,
                (duty, shown) => duty.is_none() && shown.is_none(),
            };
            assert!(is_it, "{row}");
        }
        assert!(world.ok("ps").contains("BURSTS"), "{options}");
        assert!(world.ok("ps t").contains("bursts     19, p50/p99 "), "{}", world.ok("ps t"));
    }
}

#[test]
fn a_burst_is_what_runs_until_all_streams_are_done() {
    let world = World::in_memory();
    let mut program = Program::start(&world, "run --name t --sm 50%");
    let sum_ns = adds(&world, &mut program, &["both 20000000"], 1);
    assert!(sum_ns >= 20 * MS, "{sum_ns}");
    // Graphs, and what begins no burst: a captured launch, one that fails, a wait at rest.
    burst(&world, &mut program, "graph 3 1000000");
    assert_eq!(added(&world, &mut program, &["capture", "wait", "refused", "wait", "wait"]), (0, 0));
    // What was launched before the wait belongs to the burst.
    assert_eq!(added(&world, &mut program, &["leave 1000000", "leave 1000000"]), (0, 0));
    let (sum_ns, _) = burst(&world, &mut program, "stream 1 1000000");
    assert!(sum_ns >= 3 * MS, "{sum_ns}");
}

/// Streams that a program makes and does not use cost nothing: PyTorch makes pools of them.
#[test]
fn the_streams_in_use_are_asked_however_many_there_are() {
    let world = World::in_memory();
    let mut program = Program::start(&world, "run --name t --sm 50%");
    for (streams, ns) in [(1, 5 * MS), (8, MS), (3, MS)] {
        let sum_ns = adds(&world, &mut program, &[&format!("spread {streams} {ns}")], 1);
        assert!(sum_ns >= ns, "{streams}: {sum_ns}");
    }
    // More than are asked: the end is seen by a wait for everything, and what was before it is not
    // counted.
    assert_eq!(added(&world, &mut program, &["spread 12 1000000", "spread 1 1000", "wait"]), (0, 0));
    // Other streams take the places of those that are not used any more.
    for _ in 0..3 {
        adds(&world, &mut program, &["spread 8 1000", "burst stream 1 1000"], 2);
    }
}

/// Where an end may have been missed, no length is made up.
#[test]
fn bursts_whose_end_is_not_seen_are_not_counted() {
    let world = World::in_memory();
    let mut program = Program::start(&world, "run --name t --sm 50%");
    burst(&world, &mut program, "stream 1 1000");
    // The streams of threads cannot be asked: only a wait for everything tells.
    assert_eq!(added(&world, &mut program, &["burst thread 1 1000000", "wait"]), (0, 0));
    burst(&world, &mut program, "context 1 1000000");
    let contexts = ["contexts", "burst context 1 1000000", "burst stream 1 1000000"];
    assert_eq!(added(&world, &mut program, &contexts), (0, 0));
}

#[test]
fn steps_are_the_times_between_two_calls() {
    let world = World::in_memory();
    let mut program = Program::start(&world, "run --name t --sm 50%");
    let steps = || of(&world.row("t"), "steps");
    assert_eq!(steps(), (0, 0));
    assert!(!world.ok("ps t").contains("steps"));
    program.0.line("step 1");
    assert_eq!(steps().0, 0, "the first call ends nothing");
    std::thread::sleep(Duration::from_millis(20));
    program.0.line("step 1");
    let (count, sum_ns) = steps();
    assert_eq!(count, 1);
    assert!(sum_ns >= 20 * MS, "{sum_ns}");
    println!("a call of partita_step: {} ns", program.0.line("step 100000"));
    assert_eq!(steps().0, 100_001);
    assert!(world.ok("ps t").contains("steps      100001, p50/p99 "));
    assert_eq!(bursts(&world), (0, 0), "a step is no burst");
}

#[test]
fn two_processes_are_merged_and_a_killed_one_leaves_its_counts() {
    let world = World::in_memory();
    let mut one = Program::start(&world, "run --name t --sm 50%");
    let mut other = Program::start(&world, "exec t");
    burst(&world, &mut one, "stream 1 3000000");
    burst(&world, &mut other, "stream 1 3000000");
    burst(&world, &mut other, "context 1 3000000");
    let (count, sum_ns) = bursts(&world);
    assert_eq!(count, 3);
    assert!(sum_ns >= 9 * MS, "{sum_ns}");
    // In the middle of a burst, for it never waits for this one. The kernel itself is over: a death
    // beside a kernel that runs may end the work of others.
    other.tell("leave 1000");
    std::thread::sleep(Duration::from_millis(200));
    let processes = || world.row("t")["processes"].as_array().unwrap().len();
    assert_eq!(processes(), 2);
    let killed: i32 = other.0.line("pid").parse().unwrap();
    let pid = rustix::process::Pid::from_raw(killed).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    eventually("one process", || processes() == 1);
    assert_eq!(bursts(&world), (count, sum_ns), "what has ended stays, what ran is not counted");
    burst(&world, &mut one, "stream 1 1000000");
    // The next process goes on in the place of the dead one.
    let mut next = Program::start(&world, "exec t");
    assert_eq!(bursts(&world).0, 4);
    burst(&world, &mut next, "stream 1 1000000");
}

#[test]
fn a_tenant_that_lies_in_its_usage_file_harms_no_observer() {
    let world = World::in_memory();
    let mut program = Program::start(&world, "run --name t --sm 50%");
    let _honest = world.idle("--name u --sm 10%");
    program.tell("burst stream 1 1000000");
    let path = world.gpu_dir().join("t/usage");
    let bytes = std::fs::metadata(&path).unwrap().len();
    let usage = OpenOptions::new().write(true).open(&path).unwrap();
    usage.write_all_at(&[0xff; common::PACES_BYTES], bytes - common::PACES_BYTES as u64).unwrap();
    let row = world.row("t");
    for kind in ["bursts", "steps"] {
        assert_eq!(row[kind]["count"], u64::MAX, "{row}");
        assert!(row[kind]["p50_us"].as_f64() <= row[kind]["p99_us"].as_f64(), "{row}");
    }
    assert_eq!(of(&world.row("u"), "bursts"), (0, 0));
    assert!(world.ok("ps").contains('t'));
    assert!(world.ok("top --once").contains("u "));
    // It goes on.
    program.tell("burst stream 1 1000000");
    program.0.line("step 2");
    let look: Value = serde_json::from_str(&world.ok("top --once --json")).unwrap();
    assert!(look["tenants"].as_array().unwrap().iter().any(|row| row["bursts"]["count"].as_u64() > Some(0)));
}
