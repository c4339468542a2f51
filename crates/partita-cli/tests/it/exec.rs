//! `partita exec`: a second program in a tenant that runs.

use crate::common;

use common::{Tenant, World, gpu_program, refusal_by, sms, succeeds, text, tpcs};
use rustix::process::Signal;

#[test]
fn it_has_the_tenants_limits_and_shares_its_quota() {
    let world = World::new();
    let mut held = world.idle("--name one --sm 10% --mem 2GiB");
    let (program, kernels) = gpu_program();
    let exec = |what: &str| {
        let mut command = world.partita(["exec", "one", "--"]);
        command.arg(program).arg(kernels).args(what.split_whitespace());
        succeeds(&mut command)
    };
    assert!(exec("total").contains(&(2u64 << 30).to_string()));
    let (census, row) = (exec("census"), world.row("one"));
    let sms_of_tenant = tpcs(row["tpcs"].as_str().unwrap()).len() * 2;
    assert_eq!(sms(census.lines().next().unwrap()).len(), sms_of_tenant);
    // `ps` counts its memory and its process.
    let mut first = world.partita(["exec", "one", "--"]);
    let mut looped = Tenant::start(first.arg(program).arg(kernels).arg("loop"));
    looped.next_line();
    let row = world.row("one");
    assert!(row["memory_used_bytes"].as_u64().unwrap() > 0, "{row}");
    assert_eq!(row["processes"].as_array().unwrap().len(), 1, "{row}");
    looped.signal(Signal::TERM);
    // Its work is ended first, so it may see an error before the signal.
    assert_ne!(looped.exit_code(), 0);
    // The tenant goes on.
    assert_eq!(world.row("one")["name"], "one");
    held.signal(Signal::TERM);
    held.exit_code();
    world.until_no_tenant();
}

#[test]
fn streams_and_exit_codes_pass() {
    let world = World::new();
    let _held = world.idle("--name one --sm 10%");
    let output = world.partita(["exec", "one", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]).output();
    let output = output.unwrap();
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("out\n".to_owned(), "err\n".to_owned()));
    assert_eq!(output.status.code(), Some(7));
    let killed = world.partita(["exec", "one", "sh", "-c", "kill -9 $$"]).output().unwrap();
    assert_eq!(killed.status.code(), Some(128 + 9));
    let missing = refusal_by(127, &mut world.partita(["exec", "one", "--", "/no/such/program"]));
    assert!(missing.contains("check the path"), "{missing}");
    assert!(refusal_by(126, &mut world.partita(["exec", "one", "--", "/"])).contains("directory"));
}

#[test]
fn a_tenant_that_is_not_there_or_already_around_us() {
    let world = World::new();
    assert!(world.refused("exec one -- true").contains("no tenant"));
    let _held = world.idle("--name one --sm 10%");
    assert!(world.refused("exec two -- true").contains("there are one"));
    let program = common::program().display();
    let inner = format!("{program} exec one -- true");
    let output = world.partita(["exec", "one", "--", "sh", "-c", &inner]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("a tenant inside a tenant"), "{output:?}");
}

#[test]
fn it_ends_with_the_tenants_first_program() {
    let world = World::new();
    let mut held = world.idle("--name one --sm 10%");
    let mut second = Tenant::start(&mut world.partita([
        "exec",
        "one",
        "--",
        "sh",
        "-c",
        "trap 'echo asked; exit 3' TERM; echo ready; while :; do sleep 0.01; done",
    ]));
    assert_eq!(second.next_line(), "ready");
    held.signal(Signal::TERM);
    held.exit_code();
    assert_eq!(second.next_line(), "asked");
    assert_eq!(second.exit_code(), 3);
    world.until_no_tenant();
}

#[test]
fn it_outlives_a_killed_run_whose_program_goes_on() {
    let world = World::new();
    let mut held = world.idle("--name one --sm 10%");
    let mut second =
        Tenant::start(&mut world.partita(["exec", "one", "--", "sh", "-c", "echo ready; exec sleep 1000"]));
    assert_eq!(second.next_line(), "ready");
    held.signal(Signal::KILL);
    held.child.wait().unwrap();
    // A third one enters too: the tenant lives.
    world.ok("exec one -- true");
    second.signal(Signal::INT);
    assert_eq!(second.exit_code(), 128 + 2, "nothing else has ended it");
    assert!(world.ok("kill one").contains("ended"));
    world.until_no_tenant();
}

#[test]
fn kill_ends_it_too() {
    let world = World::new();
    let _held = world.idle("--name one --sm 10%");
    let mut second =
        Tenant::start(&mut world.partita(["exec", "one", "--", "sh", "-c", "echo ready; exec sleep 1000"]));
    assert_eq!(second.next_line(), "ready");
    assert!(world.ok("kill one").contains("2 processes"));
    assert_eq!(second.exit_code(), 128 + 15);
    world.until_no_tenant();
}

#[test]
fn in_turns_it_is_no_client_of_mps() {
    let world = World::new();
    let _held = world.idle("--name one --isolation own");
    let environment = world.ok("exec one -- env");
    assert!(environment.contains("CUDA_MPS_PIPE_DIRECTORY=/dev/null/no-mps"), "{environment}");
}
