//! Faults of neighbours: which tenants are hit, spared and restarted, and the messages about them.
//!
//! `PARTITA_TEST_GPU=real` runs them on the machine's first GPU. The fault is a write to an invalid
//! address, there and here.

use crate::common;

use std::fs;
use std::io::{Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Tenant, World, needs_simulator, text};
use rustix::process::Signal;
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn looping(world: &World, options: &str) -> Tenant {
    let mut tenant = Tenant::start(&mut world.gpu(options, "loop"));
    assert!(tenant.next_line().starts_with("sms"));
    tenant
}

/// A tenant that breaks on a command.
fn breaking(world: &World) -> Tenant {
    let mut command = world.gpu("--name breaks --sm 10%", "fault");
    let mut tenant = Tenant::start(command.stdin(Stdio::piped()));
    assert!(tenant.next_line().starts_with("sms"));
    tenant
}

fn break_it(tenant: &mut Tenant) {
    tenant.child.stdin.take().unwrap().write_all(b"now\n").unwrap();
}

/// Its stderr until its end.
fn complaint(tenant: &mut Tenant) -> String {
    let mut text = String::new();
    tenant.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    text
}

/// The process of a tenant that is a client.
fn pid_of(world: &World, name: &str) -> Option<u32> {
    let clients = json(&world.ok("mps clients --json"));
    let row = clients.as_array().unwrap().iter().find(|row| row["tenant"] == name)?.clone();
    row["pid"].as_u64().map(|pid| pid as u32)
}

