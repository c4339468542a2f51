//! Shares of time, by the GPU's own clock: a program's share is the time that its kernels recorded.

use crate::common;

use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Answering, World, compile, gpu_program};
use rustix::process::{Pid, Signal, kill_process};

/// Time before the measurement, in milliseconds: longer than all of a tenant's savings last.
pub const SKIP_MS: u32 = 450;
pub const MEASURE_MS: u32 = 1100;

/// The program of `hook/time.c` as a tenant.
pub struct Program(Answering);

impl Program {
    fn start(world: &World, name: &str, options: &str) -> Self {
        let line = format!("run --isolation own --name {name} {options} --");
        let mut command = world.partita(line.split_whitespace());
        Self::of(command.arg(compile(world, "time")).arg(&gpu_program().1))
    }

    /// The one that this command starts.
    pub fn of(command: &mut Command) -> Self {
        let mut program = Answering::start(command);
        assert_eq!(program.tenant.next_line(), "ready");
        Self(program)
    }

    /// Tells it to do something, and does not wait for the end.
    pub fn begin(&mut self, what: &str) {
        writeln!(self.0.input, "{what}").unwrap();
    }

    fn tell(&mut self, what: &str) -> i64 {
        self.0.line(what).parse().unwrap()
    }

    /// The share of the time in which kernels of this form ran, in thousandths, and their total
    /// time, in seconds.
    pub fn share(&mut self, form: &str, skip_ms: u32, ms: u32) -> (i64, f64) {
        let answer = self.0.line(&format!("share {form} {skip_ms} {ms}"));
        let (share, kernels_us) = answer.split_once(' ').unwrap();
        (share.parse().unwrap(), kernels_us.parse::<f64>().unwrap() / 1e6)
    }

    /// Its kernels run all the time in at least one of a number of tries, on a machine that may be
    /// busy.
    fn has_all(&mut self) {
        let shares: Vec<i64> = (0..5).map(|_| self.share("kernel 1000000", 50, 400).0).collect();
        assert!(shares.iter().any(|share| *share > 950), "{shares:?} ‰");
    }
}

/// Whether it is the promised share, to two points. Between kernels of 50 µs a real GPU runs none
/// for 3 % of the time, which a tenant pays for like its kernels.
pub fn is_promised(share: i64, percent: i64) -> bool {
    let gaps = if partita_testing::is_real() { percent * 10 * 3 / 100 } else { 0 };
    (share - percent * 10 + gaps / 2).abs() <= 20 + gaps / 2
}

/// The promised share shows in one of ten tries. On an idle machine, a tenant's savings and its
/// debt from a late look do not affect a second; on a busy one they do. If there was no time to
/// mark a kernel's end, its length is an estimate, too.
pub fn is_seen(what: &str, mut test: impl FnMut() -> Result<(), String>) {
    let mut tries = Vec::new();
    while tries.len() < 10 {
        match test() {
            Ok(()) => return,
            Err(seen) => tries.push(seen),
        }
    }
    panic!("{what}: {tries:#?}");
}

/// The share that `measure` finds is the promised one.
fn has_share(what: &str, percent: i64, mut measure: impl FnMut() -> i64) {
    is_seen(what, || {
        let share = measure();
        if is_promised(share, percent) { Ok(()) } else { Err(format!("{share} ‰ at {percent} %")) }
    });
}

/// GPU time that a tenant has used, by its account, after the last look at its work.
fn used_s(world: &World, name: &str) -> f64 {
    let look = || {
        std::thread::sleep(Duration::from_millis(60));
        world.row(name)["time"]["used_s"].as_f64().unwrap()
    };
    let mut used = look();
    for _ in 0..100 {
        let again = look();
        if again == used {
            return used;
        }
        used = again;
    }
    panic!("`{name}` is charged on and on, for {used} s by now");
}

/// Kernels of this form have the promised share, and are charged in full.
fn is_held(world: &World, program: &mut Program, name: &str, form: &str, percent: i64) {
    is_seen(form, || {
        let before = used_s(world, name);
        let (share, kernels_s) = program.share(form, SKIP_MS, MEASURE_MS);
        let charged_s = used_s(world, name) - before;
        if is_promised(share, percent) && charged_s >= kernels_s * 0.98 {
            return Ok(());
        }
        Err(format!("{charged_s} s charged for {kernels_s} s, {share} ‰ at {percent} %"))
    });
}

