//! Run directories that are full or cannot be written, and processes of a tenant that are stopped
//! or escape.

use crate::common;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use common::{Answering, Tenant, World, compile, gpu_program, needs_user_mode, text, with_env_of};
use partita_testing::{eventually, ignored_test, succeed};
use rustix::process::Signal;

/// Runs a script in a new mount namespace; `None` if this machine does not allow one.
fn in_own_mounts(world: &World, script: &str, arguments: &[&str]) -> Option<Output> {
    let may = Command::new("unshare").args(["-rm", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no mount namespace can be had here");
        return None;
    }
    let base = world.partita(arguments);
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", script]).arg(base.get_program()).args(base.get_args());
    with_env_of(&mut command, &base);
    world.as_its_user(&mut command);
    Some(command.output().expect("unshare runs"))
}

#[test]
fn a_full_run_directory_is_an_error_at_the_start_and_leaves_nothing() {
    if needs_user_mode("there the run directory is root's, and no user mounts another in its place") {
        return;
    }
    let world = World::new();
    fs::create_dir_all(world.run_dir()).unwrap();
    // Room for the lock and the names, but not for a ledger.
    let script = r#"mount -t tmpfs -o size=64k none "$PARTITA_RUN_DIR" && "$0" "$@"; code=$?
        find "$PARTITA_RUN_DIR" -type f ! -name .lock; exit $code"#;
    let arguments = ["run", "--isolation", "own", "--sm", "25%", "--mem", "1GiB", "--", "echo", "started"];
    let Some(output) = in_own_mounts(&world, script, &arguments) else { return };
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(said.contains("No space left on device") && said.contains("free space"), "{said}");
    assert_eq!(text(&output.stdout), "", "nothing was started, and nothing is left");
}

#[test]
fn a_run_directory_that_cannot_be_written_is_an_error_at_the_start() {
    if needs_user_mode("there the run directory is root's, and no user mounts another in its place") {
        return;
    }
    let world = World::new();
    fs::create_dir_all(world.run_dir()).unwrap();
    let script = r#"mount -t tmpfs -o ro none "$PARTITA_RUN_DIR" && "$0" "$@""#;
    let arguments = ["run", "--isolation", "own", "--sm", "25%", "--", "echo", "started"];
    let Some(output) = in_own_mounts(&world, script, &arguments) else { return };
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(said.contains("Read-only file system"), "{said}");
    assert_eq!(text(&output.stdout), "");
}

/// A program with a read-only ledger cannot account, so it gets no GPU, and a message with the
/// reason.
#[test]
fn a_program_that_cannot_write_its_account_gets_no_gpu() {
    if needs_user_mode("there the simulated GPU is root's, and in a user namespace root is nobody") {
        return;
    }
    let world = World::new();
    let program = compile(&world, "spill");
    let script = r#"mount --bind "$PARTITA_LEDGER" "$PARTITA_LEDGER" && mount -o remount,bind,ro "$PARTITA_LEDGER" && exec "$0""#;
    let mut command =
        world.partita("run --isolation own --sm 25% --mem 1GiB -- unshare -rm sh -c".split_whitespace());
    command.arg(script).arg(&program);
    if in_own_mounts(&world, "true", &[]).is_none() {
        return;
    }
    let output = command.output().expect("partita runs");
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("Read-only file system"), "{output:?}");
    assert!(said.contains("cuInit: 101"), "{said}");
}

/// A process that is stopped anywhere, whatever it holds, does not make others wait.
#[test]
fn a_stopped_process_of_the_tenant_delays_no_other() {
    let world = World::new();
    let program = compile(&world, "stopped");
    let mut command = world.partita("run --isolation own --sm 25% --mem 256MiB --".split_whitespace());
    assert_eq!(text(&succeed(command.arg(&program)).stdout), "no process waited\n");
}

/// Takes the lock of the registry, and is stopped with it, as by Ctrl-Z at the wrong moment.
#[test]
#[ignore = "a child of a_stopped_command_delays_no_other"]
fn stops_with_the_lock() {
    let file = fs::OpenOptions::new().append(true).open(std::env::var_os("LOCK").unwrap()).unwrap();
    file.lock().unwrap();
    println!("holding");
    rustix::process::kill_process(rustix::process::getpid(), Signal::STOP).unwrap();
    // The waiter may stop it once more before its next instruction: it can print no message.
    drop(file);
    std::thread::sleep(Duration::from_secs(300));
}