fn kill(pid: u32, signal: Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

#[test]
fn a_neighbours_fault_restarts_who_asked_for_it_and_tells_the_others() {
    let world = World::new();
    let mut serve = looping(&world, "--name serve --sm 10% --restart on-neighbour-fault");
    let mut other = looping(&world, "--name other --sm 10%");
    let mut spared = looping(&world, "--name spared --sm 10% --isolation own");
    let mut breaks = breaking(&world);
    let before = pid_of(&world, "serve").unwrap();
    let culprit = pid_of(&world, "breaks").unwrap();
    break_it(&mut breaks);

    assert_eq!(breaks.exit_code(), 91);
    let own = complaint(&mut breaks);
    // Neither a server of driver 580 nor the error names the cause. Neighbours that compute without
    // a pause may be it.
    let is_own = own.contains("tenant breaks: its work caused a fault of MPS server");
    // Once the tenant has left, only its process has a name.
    let process = format!("of process {culprit}");
    let names = |text: &str| text.contains("of tenant breaks") || text.contains(&process);
    assert!(is_own || own.contains("whose cause is not known; candidates") && names(&own), "{own}");
    assert_eq!(other.exit_code(), 91);
    let hit = complaint(&mut other);
    assert!(hit.contains("tenant other: its work on the GPU was lost by a fault"), "{hit}");
    assert!(names(&hit), "{hit}");

    // The first program's last line is its error; the rest is the second's.
    let error = std::iter::repeat_with(|| serve.next_line()).find(|line| !line.starts_with("sms")).unwrap();
    assert!(error.contains("error"), "{error}");
    assert!(serve.next_line().starts_with("sms"), "at work again");
    let now = pid_of(&world, "serve").unwrap();
    assert_ne!(now, before);
    assert!(spared.next_line().starts_with("sms"), "out of reach of the fault");
    assert!(spared.child.try_wait().unwrap().is_none());

    let status = json(&world.ok("mps status --json"));
    let server = &status["servers"][0];
    assert_eq!(server["status"], "active");
    let hit: Vec<u64> =
        server["fault"]["hit"].as_array().unwrap().iter().map(|pid| pid.as_u64().unwrap()).collect();
    assert_eq!(hit.len(), 3, "{status}\n{}", world.ok("mps logs"));
    assert!(hit.contains(&u64::from(before)) && !hit.contains(&u64::from(now)));
    let shown = world.ok("mps status");
    assert!(shown.contains(&format!("{before} of tenant serve")), "{shown}");
    assert_eq!(status["counts"]["faults"], 1);
    assert_eq!(status["counts"]["restarts"], 1);
    let metrics = world.ok("mps status --metrics");
    let total = metrics.lines().find(|line| line.starts_with("partita_mps_restarts_total{")).unwrap();
    assert!(total.ends_with(" 1"), "{total}");
    let incidents: Vec<Value> =
        world.ok("mps logs --json").lines().map(json).filter(|line| line["incident"].is_string()).collect();
    let of = |tenant: &str, what: &str| {
        incidents.iter().any(|one| one["tenant"] == tenant && one["incident"] == what)
    };
    let own = if is_own { "caused" } else { "hit" };
    assert!(of("breaks", own) && of("other", "hit") && of("serve", "restarted"), "{incidents:?}");
    world.ok("kill serve");
    assert_eq!(complaint(&mut serve).lines().filter(|line| line.contains("was lost by a fault")).count(), 1);
}

#[test]
fn newcomers_wait_for_a_server_in_fault_and_give_up_at_their_deadline() {
    let world = World::new();
    // Its process stays when its work is lost, so the server has to wait for it.
    let (program, kernels) = common::gpu_program();
    let script = format!("{} {} loop; exec sleep 1000", program.display(), kernels.display());
    let mut stays =
        Tenant::start(world.partita("run --name stays --sm 10% -- sh -c".split(' ')).arg(&script));
    assert!(stays.next_line().starts_with("sms"));
    let mut holds = Tenant::start(&mut world.gpu("--name holds --sm 10%", "loop"));
    assert!(holds.next_line().starts_with("sms"));
    let held = pid_of(&world, "holds").unwrap();
    kill(held, Signal::STOP);
    let mut breaks = breaking(&world);
    break_it(&mut breaks);
    assert_eq!(breaks.exit_code(), 91);

    let error = common::refusal(&mut world.gpu("--name late --sm 10% --mps-deadline 0", "census"));
    assert!(error.contains("still FAULT") && error.contains(&held.to_string()), "{error}");
    let mut waits = Tenant::start(&mut world.gpu("--name waits --sm 10%", "census"));
    std::thread::sleep(Duration::from_millis(100));
    assert!(waits.child.try_wait().unwrap().is_none(), "it waits");
    kill(held, Signal::CONT);
    assert!(waits.next_line().starts_with("sms"));
    assert_eq!(waits.exit_code(), 0);
    assert_eq!(holds.exit_code(), 91);
}

#[test]
fn a_client_killed_from_outside_is_reported_with_its_possible_victims() {
    let world = World::new();
    let mut other = looping(&world, "--name other --sm 10% --restart on-neighbour-fault");
    let mut victim = looping(&world, "--name victim --sm 10%");
    let (pid, neighbour) = (pid_of(&world, "victim").unwrap(), pid_of(&world, "other").unwrap());
    kill(pid, Signal::KILL);
    assert_eq!(victim.exit_code(), 128 + 9);
    let told = complaint(&mut victim);
    for words in [
        format!("process {pid} was killed from outside"),
        neighbour.to_string(),
        "partita kill victim".to_owned(),
    ] {
        assert!(told.contains(&words), "{words}: {told}");
    }
    let incidents: Vec<Value> =
        world.ok("mps logs --json").lines().map(json).filter(|line| line["incident"] == "killed").collect();
    assert_eq!((&incidents[0]["tenant"], &incidents[0]["pid"]), (&Value::from("victim"), &Value::from(pid)));
    // Whether its kernels ran at that moment is chance: the other works, or works again.
    let deadline = Instant::now() + common::PATIENCE;
    let mut good = 0;
    while good < 20 {
        assert!(Instant::now() < deadline);
        let line = other.line().unwrap_or_else(|| panic!("{}", world.service_logs()));
        good = if line.starts_with("sms") { good + 1 } else { 0 };
    }
}

#[test]
fn kill_and_signals_through_run_leave_neighbours_alone() {
    let world = World::new();
    let mut other = looping(&world, "--name other --sm 10%");
    for (round, signal) in
        [None, Some(Signal::TERM), Some(Signal::INT), Some(Signal::HUP)].into_iter().enumerate()
    {
        let name = format!("ends{round}");
        let mut ends = looping(&world, &format!("--name {name} --sm 10%"));
        match signal {
            None => drop(world.ok(&format!("kill {name}"))),
            Some(signal) => ends.signal(signal),
        }
        let code = ends.exit_code();
        assert!(code > 128 || code == 91, "{code}");
        let said = complaint(&mut ends);
        assert!(!said.contains("from outside"), "{said}");
        for _ in 0..20 {
            let line = other.next_line();
            assert!(line.starts_with("sms"), "{signal:?}: {line}");
        }
    }
    let status = json(&world.ok("mps status --json"));
    assert_eq!(
        (&status["counts"]["faults"], &status["counts"]["clients_killed"]),
        (&Value::from(0), &Value::from(0))
    );
}

#[test]
fn a_refusal_of_the_driver_is_not_taken_for_a_neighbours_fault() {
    if needs_simulator("the refusal is scripted") {
        return;
    }
    let world = World::plan().on(|dir| {
        let script = dir.join("script");
        fs::write(&script, "attach refuse 807").unwrap();
        vec![("PARTITA_SIM_MPS_SCRIPT", script.into())]
    });
    let output = world.gpu("--sm 10% --restart on-neighbour-fault", "census").output().unwrap();
    assert_eq!(output.status.code(), Some(91), "{output:?}");
    assert!(text(&output.stdout).contains("error 807"), "{output:?}");
    assert!(!text(&output.stderr).contains("fault"), "{output:?}");
}