#[test]
fn kernels_get_their_share_whatever_their_length() {
    let world = World::measured();
    let mut program = Program::start(&world, "timed", "--sm 25% --time 10%");
    for percent in [10, 25, 50, 75] {
        // A change applies to a running program from the next look at its budget on.
        world.ok(&format!("set timed --time {percent}%"));
        for form in ["kernel 50000", "kernel 1000000", "kernel 10000000", "graph 500000"] {
            is_held(&world, &mut program, "timed", form, percent);
        }
    }
    let row = world.row("timed");
    assert_eq!((&row["time"]["share_percent"], &row["time"]["policy"]), (&75.0.into(), &"hard".into()));
    assert!(row["time"]["used_s"].as_f64().unwrap() > 5.0, "{row}");
    let text = world.ok("ps");
    assert!(text.contains("/75%") && text.contains("normal"), "{text}");
    world.ok("set timed --time 100%");
    program.has_all();
}

#[test]
fn every_form_of_launch_is_charged() {
    let world = World::measured();
    let mut program = Program::start(&world, "forms", "--sm 25% --time 50%");
    for form in ["ex", "cooperative", "legacy", "thread"] {
        is_held(&world, &mut program, "forms", &format!("{form} 200000"), 50);
    }
    // The capture has exactly the program's launches.
    assert_eq!(program.tell("capture 5"), 5);
}

/// Copies run on other units of the GPU, and a share of time does not count them.
#[test]
fn copies_are_not_charged() {
    let world = World::measured();
    let mut program = Program::start(&world, "copies", "--sm 25% --time 10%");
    assert!(program.share("kernel 1000000", 0, 50).1 > 0.0);
    let before = used_s(&world, "copies");
    assert!(before > 0.0);
    assert_eq!(program.tell("copies 200"), 0);
    assert_eq!(used_s(&world, "copies"), before);
    // The clock still runs.
    assert!(program.share("kernel 1000000", 0, 50).1 > 0.0);
    assert!(used_s(&world, "copies") > before);
}

#[test]
fn all_processes_of_a_tenant_have_one_budget() {
    let world = World::measured();
    let mut program = Program::start(&world, "two", "--sm 25% --time 40%");
    has_share("two at a time", 40, || program.tell(&format!("both 1000000 {SKIP_MS} {MEASURE_MS}")));
    // One is killed at any point; the other continues, with the same budget.
    for _ in 0..3 {
        has_share("one is killed", 40, || program.tell(&format!("killed 500000 {SKIP_MS} {MEASURE_MS}")));
    }
    // A stopped one does not delay the others either.
    has_share("one is stopped", 40, || program.tell(&format!("stopped 500000 {SKIP_MS} {MEASURE_MS}")));
    assert_eq!(world.row("two")["processes"].as_array().unwrap().len(), 1);
}

/// Kernels of six processes run in the same second, and all processes are too late to report them:
/// they are stopped here, as a driver that keeps them waiting does it.
#[test]
fn time_that_many_processes_report_late_is_charged_once() {
    let world = World::measured();
    let program = compile(&world, "time");
    let start = |words: &str| {
        Program::of(world.partita(words.split_whitespace()).arg(&program).arg(&gpu_program().1))
    };
    let mut programs = vec![start("run --name many --sm 25% --time 50% --")];
    programs.extend((0..5).map(|_| start("exec many --")));
    // They save as much as they may: the gate stays open for all of them.
    let (before, begin) = (used_s(&world, "many"), Instant::now());
    programs.iter_mut().for_each(|program| program.begin("burst 1 600000000 0 1"));
    std::thread::sleep(Duration::from_millis(100));
    let row = world.row("many");
    let pids = row["processes"].as_array().unwrap().iter().map(|one| one["pid"].as_i64().unwrap() as i32);
    let pids: Vec<Pid> = pids.filter_map(Pid::from_raw).collect();
    assert_eq!(pids.len(), 6, "{row}");
    for (signal, pause_ms) in [(Signal::STOP, 900), (Signal::CONT, 0)] {
        pids.iter().for_each(|pid| kill_process(*pid, signal).unwrap());
        std::thread::sleep(Duration::from_millis(pause_ms));
    }
    programs.iter_mut().for_each(|program| drop(program.0.tenant.next_line()));
    let (charged_s, passed_s) = (used_s(&world, "many") - before, begin.elapsed().as_secs_f64());
    eprintln!("{charged_s} s charged in {passed_s} s");
    assert!(charged_s <= passed_s, "{charged_s} s charged in {passed_s} s");
}

