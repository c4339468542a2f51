//! Targets instead of shares: TPCs move so that targets hold, another process takes over from a
//! killed controller, and `partita run` reports targets that cannot be met.

use crate::common;

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use common::{Answering, PATIENCE, World, compile, gpu_program, needs_user_mode};
use partita_ledger::{GATE_LANES, GateMap, OPEN};
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// `tests/hook/serve.c` as a tenant: bursts of as many waves as 264 blocks take on its SMs, each so
/// many milliseconds long, with pauses between them.
pub fn serve(world: &World, name: &str, options: &str, wave_ms: u64, pause_ms: u64) -> Answering {
    let line = format!("run --name {name} {options} --");
    let mut command = world.partita(line.split_whitespace());
    command.arg(compile(world, "serve")).arg(&gpu_program().1);
    command.args([(wave_ms * 1_000_000).to_string(), pause_ms.to_string()]);
    let mut program = Answering::start(&mut command);
    assert_eq!(program.tenant.next_line(), "ready");
    program
}

fn explain(world: &World, name: &str) -> Value {
    serde_json::from_str(&world.ok(&format!("explain {name} --json"))).expect("explain prints JSON")
}

/// Waits for what the law comes to in its own time.
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + 2 * PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn sms(world: &World, name: &str) -> u64 {
    world.row(name)["sms"].as_u64().unwrap()
}

fn has_step(explained: &Value, what: &str) -> bool {
    explained["steps"].as_array().unwrap().iter().any(|step| step["what"] == what)
}

/// Asserts that no two tenants have a TPC together, and that each has its guarantee.
fn assert_guarantees(world: &World, least: &[(&str, usize)]) {
    let rows = world.ps();
    let mut seen = Vec::new();
    for row in &rows {
        let tpcs = common::tpcs(row["tpcs"].as_str().unwrap());
        let least = least.iter().find(|(name, _)| row["name"] == *name).map_or(1, |(_, least)| *least);
        assert!(tpcs.len() >= least, "{row}");
        assert!(tpcs.iter().all(|tpc| !seen.contains(tpc)), "{rows:?}");
        seen.extend(tpcs);
    }
}

