//! `partita run --detach`, and the commands that come back to it: `logs`, `attach` and `wait`.

use crate::common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Instant;

use common::{PATIENCE, Tenant, World, refusal_by, succeeds, text};
use rustix::process::Signal;
use serde_json::Value;

/// Starts a detached run of a shell script, and returns the printed name.
fn detach(world: &World, options: &str, script: &str) -> String {
    let mut command = world.partita(["run", "--detach"].into_iter().chain(options.split_whitespace()));
    succeeds(command.args(["--", "sh", "-c", script])).trim_end().to_owned()
}

fn exit_code(world: &World, line: &str) -> Option<i32> {
    world.line(line).status.code()
}

#[test]
fn output_and_exit_code_stay_after_the_end() {
    let world = World::new();
    assert_eq!(detach(&world, "--name one --sm 10%", "echo out; echo err >&2; exit 3"), "one");
    assert_eq!(exit_code(&world, "wait one"), Some(3));
    assert_eq!(world.ok("logs one"), "out\nerr\n");
    assert_eq!(world.ok("logs one --tail 1"), "err\n");
    assert_eq!(world.ok("logs -f one"), "out\nerr\n");
    assert_eq!(exit_code(&world, "wait one"), Some(3), "also long after");
    assert_eq!(exit_code(&world, "attach one"), Some(3));
    // The next run of this name has a log of its own.
    detach(&world, "--name one --sm 10%", "kill -9 $$");
    assert_eq!(exit_code(&world, "wait one"), Some(128 + 9));
    assert_eq!(world.ok("logs one"), "");
    let mut files = vec![world.dir().join("state/detached")];
    while let Some(file) = files.pop() {
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} is the user's alone", file.display());
        files.extend(fs::read_dir(&file).into_iter().flatten().map(|entry| entry.unwrap().path()));
    }
}

#[test]
fn an_earlier_run_is_not_taken_for_the_tenant_that_runs() {
    let world = World::new();
    detach(&world, "--name one --sm 10%", "echo old; exit 3");
    assert_eq!(exit_code(&world, "wait one"), Some(3));
    let later = world.idle("--name one --sm 10%");
    for command in ["wait", "attach"] {
        let said = world.refused(&format!("{command} one"));
        assert!(said.contains("one runs, but not detached"), "{said}");
    }
    let output = world.line("logs one");
    assert_eq!(text(&output.stdout), "old\n");
    assert!(text(&output.stderr).contains("the log of its last detached run"), "{output:?}");
    drop(later);
    assert_eq!(exit_code(&world, "wait one"), Some(3));
}

#[test]
fn it_runs_in_a_session_of_its_own_without_the_callers_streams() {
    let world = World::new();
    // A reader of the caller's streams gets their end although the program goes on.
    let script = "exec sleep 1000";
    let mut command = world.partita(["run", "--detach", "--json", "--name", "one", "--sm", "10%"]);
    let output = command.args(["--", "sh", "-c", script]).stdin(Stdio::piped()).output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((answer["name"].as_str(), text(&output.stderr)), (Some("one"), String::new()));
    // The shell becomes it, and its start is noted, a moment after the command has answered.
    let deadline = Instant::now() + PATIENCE;
    let sleep = || world.processes().into_iter().find(|(_, name)| name == "sleep");
    while sleep().is_none() || world.row("one")["started"] == false {
        assert!(Instant::now() < deadline, "{:?}", world.processes());
    }
    let pid = sleep().unwrap().0;
    let field = |pid: u32, at: usize| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(')').unwrap().1.split_whitespace().nth(at).unwrap().to_owned()
    };
    let (own, session, terminal) = (field(std::process::id(), 3), field(pid, 3), field(pid, 4));
    assert!(session != own && terminal == "0", "session {session}, terminal {terminal}");
    assert_eq!(fs::read_link(format!("/proc/{pid}/fd/0")).unwrap().to_str(), Some("/dev/null"));
    assert!(world.ok("kill one").contains("1 process"));
    assert_eq!(exit_code(&world, "wait one"), Some(128 + 15));
}