#[test]
fn a_dead_process_is_charged() {
    let world = World::measured();
    let mut program = Program::start(&world, "short", "--sm 25% --time 20%");
    let before = used_s(&world, "short");
    // None of these lives long enough to report its work.
    program.tell("short 2000000 12");
    program.share("kernel 100000", 1, 60);
    let used = used_s(&world, "short") - before;
    assert!(used >= 12.0 * 0.002, "{used} s for twelve kernels of 2 ms");
}

/// Its work is first looked at while it exits, when nothing can be asked of the driver any more.
#[test]
fn a_process_that_exits_at_once_is_charged_no_more_than_its_time() {
    let world = World::measured();
    let mut program = Program::start(&world, "exits", "--sm 25% --time 90%");
    let (before, begin) = (used_s(&world, "exits"), Instant::now());
    program.tell("exits 1000 40");
    let (charged_s, passed_s) = (used_s(&world, "exits") - before, begin.elapsed().as_secs_f64());
    assert!(charged_s <= passed_s, "{charged_s} s charged in {passed_s} s");
}

#[test]
fn a_program_may_end_while_its_work_waits_for_the_gate() {
    let world = World::measured();
    // 150 ms of kernels at a tenth of the time: the gate is closed when the program ends.
    for end in ["leave 150 1000000", "destroy 150 1000000"] {
        let mut program = Program::start(&world, "leaving", "--sm 25% --time 10%");
        program.begin(end);
        assert_eq!(program.0.tenant.exit_code(), 0, "{end}");
    }
}

#[test]
fn work_that_waits_for_work_at_the_gate_does_not_keep_it_closed() {
    let world = World::measured();
    let mut program = Program::start(&world, "crossed", "--sm 25% --time 25%");
    assert_eq!(program.tell("crossed 3"), 0);
}

#[test]
fn a_launch_that_is_captured_is_no_part_of_a_unit_of_time() {
    let world = World::measured();
    let mut program = Program::start(&world, "captures", "--sm 25% --time 90%");
    assert_eq!(program.tell("captures 20"), 0);
    // If a unit's end were captured, it would never be seen.
    used_s(&world, "captures");
}

#[test]
fn what_a_program_does_in_bursts_is_charged_as_it_is() {
    let world = World::measured();
    let mut program = Program::start(&world, "bursts", "--sm 25% --time 90%");
    for burst in ["burst 1 300000 3", "burst 7 100000 2", "burst 50 20000 5"] {
        is_seen(burst, || {
            let before = used_s(&world, "bursts");
            let kernels_s = program.tell(&format!("{burst} 500")) as f64 / 1e6;
            let used = used_s(&world, "bursts") - before;
            // A launch on a busy machine may come late, which affects the measurement.
            if used >= kernels_s * 0.98 && used <= kernels_s * 1.6 + 0.02 {
                return Ok(());
            }
            Err(format!("{used} s charged for {kernels_s} s of kernels"))
        });
    }
}