/// The planner's lock is one for all commands of a user: a waiter continues a stopped holder, and
/// stops it again.
#[test]
fn a_stopped_command_delays_no_other() {
    if needs_user_mode("there this test's process is root's, which no user continues") {
        return;
    }
    let world = World::plan().own().start();
    let mut tenant = Tenant::start(&mut world.gpu("--name halts --sm 10%", "loop"));
    tenant.next_line();
    let mut child = ignored_test("stops_with_the_lock");
    child.env("LOCK", world.run_dir().join(".lock")).stdout(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    lines.find(|line| line.ends_with("holding")).unwrap();
    let state = || fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let is_stopped = || state().rsplit_once(") ").unwrap().1.starts_with('T');
    eventually("it has stopped", is_stopped);
    world.ok("set halts --sm 20%");
    eventually("it is stopped again", is_stopped);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A child without the hook has no limits, and the audit finds it.
#[test]
fn a_process_that_escapes_its_tenant_is_found() {
    let world = World::new();
    let program = compile(&world, "spill");
    let orders = world.dir().join("orders");
    succeed(Command::new("mkfifo").arg(&orders));
    let script = r#"env -u LD_PRELOAD -u PARTITA_LEDGER "$0" < "$1" & exec "$0""#;
    let mut command =
        world.partita("run --name leaky --sm 25% --mem 64MiB --isolation own -- sh -c".split_whitespace());
    let mut tenant = Answering::start(command.arg(script).arg(&program).arg(&orders));
    assert_eq!(tenant.line("a 16"), "0 48");
    let audited = || {
        let output = world.line("ps --audit --json");
        let rows: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), text(&output.stderr), rows)
    };
    let (code, said, rows) = audited();
    assert_eq!((code, said.as_str(), rows.len()), (Some(0), "", 1), "{rows:?}");
    assert_eq!((&rows[0]["tenant"], &rows[0]["ledger_bytes"]), (&"leaky".into(), &(16 << 20).into()));
    let driver_bytes = rows[0]["driver_bytes"].as_u64().unwrap();
    assert!(driver_bytes >= 16 << 20, "its context is in the driver's number");

    // The child has waited for this. It is beyond the quota, and no hook refuses it. Its answer
    // comes on the tenant's own output.
    let mut escaped = fs::OpenOptions::new().write(true).open(&orders).unwrap();
    writeln!(escaped, "a 128").unwrap();
    assert!(tenant.tenant.next_line().starts_with("0 "));
    let (code, said, rows) = audited();
    assert_eq!((code, rows.len()), (Some(1), 2), "{rows:?}");
    assert!(said.contains("leaky: process ") && said.contains("without its limits"), "{said}");
    assert_eq!((&rows[0]["escaped"], &rows[0]["ledger_bytes"]), (&true.into(), &serde_json::Value::Null));
    assert!(rows[0]["driver_bytes"].as_u64().unwrap() >= 128 << 20);
    assert_eq!(&rows[1]["escaped"], &serde_json::Value::from(false));
    world.ok("kill leaky");
}

/// Tenants of every user write the gate: the audit names other processes that have it open.
#[test]
fn a_process_with_an_open_gate_and_no_tenant_is_found() {
    let world = World::in_memory();
    let program = compile(&world, "gate");
    let mut high =
        world.partita("run --name high --isolation own --sm 25% --priority high --".split_whitespace());
    let mut high = Answering::start(high.arg(&program).arg(&gpu_program().1));
    assert_eq!(high.tenant.next_line(), "ready");
    assert_eq!((high.line("launch"), high.line("sync")), ("ok".to_owned(), "ok".to_owned()));
    world.ok("ps --audit");
    let gate = world.gpu_dir().join(".turns/gate");
    let mut stranger = Command::new("sh");
    let script = r#"exec 9<>"$0"; echo ready; read end"#;
    let mut stranger = Answering::start(stranger.args(["-c", script]).arg(&gate));
    assert_eq!(stranger.tenant.next_line(), "ready");
    let output = world.line("ps --audit");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let pid = stranger.tenant.child.id();
    assert!(
        said.contains(&format!("process {pid} of ")) && said.contains("/gate open and belongs to no tenant"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    drop(stranger);
    world.ok("ps --audit");
}
