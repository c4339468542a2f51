//! A service that is stuck for every client: a launch that no SM can run, then its process's exit.
//!
//! The program is no tenant's: in a tenant the library lets no such launch through.
//! `PARTITA_TEST_GPU=real` runs them on the machine's first GPU.

use crate::common;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use common::{Tenant, World};
use serde_json::Value;

fn status(world: &World) -> Value {
    serde_json::from_str(&world.ok("mps status --json")).unwrap()
}

fn complaint(tenant: &mut Tenant) -> String {
    let mut text = String::new();
    tenant.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    text
}

/// Starts the service with its server, and returns a client of it that is no tenant's.
fn start(world: &World) -> Command {
    world.keeper_ok("mps start");
    // The server starts with its first client.
    assert_eq!(world.gpu("--sm 10%", "census").output().unwrap().status.code(), Some(0));
    let (program, kernels) = common::gpu_program();
    let pipe = status(world)["pipe_directory"].as_str().unwrap().to_owned();
    let mut client = world.bare(program);
    client.arg(kernels).env("CUDA_MPS_PIPE_DIRECTORY", pipe);
    client
}

/// Starts the service and makes its server hang.
fn stick(world: &World) {
    assert!(start(world).arg("hang").status().unwrap().success());
}

/// A service whose SMs are all taken for some seconds, and a tenant that waits, with its
/// complaints. On a busy machine the tenant may come too late: then they are taken for longer.
fn busy(world: &World) -> (Tenant, Child, impl Iterator<Item = String>) {
    for seconds in [4, 16, 64] {
        let mut fills = Tenant::start(start(world).args(["fill", &format!("{seconds}000")]));
        assert_eq!(fills.next_line(), "fills");
        let mut waits = world.gpu("--name waits --sm 10%", "loop");
        let mut waits = waits.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(waits.stderr.take().unwrap()).lines().map_while(Result::ok);
        let (sender, said) = channel();
        thread::spawn(move || lines.try_for_each(|line| sender.send(line)));
        if let Ok(first) = said.recv_timeout(Duration::from_secs(seconds - 1)) {
            return (fills, waits, std::iter::once(first).chain(said));
        }
        waits.kill().unwrap();
        waits.wait().unwrap();
    }
    panic!("the tenant does not report that the service is busy")
}

/// A canary that the server ends while its launch is pending makes a neighbour fail (H200, driver
/// 580.159.04).
#[test]
fn a_service_that_is_only_busy_loses_nothing_and_is_found_to_work_again() {
    let world = World::new();
    let (mut fills, mut waits, mut said) = busy(&world);
    let server = status(&world)["servers"][0]["pid"].as_u64().unwrap();
    assert!(said.next().unwrap().contains(&format!("waits for MPS server {server}, which is stuck")));
    assert_eq!(status(&world)["servers"][0]["stuck"], true);
    assert!(said.next().unwrap().contains("the MPS service runs kernels again"));
    assert_eq!(status(&world)["servers"][0]["stuck"], false);
    assert_eq!((fills.next_line(), fills.exit_code()), ("done".to_owned(), 0));
    let log = Path::new(status(&world)["log_directory"].as_str().unwrap()).join("control.log");
    let commands = std::fs::read_to_string(log).unwrap();
    assert!(commands.contains("get_server_list") && !commands.contains("terminate_client"), "{commands}");
    world.ok("kill waits");
    waits.wait().unwrap();
}

/// It would be killed with a launch in flight.
#[test]
fn a_canary_that_waits_outlives_the_partita_run_that_sent_it() {
    let world = World::new();
    let (mut fills, mut waits, mut said) = busy(&world);
    assert!(said.next().unwrap().contains("which is stuck"));
    waits.kill().unwrap();
    waits.wait().unwrap();
    assert_eq!((fills.next_line(), fills.exit_code()), ("done".to_owned(), 0));
}

