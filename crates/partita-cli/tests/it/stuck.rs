//! A service that is stuck for every client: a launch that no SM can run, then its process's exit.
//!
//! The program is no tenant's: in a tenant the library lets no such launch through.
//! `PARTITA_TEST_GPU=real` runs them on the machine's first GPU.

use crate::common;

use std::io::Read;
use std::process::Stdio;
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

/// Starts the service and makes its server hang.
fn stick(world: &World) {
    world.keeper_ok("mps start");
    // The server starts with its first client.
    assert_eq!(world.gpu("--sm 10%", "census").output().unwrap().status.code(), Some(0));
    let (program, kernels) = common::gpu_program();
    let pipe = status(world)["pipe_directory"].as_str().unwrap().to_owned();
    let mut hang = world.bare(program);
    hang.arg(kernels).arg("hang").env("CUDA_MPS_PIPE_DIRECTORY", pipe);
    assert!(hang.status().unwrap().success());
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

#[test]
fn a_tenants_own_mask_cannot_make_a_launch_that_never_ends() {
    let world = World::new();
    let output = world.gpu("--name masks --sm 50%", "cluster").output().unwrap();
    let (told, said) = (common::text(&output.stdout), common::text(&output.stderr));
    assert_eq!((output.status.code(), told.trim()), (Some(0), "done"), "{said}");
    assert!(said.contains("such launches run in the whole partition"), "{said}");
}