#[test]
fn a_soft_share_borrows_idle_time_and_returns_it() {
    let world = World::measured();
    let mut soft = Program::start(&world, "soft", "--via time --time 30% --time-policy soft");
    assert_eq!(world.row("soft")["time"]["policy"], "soft");
    soft.has_all();
    // Another tenant comes that needs it all the time.
    let mut other = Program::start(&world, "other", "--via time --time 20%");
    let wanting = std::thread::spawn(move || {
        other.share("kernel 1000000", 0, 6000);
        other
    });
    let beside: Vec<i64> = (0..6).map(|_| soft.share("kernel 1000000", 300, 500).0).collect();
    let _other = wanting.join().unwrap();
    assert!(beside.iter().any(|share| is_promised(*share, 30)), "{beside:?}");
    soft.has_all();
    // A hard one does not borrow.
    world.ok("set soft --time-policy hard");
    is_held(&world, &mut soft, "soft", "kernel 1000000", 30);
}

#[test]
fn a_tenant_on_two_gpus_has_a_share_of_each() {
    if common::needs_simulator("it has two GPUs") {
        return;
    }
    let world = World::plan().in_memory().measured().on(|_| vec![("PARTITA_SIM_GPUS", "2".into())]);
    let mut program =
        Program::start(&world, "both", "--gpu sim:h200:1,0 --via time --time 40% --time-policy soft");
    // There is no other tenant on either, and its own other half is not a neighbour.
    program.has_all();
    world.ok("set both --gpu sim:h200:1 --time-policy hard");
    has_share("kernel 1000000", 40, || program.share("kernel 1000000", SKIP_MS, MEASURE_MS).0);
    let used: Vec<f64> = world.ps().iter().map(|row| row["time"]["used_s"].as_f64().unwrap()).collect();
    assert_eq!(used.len(), 2);
    assert!(used.iter().any(|used| *used > 0.5) && used.iter().any(|used| *used < 0.01), "{used:?}");
}

/// A stream's channel has room for some 1,000 commands. A program that launches more waits, and so
/// do other calls then, such as those that put a fence: the thread that opens the gate makes none.
#[test]
fn programs_that_launch_far_ahead_get_their_share() {
    let world = World::measured();
    for options in ["--via time", "--sm 50%", "--via time --isolation own"] {
        let line = format!("run --name ahead {options} --time 30% --");
        let mut command = world.partita(line.split_whitespace());
        let mut program = Program::of(command.arg(compile(&world, "time")).arg(&gpu_program().1));
        let kernels_us = program.tell("burst 3000 20000 0 1");
        assert_eq!(kernels_us, 60_000, "{options}");
        // Twice 1,000 are ahead of the GPU, for longer than a mark of the GPU's clock lasts.
        for form in ["legacy 20000", "beside 20000"] {
            assert!(program.share(form, 0, 1500).1 > 0.0, "{options} {form}");
        }
    }
}

#[test]
fn shares_of_the_whole_gpu_are_promises() {
    let world = World::in_memory();
    let _first = world.idle("--isolation own --name first --via time --time 60%");
    let refused = world.refused("run --isolation own --name second --via time --time 50% -- true");
    assert!(refused.contains("40% of the time") && refused.contains("`first` was promised 60%"), "{refused}");
    let _second = world.idle("--isolation own --name second --via time --time 40%");
    assert_eq!(world.row("first")["sms"], world.row("second")["sms"]);
    let refused = world.refused("set second --time 41%");
    assert!(refused.contains("40% of the time"), "{refused}");
    let refused = world.refused("set second --sm 25%");
    assert!(refused.contains("shares its compute units"), "{refused}");
    world.ok("set first --time 30%");
    world.ok("set second --time 70%");
    // No tenant that needs a partition fits beside those that have all units.
    let refused = world.refused("run --isolation own --name third --sm 10% -- true");
    assert!(refused.contains("first"), "{refused}");
}

#[test]
fn a_share_is_refused_where_it_could_not_be_kept() {
    let world = World::in_memory();
    let _plain = world.idle("--isolation own --name plain --sm 25%");
    let refused = world.refused("set plain --time 50%");
    assert!(refused.contains("was started without a share of time"), "{refused}");
    assert_eq!(world.row("plain")["time"], serde_json::Value::Null);
    // A GPU cannot map a page of a file on a disk.
    let on_disk = World::new();
    let refused = on_disk.refused("run --isolation own --sm 25% --time 50% -- true");
    assert!(refused.contains("no tmpfs") && refused.contains("/dev/shm"), "{refused}");
}