#[test]
fn a_tenant_says_what_it_waits_for_and_gives_up_and_recover_mends_it() {
    let world = World::new();
    assert!(world.keeper_ok("mps start").contains("started"));
    let works = world.keeper_ok("mps recover");
    assert!(works.contains("works"), "{works}");
    stick(&world);

    let mut waits = Tenant::start(&mut world.gpu("--name waits --sm 10% --mps-deadline 1", "loop"));
    let begin = Instant::now();
    assert_eq!(waits.exit_code(), 125);
    eprintln!("gave up after {:.1} s", begin.elapsed().as_secs_f64());
    let said = complaint(&mut waits);
    let server = status(&world)["servers"][0]["pid"].as_u64().unwrap();
    for words in [format!("waits for MPS server {server}, which is stuck"), "partita mps recover".to_owned()]
    {
        assert!(said.contains(&words), "{words}: {said}");
    }
    assert!(said.lines().last().unwrap().contains("is stuck: for"), "{said}");
    assert_eq!(status(&world)["servers"][0]["stuck"], true);
    assert!(world.ok("mps status").contains("stuck: it runs no kernel"));

    let without = "you have no tenant there";
    if common::is_system() {
        assert!(world.refused("mps recover").contains(without));
        assert!(world.refused("mps recover --force").contains("ask root"));
    }
    let mut there = Tenant::start(&mut world.gpu("--name there --sm 10%", "loop"));
    while world.ps().is_empty() {
        thread::sleep(Duration::from_millis(20));
    }
    // Several users ask at once, and one server is restarted once.
    let recover = || world.partita(["mps", "recover"]).stdout(Stdio::piped()).spawn().unwrap();
    let asked = [recover(), recover(), recover()].map(|child| child.wait_with_output().unwrap());
    let answers = asked.map(|output| {
        assert!(output.status.success(), "{output:?}");
        common::text(&output.stdout).to_owned()
    });
    let restarted = |answer: &&String| answer.contains(&format!("restarted server {server}"));
    assert_eq!(answers.iter().filter(restarted).count(), 1, "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| answer.contains("works")).count(), 2, "{answers:?}");
    assert_eq!(there.exit_code(), 91);
    assert_eq!(world.gpu("--sm 10%", "census").output().unwrap().status.code(), Some(0));
    let servers = status(&world)["servers"].clone();
    assert!(servers[0]["pid"] != server && servers[0]["stuck"] == false, "{servers}");
}

#[test]
fn a_tenant_with_restart_mends_the_service_and_starts_again() {
    let world = World::new();
    stick(&world);
    let mut other = Tenant::start(&mut world.gpu("--name other --sm 10%", "loop"));
    let options = "--name serve --sm 10% --restart on-neighbour-fault";
    let mut serve = Tenant::start(&mut world.gpu(options, "loop"));
    let begin = Instant::now();
    let mut lines = std::iter::repeat_with(|| serve.next_line());
    let first = lines.find(|line| line.starts_with("sms"));
    eprintln!("at work again after {:.1} s", begin.elapsed().as_secs_f64());
    assert!(first.is_some());
    assert_eq!(other.exit_code(), 91);
    let said = complaint(&mut other);
    assert!(said.contains("was stuck and was restarted"), "{said}");
    world.ok("kill serve");
}

/// The server works, and root restarts it all the same.
#[test]
fn a_forced_restart_is_not_told_as_a_stuck_server() {
    let world = World::new();
    let mut there = Tenant::start(&mut world.gpu("--name there --sm 10%", "loop"));
    assert!(there.next_line().starts_with("sms"));
    assert!(world.keeper_ok("mps recover --force").contains("restarted server"));
    let mut lines = std::iter::repeat_with(|| there.line());
    lines.find(Option::is_none);
    let said = complaint(&mut there);
    assert!(said.contains("was restarted by `partita mps recover --force`"), "{said}");
    assert!(!said.contains("stuck") && world.ok("mps logs").contains("recover --force"), "{said}");
}

#[test]
fn a_tenants_own_mask_cannot_make_a_launch_that_never_ends() {
    let world = World::new();
    let output = world.gpu("--name masks --sm 50%", "cluster").output().unwrap();
    let (told, said) = (common::text(&output.stdout), common::text(&output.stderr));
    assert_eq!((output.status.code(), told.trim()), (Some(0), "done"), "{said}");
    assert!(said.contains("such launches run in the whole partition"), "{said}");
}