#[test]
fn refusals_reach_the_caller() {
    let world = World::new();
    for (code, options, part) in [
        (125, "--sm 300% -- true", "above 100%"),
        (125, "--sm 10% --name a/b -- true", "63"),
        (127, "-- /no/such/program", "no such program"),
        (126, "-- /", "directory"),
    ] {
        let mut command = world.partita("run --detach".split(' ').chain(options.split(' ')));
        let said = refusal_by(code, &mut command);
        assert!(said.contains(part), "{options}: {said}");
    }
    let _held = world.idle("--name taken --sm 10%");
    assert!(world.refused("run --detach --name taken --sm 10% -- true").contains("in use"));
    assert!(world.refused("run --detach --dry-run -- true").contains("--dry-run"));
    // A tenant of a terminal has no log.
    for line in ["logs taken", "attach taken", "wait taken"] {
        assert!(world.refused(line).contains("no detached run of this name"));
    }
    assert!(fs::read_dir(world.dir().join("state/detached")).unwrap().next().is_none());
}

#[test]
fn a_follower_sees_output_as_it_comes_until_the_end() {
    let world = World::new();
    let gate = world.make_dir("gate");
    let script = format!("echo first; while test ! -e {}/go; do sleep 0.01; done; echo last", gate.display());
    detach(&world, "--name one --sm 10%", &script);
    let mut follower = Tenant::start(&mut world.partita(["logs", "-f", "one"]));
    assert_eq!(follower.next_line(), "first");
    fs::write(gate.join("go"), "").unwrap();
    assert_eq!(follower.next_line(), "last");
    assert_eq!(follower.line(), None);
    assert_eq!(follower.exit_code(), 0);
}

#[test]
fn the_log_is_bounded() {
    let world = World::new();
    // 40 MB of numbered lines.
    detach(&world, "--name one --sm 10%", "seq -f %08.0f 1 4444444");
    assert_eq!(exit_code(&world, "wait one"), Some(0));
    let log = world.ok("logs one");
    assert!(log.ends_with("\n04444444\n") && log.len() > 4 << 20, "{} bytes", log.len());
    let dir = world.dir().join("state/detached/one");
    let bytes: u64 = ["log", "log.1"].map(|file| fs::metadata(dir.join(file)).unwrap().len()).iter().sum();
    assert!(bytes <= 8 << 20, "{bytes}");
    // Nothing is lost between the two files.
    let numbers: Vec<u64> = log.lines().skip(1).map(|line| line.parse().unwrap()).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1));
}

#[test]
fn ctrl_c_of_attach_reaches_the_program_and_its_children_and_another_key_detaches() {
    let world = World::new();
    // The shell waits for its child, which ends only by a signal of its own.
    let script = "trap 'exit 5' INT; \
                  sh -c 'trap \"echo child; exit\" INT; echo ready; while :; do sleep 0.01; done'";
    detach(&world, "--name one --sm 10%", script);
    let mut attached = Tenant::start(&mut world.partita(["attach", "one"]));
    assert_eq!(attached.next_line(), "ready");
    attached.signal(Signal::QUIT);
    assert_eq!(attached.exit_code(), 0);
    assert_eq!(world.row("one")["name"], "one", "it goes on");
    let mut attached = Tenant::start(&mut world.partita(["attach", "one"]));
    assert_eq!(attached.next_line(), "ready");
    attached.signal(Signal::INT);
    assert_eq!(attached.next_line(), "child");
    assert_eq!(attached.exit_code(), 5);
}

#[test]
fn a_caller_that_is_interrupted_before_the_start_leaves_nothing() {
    let world = World::new();
    // The name is taken by a tenant that is about to leave, so the start waits.
    let mut held = world.idle("--name one --sm 10% --isolation own");
    held.signal(Signal::KILL);
    held.child.wait().unwrap();
    let mut command =
        world.partita("run --detach --name one --sm 10% --isolation own -- sleep 1000".split(' '));
    let mut waiting = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    // Whether it was killed before, during or after its wait for the name: no run goes on.
    let deadline = Instant::now() + PATIENCE;
    let starts = |(_, name): &(u32, String)| name.starts_with("partita");
    while world.processes().iter().any(starts) {
        assert!(Instant::now() < deadline, "{:?}", world.processes());
    }
    assert!(world.ok("kill one").contains("1 process"), "only the first one");
    assert!(world.ps().is_empty());
}

#[test]
fn a_killed_run_has_no_exit_code() {
    let world = World::new();
    detach(&world, "--name one --sm 10%", "trap '' PIPE; while sleep 0.01; do :; done");
    let record = fs::read(world.dir().join("state/detached/one/run.json")).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    let pid = record["run"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    let said = world.refused("wait one");
    assert!(said.contains("unknown") && said.contains("partita ps"), "{said}");
    assert!(world.ok("kill one").contains("ended"));
}
