//! The reader of a command's output goes away: no panic, no complaint, the work is still done, and
//! the exit code is that of a normal run.

use crate::common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{PATIENCE, Tenant, World, text};

/// Runs a command whose output has no reader, as before `| head -0`.
fn unread(command: &mut Command) -> Output {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command.stdout(writer).output().expect("partita runs")
}

fn looping(world: &World, name: &str) -> Tenant {
    let mut tenant = Tenant::start(&mut world.gpu(&format!("--name {name} --sm 10%"), "loop"));
    assert!(tenant.next_line().starts_with("sms"));
    tenant
}

#[test]
fn every_command_ends_as_if_it_had_been_read() {
    let world = World::new();
    world.keeper_ok("mps start");
    let lines = "devices
        devices --json
        topology
        topology --json
        ps
        ps --json
        run --sm 10% --dry-run -- true
        run --sm 10% --dry-run --json -- true
        set --compact
        doctor
        doctor --json
        prove --masks 4 --seed 1 --json
        mps start
        mps start --json
        mps status
        mps status --json
        mps status --metrics
        mps clients
        mps clients --json
        mps limits
        mps limits --policy half --clients 4 --dry-run --unproved
        mps logs
        mps logs --events --json
        chain ps
        chain define --example
        bench --list
        bench figure-3 --gpu sim
        sim env
        completions bash
        man
        man run
        --version
        --help
        mps --help";
    for line in lines.lines().map(str::trim) {
        let command = || match line.starts_with("mps start") {
            true => world.keeper(line),
            false => world.partita(line.split_whitespace()),
        };
        let read = command().output().unwrap();
        let left = unread(&mut command());
        assert_eq!(left.status, read.status, "{line}: {read:?} {left:?}");
        assert_eq!(text(&left.stderr), text(&read.stderr), "{line}");
        // `doctor` has a different exit code for a machine with a fault.
        assert!(read.status.success() || line.starts_with("doctor"), "{line}: {read:?}");
        assert!(!read.stdout.is_empty(), "{line}");
    }
    let stopped = unread(&mut world.keeper("mps stop"));
    assert!(stopped.status.success() && stopped.stderr.is_empty(), "{stopped:?}");
    assert!(world.ok("mps status").contains("does not run"));
}

#[test]
fn every_tenant_is_ended_without_a_message() {
    let world = World::new();
    let mut tenants = ["a", "b"].map(|name| looping(&world, name));
    let ended = unread(&mut world.partita("kill a none b".split(' ')));
    assert_eq!(ended.status.code(), Some(125), "one of them is not there");
    assert!(text(&ended.stderr).contains("none"), "{ended:?}");
    for tenant in &mut tenants {
        assert!(tenant.exit_code() > 0, "it was ended");
    }
    assert!(world.ps().is_empty());
}

#[test]
fn work_of_every_client_is_ended_without_a_message() {
    let world = World::new();
    let mut tenants = ["a", "b"].map(|name| looping(&world, name));
    let clients: serde_json::Value = serde_json::from_str(&world.ok("mps clients --json")).unwrap();
    let pids: Vec<String> = clients.as_array().unwrap().iter().map(|row| row["pid"].to_string()).collect();
    let ended = unread(world.partita(["mps", "terminate"]).args(&pids));
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    for tenant in &mut tenants {
        assert_eq!(tenant.exit_code(), 91, "error 810");
    }
}

#[test]
fn what_is_followed_ends_with_its_reader() {
    let world = World::new();
    world.keeper_ok("mps start");
    let mut command = world.partita("mps logs --follow".split(' '));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert!(line.contains("Control"), "{line}");
    // No more output follows: the command must still notice the reader's end.
    drop(lines);
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("it goes on");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    world.keeper_ok("mps stop");
}