fn kill(pid: u32) {
    rustix::process::kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

/// Ends a program, and returns what was written to its stderr.
fn complaints(program: Answering) -> String {
    let Answering { mut tenant, input } = program;
    drop(input);
    let mut said = String::new();
    tenant.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    said
}

#[test]
fn a_target_gets_what_it_needs_from_a_tenant_for_throughput() {
    let world = World::in_memory();
    let _train = world.idle("--name train --sm 10% --goal throughput");
    // All TPCs, as long as no other tenant needs any.
    wait_until("train has the GPU", || sms(&world, "train") == 132);
    // Nine waves on 8 TPCs: 450 ms. Its room is made at once.
    let serving = serve(&world, "serve", "--sm 8tpc --slo p99=300ms", 50, 10);
    wait_until("the target holds", || {
        assert_guarantees(&world, &[("train", 7), ("serve", 8)]);
        let row = world.row("serve");
        row["target"]["holds"] == true && row["sms"].as_u64() >= Some(32)
    });
    let row = world.row("serve");
    assert_eq!((&row["slo"], &row["target"]["bound_us"]), (&"p99=300ms".into(), &300_000.0.into()));
    assert!(row["target"]["p99_us"].as_f64().is_some(), "{row}");
    assert!(sms(&world, "train") < 132 - 16);
    let explained = explain(&world, "serve");
    assert!(has_step(&explained, "late"), "{explained}");
    assert!(explained["controller"].as_u64().is_some());
    let levels = explained["levels"].as_array().unwrap();
    assert!(
        levels.iter().any(|level| level["tpcs"] == 8 && level["p99_us"].as_f64() > Some(300_000.0)),
        "{explained}"
    );
    let told = world.ok("explain serve");
    assert!(told.contains("target p99=300ms") && told.contains("bursts were late"), "{told}");
    let picture = world.make_dir("pictures").join("serve.svg");
    world.ok(&format!("explain serve --svg {}", picture.display()));
    let svg = std::fs::read_to_string(&picture).unwrap();
    assert!(svg.contains(">target<") && svg.contains("8 TPCs: p99 "), "{svg}");
    // Its bursts are what is drawn, and the other one has none.
    let error = world.refused(&format!("explain train --svg {}", picture.display()));
    assert!(error.contains("nothing was measured yet"), "{error}");
    assert!(has_step(&explain(&world, "train"), "gave-way"));
    assert!(world.ok("ps").contains("p99=300ms"));
    assert_eq!(world.row("train")["goal"], "throughput");
    // The end of the target gives it its share again, and the rest to the other.
    assert!(world.ok("set serve --slo none").contains("16 SMs"));
    assert_eq!(world.row("serve")["slo"], Value::Null);
    wait_until("train has the rest", || sms(&world, "train") == 132 - 16);
    assert!(world.ok("explain serve").contains("--sm 8tpc"), "{}", world.ok("explain serve"));
    drop(serving);
}

#[test]
fn in_turns_a_priority_holds_the_target_and_no_tpc_moves() {
    let world = World::in_memory();
    let train = serve(&world, "train", "--via time --goal throughput", 20, 0);
    let serving = serve(&world, "serve", "--via time --slo p99=5s", 10, 10);
    wait_until("the target holds", || world.row("serve")["target"]["holds"] == true);
    for (name, priority) in [("serve", "high"), ("train", "low")] {
        let row = world.row(name);
        assert_eq!((&row["priority"], &row["sms"]), (&priority.into(), &132.into()), "{row}");
    }
    let told = world.ok("explain serve");
    assert!(
        told.contains("goes before tenants of low priority") && told.contains("the target holds"),
        "{told}"
    );
    let told = world.ok("explain train");
    assert!(told.contains("waits while a tenant of high priority works"), "{told}");
    // No kernel is that short.
    world.ok("set serve --slo p99=3us");
    wait_until("it is missed", || has_step(&explain(&world, "serve"), "unmet"));
    let explained = explain(&world, "serve");
    let steps = explained["steps"].as_array().unwrap();
    assert!(steps.iter().all(|step| step["from_tpcs"] == step["tpcs"]), "{explained}");
    let why = steps.last().unwrap()["why"].as_str().unwrap();
    assert!(why.contains("partita set serve --slo p99=") && why.contains("or end another tenant"), "{why}");
    for (options, says) in [
        ("--via time --slo p99=5s --priority low", "goes before others, and this one has low priority"),
        ("--via time --goal throughput --priority high", "makes way for targets"),
        ("--via time --slo p99=5s --isolation shared", "leave out --isolation shared"),
        // Their compute units are the turns'.
        ("--via mask --slo p99=5s", "to take turns with tenant"),
    ] {
        let error = world.refused(&format!("run --name other {options} -- true"));
        assert!(error.contains(says), "{options}: {error}");
    }
    // Without --via it joins those who take turns.
    let late = serve(&world, "late", "--slo p99=5s", 10, 10);
    assert_eq!((&world.row("late")["via"], &world.row("late")["priority"]), (&"time".into(), &"high".into()));
    drop((train, serving, late));
}

#[test]
fn in_turns_its_own_time_is_learnt_while_those_of_low_priority_wait() {
    let world = World::in_memory();
    if common::is_system() {
        let error = world.refused("run --via time --slo p99=2x -- true");
        assert!(error.contains("write a time"), "{error}");
        return;
    }
    let train = serve(&world, "train", "--via time --goal throughput", 20, 0);
    let serving = serve(&world, "serve", "--via time --slo p99=2x", 5, 1);
    wait_until("it is learnt", || has_step(&explain(&world, "serve"), "learnt"));
    let explained = explain(&world, "serve");
    assert!(explained["alone_us"].as_f64() > Some(4_900.0), "{explained}");
    let why = explained["steps"].to_string();
    assert!(!why.contains("others worked meanwhile"), "{why}");
    // Those who waited go on.
    let launches = || world.row("train")["bursts"]["count"].as_u64();
    let before = launches();
    wait_until("the other works", || launches() > before);
    drop((train, serving));
}

#[test]
fn in_turns_one_that_rests_before_its_own_time_is_learnt_holds_nobody_up() {
    if needs_user_mode("there no time is learnt in turns") {
        return;
    }
    let world = World::in_memory();
    let _train = serve(&world, "train", "--via time --goal throughput", 20, 0);
    let _serving = serve(&world, "serve", "--via time --slo p99=2x", 5, 600_000);
    let gate = world.gpu_dir().join(".turns/gate");
    let gate = GateMap::open(&CString::new(gate.as_os_str().as_encoded_bytes()).unwrap()).unwrap();
    let is_open = || {
        std::thread::sleep(Duration::from_millis(10));
        let claimed = gate.claimed();
        (0..GATE_LANES).all(|lane| claimed >> lane & 1 == 0 || gate.state(lane) & OPEN != 0)
    };
    wait_until("the gate stays open", || (0..50).all(|_| is_open()));
    assert!(!has_step(&explain(&world, "serve"), "learnt"));
}

#[test]
fn another_process_takes_over_when_the_controller_is_killed() {
    if needs_user_mode("there `partitad` controls") {
        return;
    }
    let world = World::in_memory();
    let mut train = world.idle("--name train --sm 10% --goal throughput");
    wait_until("train has the GPU", || sms(&world, "train") == 132);
    let mut serving = serve(&world, "serve", "--sm 8tpc --slo p99=300ms", 10, 10);
    wait_until("train's process controls both", || {
        explain(&world, "serve")["controller"] == train.child.id()
    });
    let other = world.idle("--name other --sm 4tpc");
    kill(train.child.id());
    train.child.wait().unwrap();
    let next = [serving.tenant.child.id(), other.child.id()];
    wait_until("another one controls", || {
        assert_guarantees(&world, &[("serve", 8), ("other", 4)]);
        next.iter().any(|pid| explain(&world, "serve")["controller"] == *pid)
    });
    // It moves TPCs as the first one did: the waves are longer by now.
    writeln!(serving.input, "{}", 50_000_000).unwrap();
    wait_until("the target holds again", || {
        assert_guarantees(&world, &[("serve", 8), ("other", 4)]);
        has_step(&explain(&world, "serve"), "late") && sms(&world, "serve") >= 32
    });
    assert_eq!(sms(&world, "other"), 8);
    // Its program runs on.
    world.ok("kill train");
}

#[test]
fn what_cannot_be_met_is_said_once_with_the_best_and_the_remedy() {
    let world = World::in_memory();
    // A wave alone takes longer.
    let serving = serve(&world, "serve", "--sm 50% --slo p99=40ms", 60, 5);
    let _rest = world.idle("--name rest");
    wait_until("it is known", || world.row("serve")["target"]["unmet"] == true);
    let row = world.row("serve");
    assert_eq!(row["target"]["holds"], false);
    let explained = explain(&world, "serve");
    let unmet: Vec<&Value> =
        explained["steps"].as_array().unwrap().iter().filter(|step| step["what"] == "unmet").collect();
    assert_eq!(unmet.len(), 1, "{explained}");
    assert!(world.ok("explain serve").contains("is missed with all that it can have"));
    assert!(world.ok("ps").contains("cannot be met"));
    let said = complaints(serving);
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("cannot be met")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert!(
        lines[0].contains("the best p99 was") && lines[0].contains("partita set serve --slo p99="),
        "{said}"
    );
}

#[test]
fn a_target_that_masks_cannot_meet_is_tried_in_turns_at_the_next_start() {
    let world = World::in_memory();
    if needs_user_mode("partitad has a memory of its own") {
        return;
    }
    world.make_dir("state");
    let via = |options: &str| {
        let serving = serve(&world, "serve", options, 60, 5);
        let via = world.row("serve")["via"].as_str().unwrap().to_owned();
        (serving, via)
    };
    let end = |program: Answering| {
        let said = complaints(program);
        wait_until("it has ended", || world.ps().iter().all(|row| row["name"] != "serve"));
        said
    };
    let is_unmet = || world.row("serve")["target"]["unmet"] == true;

    // Alone it is no matter of masks. A wave takes longer than the target.
    let (serving, first) = via("--slo p99=40ms");
    wait_until("it is known alone", is_unmet);
    end(serving);
    let train = world.idle("--name train --goal throughput");
    let (serving, second) = via("--slo p99=40ms");
    assert_eq!((first.as_str(), second.as_str()), ("mask", "mask"));
    wait_until("it is known beside another", is_unmet);
    let said = end(serving);
    assert!(!said.contains("takes turns"), "{said}");

    // Beside a tenant with compute units there are no turns.
    let (serving, beside) = via("--slo p99=40ms");
    assert_eq!(beside, "mask");
    end(serving);
    drop(train);
    wait_until("the GPU is free", || world.ps().is_empty());
    for options in ["--slo p99=40ms --via mask", "--slo p99=40ms --sm 50%", "--slo p99=41ms"] {
        let (serving, other) = via(options);
        assert_eq!(other, "mask", "{options}");
        end(serving);
    }

    let (serving, turns) = via("--slo p99=40ms");
    assert_eq!(turns, "time");
    assert!(world.ok("explain serve").contains("Partita chose turns"), "{}", world.ok("explain serve"));
    let train = world.idle("--name train --goal throughput");
    assert_eq!(world.row("train")["via"], "time");
    wait_until("it is known in turns", is_unmet);
    let said = end(serving);
    assert!(said.contains("it takes turns: with masks it could not meet this target before"), "{said}");
    drop(train);
    wait_until("the GPU is free", || world.ps().is_empty());
    // Turns do no better.
    let (serving, last) = via("--slo p99=40ms");
    assert_eq!(last, "mask");
    end(serving);
}

#[test]
fn a_multiple_of_its_own_time_is_learnt_and_remembered() {
    let world = World::in_memory();
    world.make_dir("state");
    let first = serve(&world, "serve", "--slo p99=3x", 10, 1);
    wait_until("its own time is learnt", || explain(&world, "serve")["alone_us"].as_f64().is_some());
    let alone_us = explain(&world, "serve")["alone_us"].as_f64().unwrap();
    assert!(alone_us >= 10_000.0 * 15.0 / 16.0, "{alone_us}");
    wait_until("the bound is three times that", || {
        let bound = world.row("serve")["target"]["bound_us"].as_f64();
        bound.is_some_and(|bound| (bound / alone_us - 3.0).abs() < 0.001)
    });
    let said = complaints(first);
    assert!(said.contains("its own p99 on all that it can have"), "{said}");
    wait_until("it has ended", || world.ps().is_empty());
    if world.system.is_some() {
        return;
    }
    assert!(said.contains("remembered for this command"), "{said}");
    let _second = serve(&world, "serve", "--slo p99=3x", 10, 1);
    wait_until("it is remembered", || explain(&world, "serve")["alone_us"].as_f64() == Some(alone_us));
    assert!(!has_step(&explain(&world, "serve"), "learnt"));
}

#[test]
fn steps_have_targets_too() {
    let world = World::in_memory();
    let _train = world.idle("--name train --goal throughput");
    // Its bursts of 50 ms are in time, its steps are not.
    let _serving = serve(&world, "serve", "--sm 33tpc --slo step-p99=100ms", 10, 200);
    wait_until("the steps are late", || world.row("serve")["target"]["holds"] == false);
    assert!(world.row("serve")["target"]["p99_us"].as_f64() > Some(150_000.0));
}

/// What was seen of bursts is no evidence of steps, even if the time is the same.
#[test]
fn a_target_of_steps_begins_without_the_bursts() {
    let world = World::in_memory();
    let _train = world.idle("--name train --goal throughput");
    let _serving = serve(&world, "serve", "--sm 33tpc --slo p99=100ms", 10, 200);
    wait_until("its bursts are known", || world.row("serve")["target"]["holds"] == true);
    world.ok("set serve --slo step-p99=100ms");
    wait_until("its steps are known", || world.row("serve")["target"]["holds"] == false);
    let levels = explain(&world, "serve")["levels"].clone();
    let means = levels.as_array().unwrap().iter().map(|level| level["mean_us"].as_f64().unwrap());
    assert!(means.clone().count() > 0 && means.clone().all(|mean_us| mean_us > 150_000.0), "{levels}");
}

/// One that says that all its bursts are late moves its own TPCs, and no guarantee.
#[test]
fn a_tenant_that_lies_harms_no_guarantee() {
    let world = World::in_memory();
    let _train = world.idle("--name train --sm 10% --goal throughput");
    let _honest = world.idle("--name honest --sm 12tpc --slo p99=5ms");
    let _liar = serve(&world, "liar", "--sm 8tpc --slo p99=5ms", 1, 500);
    let usage = OpenOptions::new().write(true).open(world.gpu_dir().join("liar/usage")).unwrap();
    let bytes = usage.metadata().unwrap().len();
    let lies = world.row("liar")["sms"].as_u64().unwrap();
    let least = [("train", 6), ("honest", 12), ("liar", 8)];
    for round in 1..=20u8 {
        usage.write_all_at(&vec![round; common::PACES_BYTES], bytes - common::PACES_BYTES as u64).unwrap();
        assert_guarantees(&world, &least);
        std::thread::sleep(Duration::from_millis(100));
    }
    wait_until("its lies are seen", || world.row("liar")["sms"].as_u64().unwrap() > lies);
    assert_guarantees(&world, &least);
    assert!(sms(&world, "honest") >= 24);
    assert!(world.ok("explain liar").contains("p99"));
}

#[test]
fn those_who_come_get_room_from_what_is_beyond_guarantees() {
    let world = World::in_memory();
    let _train = world.idle("--name train --sm 20tpc --goal throughput");
    wait_until("train has the GPU", || sms(&world, "train") == 132);
    let _share = world.idle("--name share --sm 30tpc");
    assert_eq!(sms(&world, "share"), 60);
    let _named = world.idle("--name named --sm tpc:0-3");
    let _even = world.idle("--name even");
    assert_guarantees(&world, &[("train", 20), ("share", 30), ("named", 4)]);
    assert_eq!(world.row("named")["tpcs"], "0-3");
    let error = world.refused("run --sm 30tpc -- true");
    assert!(error.contains("does not fit"), "{error}");
    // More than its guarantee leaves is refused, too.
    let error = world.refused("set share --sm 60tpc");
    assert!(error.contains("does not fit"), "{error}");
}

#[test]
fn what_is_no_target_is_refused_with_the_remedy() {
    let world = World::in_memory();
    for (options, reason) in [
        ("--slo p99=0", "no burst takes no time"),
        ("--slo p99=2", "2ms"),
        ("--slo p98=2ms", "only p99"),
        ("--slo p99=2min", "us, ms or s"),
        ("--slo p99=1x", "above 1x"),
        ("--slo 2ms", "p99=2.5ms"),
        ("--goal latency", "throughput"),
        ("--slo p99=2ms --goal throughput", "not both"),
        ("--slo p99=2ms --sm 30%..100%", "ceiling"),
        ("--slo p99=2ms --sm 30% --borrow", "ceiling"),
        ("--slo p99=2ms --sm tpc:0-9", "30%"),
        ("--slo p99=2ms --time 50%", "leave out --time"),
        ("--slo p99=2ms --sm 50% --isolation own", "--via time"),
    ] {
        let output = world.line(&format!("run {options} -- true"));
        let said = common::text(&output.stderr);
        assert!(!output.status.success() && said.contains(reason), "{options}: {said}");
    }
    assert!(world.ok("run --dry-run --sm 10% --slo p99=2ms -- true").contains("slo p99=2ms"));
    let _turns = world.idle("--name turns --time 50% --isolation own");
    assert!(world.refused("set turns --slo p99=2ms").contains("leave out --time"));
    assert!(world.refused("explain nobody").contains("no tenant nobody"));
}

#[test]
fn targets_that_exclude_each_other_are_refused_with_the_sum() {
    let world = World::in_memory();
    let _one = world.idle("--name one --sm 60% --slo p99=5ms");
    let _two = world.idle("--name two --sm 10%");
    let error = world.refused("run --sm 60% --slo p99=5ms -- true");
    assert!(error.contains("exclude each other") && error.contains("one needs 39"), "{error}");
    // A target by `set`, and its end, and what a tenant without one is limited by.
    assert!(world.ok("set two --slo p99=2ms").contains("slo p99=2ms"));
    assert_eq!(world.row("two")["slo"], "p99=2ms");
    let told = world.ok("explain two");
    assert!(told.contains("not known: it has not been tried"), "{told}");
    world.ok("set two --goal throughput");
    assert_eq!((&world.row("two")["slo"], &world.row("two")["goal"]), (&Value::Null, &"throughput".into()));
    world.ok("set two --goal none");
    let told = world.ok("explain two");
    assert!(told.contains("it has --sm 10%") && told.contains("partita set two --sm"), "{told}");
}

/// What `explain` advises, `set` takes.
#[test]
fn explain_advises_no_change_that_is_refused() {
    let world = World::in_memory();
    for (options, advises, not) in [
        ("--time 30%", "--time", ["--priority", "--slo"]),
        ("--sm 30% --isolation own", "--sm", ["--slo", "--time"]),
        ("--sm 30%..60%", "--sm", ["--slo", "--time"]),
        ("--sm 30%", "--sm", ["--priority", "--time"]),
    ] {
        let tenant = world.idle(&format!("--name one {options}"));
        let explained = explain(&world, "one");
        let advice = explained["what_if"].to_string();
        assert!(advice.contains(&format!("set one {advises}")), "{options}: {advice}");
        assert!(not.iter().all(|option| !advice.contains(option)), "{options}: {advice}");
        drop(tenant);
        while !world.ps().is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
