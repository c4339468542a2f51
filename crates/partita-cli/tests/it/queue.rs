//! `partita run --wait`: programs that wait for room, and the order of their starts.

use crate::common;

use std::process::Stdio;

use common::{Tenant, World, needs_simulator, refusal_by, text};
use partita_testing::eventually;
use rustix::process::Signal;
use serde_json::Value;

/// Starts a program that waits, or starts, with these options of `run`.
fn start(world: &World, options: &str) -> Tenant {
    let mut command = world.partita(["run"].into_iter().chain(options.split_whitespace()));
    Tenant::start(command.args(["--", "sh", "-c", "echo ready; exec sleep 1000"]).stderr(Stdio::null()))
}

/// The names of those that wait, and how many must start before each.
fn queue(world: &World) -> Vec<(String, u64)> {
    let rows: Vec<Value> = serde_json::from_str(&world.ok("ps --waiting --json")).unwrap();
    let row = |row: &Value| (row["name"].as_str().unwrap().to_owned(), row["ahead"].as_u64().unwrap());
    rows.iter().map(row).collect()
}

/// Starts one that must wait, and returns when it does.
fn waiting(world: &World, name: &str, options: &str) -> Tenant {
    let tenant = start(world, &format!("--wait --name {name} {options}"));
    eventually("it waits", || queue(world).iter().any(|(waiting, _)| waiting == name));
    tenant
}

fn names(world: &World) -> Vec<String> {
    world.ps().iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn starts_are_in_the_order_of_arrival() {
    let world = World::new();
    let mut held = world.idle("--name held --sm 60%");
    let mut big = waiting(&world, "big", "--sm 80%");
    // There would be room for it now.
    let mut small = waiting(&world, "small", "--sm 10%");
    assert_eq!(queue(&world), [("big".to_owned(), 0), ("small".to_owned(), 1)]);
    let shown = world.ok("ps");
    assert!(shown.contains("WAITING") && shown.contains("big") && shown.contains("held"), "{shown}");
    let refused = world.refused("run --name late --sm 10% -- true");
    assert!(refused.contains("big") && refused.contains("small") && refused.contains("--wait"), "{refused}");
    assert_eq!(names(&world), ["held"]);
    held.signal(Signal::TERM);
    assert_eq!((big.next_line(), small.next_line()), ("ready".to_owned(), "ready".to_owned()));
    assert_eq!(queue(&world), []);
    // It fits once one of them has ended.
    let mut last = waiting(&world, "last", "--sm 20%");
    big.signal(Signal::TERM);
    assert_eq!(last.next_line(), "ready");
    drop((big, small, last));
}

#[test]
fn a_waiter_that_dies_holds_nobody_up() {
    let world = World::new();
    let held = world.idle("--name held --sm 60%");
    let mut first = waiting(&world, "first", "--sm 80%");
    let mut second = waiting(&world, "second", "--sm 70%");
    let mut third = waiting(&world, "third", "--sm 10%");
    first.signal(Signal::KILL);
    first.child.wait().unwrap();
    assert_eq!(queue(&world), [("second".to_owned(), 0), ("third".to_owned(), 1)]);
    // Asked to end, it leaves its place before it ends.
    second.signal(Signal::INT);
    assert_eq!(second.exit_code(), 128 + 2);
    let mut fourth = waiting(&world, "fourth", "--sm 90%");
    let ended = world.line("kill fourth");
    assert!(ended.status.success() && text(&ended.stderr).contains("had not started"), "{ended:?}");
    assert_eq!(fourth.exit_code(), 128 + 15);
    world.refused("kill fourth");
    assert_eq!(third.next_line(), "ready");
    assert_eq!(queue(&world), []);
    assert_eq!(names(&world), ["held", "third"]);
    drop(held);
}

#[test]
fn a_time_that_passes_names_who_has_what() {
    if needs_simulator("memory of a known size") {
        return;
    }
    let world = World::new();
    let _held = world.idle("--name held --sm 60% --mem 10GiB");
    for (options, part) in [("--sm 80%", "80%"), ("--sm 10% --mem 135GiB", "--mem 135")] {
        let line = format!("run --wait=0s --name vain {options} -- true");
        let output = world.line(&line);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(queue(&world), []);
    let said = text(&world.line("run --wait=0s --name vain --sm 80% -- true").stderr);
    assert!(said.contains("no room within that time") && said.contains("`held` holds 39 TPCs"), "{said}");
    let _first = waiting(&world, "first", "--sm 80%");
    let said = text(&world.line("run --wait=0s --name vain --sm 10% -- true").stderr);
    assert!(said.contains("first of") && said.contains("held has 78 SMs and 10.0GiB"), "{said}");
    assert_eq!(queue(&world), [("first".to_owned(), 0)]);
}

#[test]
fn what_can_never_fit_does_not_wait() {
    let world = World::new();
    let _held = world.idle("--name held --sm 60%");
    let ahead = waiting(&world, "ahead", "--sm 80%");
    for (code, options) in [
        (125, "--sm 300% -- true"),
        (125, "--mem 100000GiB -- true"),
        (125, "--name ahead --sm 10% -- true"),
        (127, "--sm 10% -- /no/such/program"),
    ] {
        let words = "run --wait".split(' ').chain(options.split(' '));
        refusal_by(code, &mut world.partita(words));
    }
    assert!(world.refused("run --wait=10 -- true").contains("with its unit"));
    assert!(world.refused("run --wait --dry-run").contains("--dry-run"));
    drop(ahead);
}

#[test]
fn a_detached_run_waits_too() {
    let world = World::new();
    let mut held = world.idle("--name held --sm 60%");
    let line = "run --detach --wait --name later --sm 80% -- sleep 1000";
    let mut command = world.partita(line.split(' '));
    let detached = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    eventually("it waits", || queue(&world) == [("later".to_owned(), 0)]);
    held.signal(Signal::TERM);
    let output = detached.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "later\n".to_owned()));
    assert_eq!(queue(&world), []);
    assert!(world.ok("kill later").contains("1 process"));
}
