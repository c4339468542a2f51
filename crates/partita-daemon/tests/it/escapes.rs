//! Processes that no limit of their tenant holds: found without being asked for, told of once, and
//! told of when it is over.

use crate::common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{Daemon, World};
use partita_memory::client::Connection;
use partita_testing::{build, eventually};
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// A tenant whose program, a keeper, is held. With `escaped` it has another one beside it, which is
/// not.
struct Tenant {
    run: Child,
    escaped: Option<i32>,
}

/// Starts what uses the GPU at the socket `$2` without the hook, and with nothing that would keep
/// its tenant alive, and says its number; becomes what uses it with the hook at the socket `$1`.
const SCRIPT: &str = r#"
    if [ -n "$2" ]; then
        env -u LD_PRELOAD -u PARTITA_LEDGER "$0" internal-detach -- "$0" keeper --attached --socket "$2" 2>/dev/null &
        echo $!
    else
        echo 0
    fi
    exec "$0" keeper --attached --socket "$1"
"#;

impl Tenant {
    fn start(world: &World, name: &str, escaped: bool) -> Self {
        let socket = |which: &str| world.dir().join(format!("{name}.{which}"));
        let (held, other) = (socket("held"), if escaped { socket("escaped") } else { PathBuf::new() });
        let mut command = world.partita(["run", "--name", name, "--sm", "25%", "--isolation", "own", "--"]);
        command
            .args(["sh", "-c", SCRIPT])
            .arg(common::program())
            .arg(&held)
            .arg(&other)
            .stdout(Stdio::piped());
        let mut run = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(run.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pid: i32 = line.trim().parse().unwrap();
        for socket in [Some(&held), Some(&other).filter(|_| escaped)].into_iter().flatten() {
            eventually("it uses the GPU", || Connection::connect(socket, None, common::PATIENCE).is_ok());
        }
        Self { run, escaped: Some(pid).filter(|_| escaped) }
    }

    fn signal(&self) {
        signal(i32::try_from(self.run.id()).unwrap(), Signal::TERM);
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        if let Some(pid) = self.escaped {
            signal(pid, Signal::KILL);
        }
        self.signal();
        let _ = self.run.wait();
    }
}

/// One that is gone is as it should be.
fn signal(pid: i32, signal: Signal) {
    let _ = rustix::process::kill_process(Pid::from_raw(pid).unwrap(), signal);
}

const OFTEN: [&str; 4] = ["--audit-every", "1", "--log-format", "json"];

fn events(daemon: &Daemon) -> Vec<Value> {
    daemon.get("/v1/events").as_array().unwrap().clone()
}

/// The value of a sample of the page of metrics; none if it is not there.
fn metric(daemon: &Daemon, begins: &str) -> Option<f64> {
    let (status, _, page) = daemon.send("GET /metrics HTTP/1.1", b"");
    assert_eq!(status, 200, "{page}");
    let line = page.lines().find(|line| line.starts_with(begins))?;
    line.rsplit_once(' ').map(|(_, value)| value.parse().unwrap())
}

/// Waits until so many looks have been and ended after now.
fn looked(daemon: &Daemon, times: f64) {
    let audits = || metric(daemon, "partitad_audits_total").unwrap();
    let before = audits();
    // And the one that was under way.
    eventually("looks", || audits() > before + times);
}

fn kinds(events: &[Value]) -> Vec<(String, String)> {
    let text = |event: &Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
    events.iter().map(|event| (text(event, "kind"), text(event, "change"))).collect()
}

/// The lines of the log about these events.
fn logged(daemon: &Daemon) -> Vec<Value> {
    let lines = daemon.log().lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>();
    lines.into_iter().filter(|line| !line["event"].is_null()).collect()
}

fn pair(kind: &str, change: &str) -> (String, String) {
    (kind.to_owned(), change.to_owned())
}

#[test]
fn an_escape_is_reported_when_it_is_found_and_when_it_is_over() {
    let world = World::new();
    let daemon = world.start_with(OFTEN);
    let tame = Tenant::start(&world, "tame", false);
    let leaky = Tenant::start(&world, "leaky", true);
    let pid = leaky.escaped.unwrap();
    eventually("the escape is reported", || !events(&daemon).is_empty());
    let found = events(&daemon);
    let event = &found[0];
    assert_eq!(kinds(&found), [pair("escape", "began")], "{found:?}");
    assert_eq!((&event["tenant"], &event["pid"]), (&"leaky".into(), &pid.into()));
    assert_eq!((&event["began_id"], &event["end"]), (&event["id"], &Value::Null));
    let now_ms = partita_daemon::store::now_unix_ms();
    assert!((now_ms - 60_000..=now_ms).contains(&event["at_unix_ms"].as_i64().unwrap()), "{event}");
    let gpu = daemon.get("/v1/gpus")[0]["uuid"].as_str().unwrap().to_owned();
    assert_eq!((&event["gpu_uuid"], event["driver_bytes"].is_u64()), (&gpu.as_str().into(), true), "{event}");
    assert!(event["detail"].as_str().unwrap().contains("`partita kill leaky`"), "{event}");
    let escaped = |tenant: &str| {
        metric(&daemon, &format!("partita_tenant_escaped_processes{{tenant=\"{tenant}\",gpu=\"{gpu}\"}}"))
    };
    assert_eq!((escaped("leaky"), escaped("tame")), (Some(1.0), Some(0.0)));
    // It is reported once.
    looked(&daemon, 2.0);
    assert_eq!(events(&daemon), found);

    signal(pid, Signal::KILL);
    eventually("its end is reported", || events(&daemon).len() > 1);
    let both = events(&daemon);
    assert_eq!(kinds(&both), [pair("escape", "began"), pair("escape", "ended")], "{both:?}");
    assert_eq!((&both[1]["end"], &both[1]["began_id"]), (&"gone".into(), &event["id"]));
    assert_eq!((&both[1]["pid"], &both[1]["tenant"]), (&event["pid"], &event["tenant"]));
    assert_eq!((&both[1]["began_unix_ms"]), (&event["at_unix_ms"]));
    assert_eq!((escaped("leaky"), escaped("tame")), (Some(0.0), Some(0.0)));
    for change in ["began", "ended"] {
        let name = format!("partitad_events_total{{kind=\"escape\",change=\"{change}\"}}");
        assert_eq!(metric(&daemon, &name), Some(1.0));
    }
    assert_eq!(metric(&daemon, "partitad_audits_failed_total"), Some(0.0));

    // Two lines of the log say the same.
    let logged = logged(&daemon);
    assert_eq!(kinds(&logged), kinds(&both), "{logged:?}");
    for (line, event) in logged.iter().zip(&both) {
        assert_eq!((&line["level"], &line["message"]), (&"WARN".into(), &event["detail"]));
        for (of_line, of_event) in [("event", "id"), ("tenant", "tenant"), ("pid", "pid"), ("gpu", "gpu")] {
            assert_eq!(line[of_line], event[of_event], "{line}");
        }
    }

    // Part of the list, and what is no part of it.
    assert_eq!(daemon.get("/v1/events?limit=1").as_array().unwrap(), &both[1..]);
    let after = daemon.get(&format!("/v1/events?after={}", event["id"]));
    assert_eq!(after.as_array().unwrap(), &both[1..]);
    for query in ["limit=0", "limit=1001", "limit=x", "after=x", "before=1"] {
        daemon.refused(400, "GET", &format!("/v1/events?{query}"), None);
    }
    // Those that behave are no news when they end either, however busy they were.
    drop(leaky);
    drop(tame);
    looked(&daemon, 2.0);
    assert_eq!(events(&daemon), both);
}

#[test]
fn an_escape_outlives_its_tenant_and_the_daemon_and_is_one() {
    let world = World::new();
    let mut daemon = world.start_with(OFTEN);
    let leaky = Tenant::start(&world, "leaky", true);
    let pid = leaky.escaped.unwrap();
    eventually("the escape is reported", || !events(&daemon).is_empty());
    let found = events(&daemon);
    assert_eq!(kinds(&found), [pair("escape", "began")]);

    // A restarted daemon knows it.
    daemon.kill();
    let mut daemon = world.start_with(OFTEN);
    looked(&daemon, 2.0);
    assert_eq!(events(&daemon), found);

    // Its tenant ends, and nothing leads from the process to it any more; it goes on all the same.
    leaky.signal();
    eventually("the tenant is gone", || daemon.get("/v1/tenants").as_array().unwrap().is_empty());
    looked(&daemon, 2.0);
    assert!(Path::new(&format!("/proc/{pid}")).exists(), "it is not ended with its tenant");
    assert_eq!(events(&daemon), found);
    assert_eq!(metric(&daemon, "partita_tenant_escaped_processes{tenant=\"leaky\""), Some(1.0));

    // It ends while there is no daemon: the next one tells of it.
    daemon.kill();
    signal(pid, Signal::KILL);
    let daemon = world.start_with(OFTEN);
    eventually("its end is reported", || events(&daemon).len() > 1);
    let both = events(&daemon);
    assert_eq!((&both[..1], &both[1]["end"]), (&found[..], &"gone".into()), "{both:?}");
    assert_eq!(metric(&daemon, "partita_tenant_escaped_processes{tenant=\"leaky\""), None);
    drop(leaky);
}

#[test]
fn a_stranger_at_a_gate_is_reported() {
    if !Path::new("/dev/shm").exists() {
        eprintln!("skipped: there is no /dev/shm, and a gate lies in memory");
        return;
    }
    let world = World::in_memory();
    let daemon = world.start_with(OFTEN);
    let tenant = |words: &[&str]| {
        let mut command =
            world.partita(["run", "--name", "high", "--priority", "high", "--isolation", "own"]);
        command.args(words).args(["--", "sh", "-c", "echo ready; exec sleep 1000"]);
        ready(&mut command)
    };
    let high = Ended(tenant(&["--sm", "25%"]));
    let gate = fs::read_dir(world.dir().join("run"))
        .unwrap()
        .map(|entry| entry.unwrap().path().join(".turns/gate"))
        .find(|gate| gate.exists())
        .unwrap();
    let mut stranger = Command::new("sh");
    stranger.args(["-c", r#"exec 9<>"$0"; echo ready; exec sleep 1000"#]).arg(&gate).stdin(Stdio::null());
    let stranger = Ended(ready(&mut stranger));
    eventually("the stranger is reported", || !events(&daemon).is_empty());
    let found = events(&daemon);
    assert_eq!(kinds(&found), [pair("gate", "began")]);
    assert_eq!(found[0]["pid"], stranger.0.id());
    assert!(found[0]["detail"].as_str().unwrap().contains("/gate open"), "{found:?}");
    assert_eq!(metric(&daemon, "partita_gate_strangers{gpu="), Some(1.0));
    drop(stranger);
    eventually("its end is reported", || events(&daemon).len() > 1);
    let both = events(&daemon);
    assert_eq!((kinds(&both)[1].clone(), &both[1]["end"]), (pair("gate", "ended"), &"gone".into()));
    assert_eq!(metric(&daemon, "partita_gate_strangers{gpu="), None);
    drop(high);
}

/// A child that says that it is ready.
fn ready(command: &mut Command) -> Child {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        signal(i32::try_from(self.0.id()).unwrap(), Signal::TERM);
        let _ = self.0.wait();
    }
}

/// The driver does not answer for a while. Who was seen is not over for that, and who ends is.
#[test]
fn an_audit_that_fails_is_reported_once() {
    if partita_testing::needs_simulator("the driver can be taken away") {
        return;
    }
    let world = World::new();
    // The daemon's own way to the driver, which leads nowhere for a while.
    let libraries = world.dir().join("lib");
    fs::create_dir(&libraries).unwrap();
    let parts = ["libpartita.so", "libpartita_simcuda.so", "partita-simgpu", "partita-sim-mps-control"];
    let link = |part: &str| symlink(build().join(part), libraries.join(part)).unwrap();
    parts.iter().for_each(|part| link(part));
    let mut command = world.partitad(OFTEN);
    command.env("PARTITA_LIB_DIR", &libraries);
    let daemon = Daemon::start(&mut command, &world.socket(), &world.dir().join("log"));
    let leaky = Tenant::start(&world, "leaky", true);
    eventually("the escape is reported", || !events(&daemon).is_empty());

    fs::remove_file(libraries.join(parts[1])).unwrap();
    eventually("the silence is reported", || events(&daemon).len() > 1);
    let gpu = events(&daemon)[0]["gpu_uuid"].clone();
    let silent = &events(&daemon)[1];
    assert_eq!(
        (&silent["kind"], &silent["change"], &silent["gpu_uuid"]),
        (&"audit".into(), &"began".into(), &gpu)
    );
    assert!(silent["detail"].as_str().unwrap().contains(parts[1]), "{silent}");
    looked(&daemon, 2.0);
    assert_eq!(events(&daemon).len(), 2);
    assert!(metric(&daemon, "partitad_audits_failed_total").unwrap() >= 2.0);
    assert_eq!(metric(&daemon, "partita_audit_blind{gpu="), Some(1.0));
    assert_eq!(metric(&daemon, "partita_tenant_escaped_processes{tenant=\"leaky\""), Some(1.0));

    link(parts[1]);
    eventually("the recovery is reported", || events(&daemon).len() > 2);
    let again = &events(&daemon)[2];
    assert_eq!(
        (&again["change"], &again["end"], &again["began_id"]),
        (&"ended".into(), &"told".into(), &silent["id"])
    );
    looked(&daemon, 2.0);
    assert_eq!(events(&daemon).len(), 3, "the escape is the one that was known");
    assert_eq!(metric(&daemon, "partita_audit_blind{gpu="), None);
    drop(leaky);
}

#[test]
fn a_daemon_that_is_not_to_look_does_not() {
    let world = World::new();
    let daemon = world.start_with(["--audit-every", "off"]);
    let leaky = Tenant::start(&world, "leaky", true);
    assert_eq!(metric(&daemon, "partitad_audits_total"), Some(0.0));
    assert_eq!(metric(&daemon, "partita_tenant_escaped_processes"), None);
    assert_eq!(events(&daemon), Vec::<Value>::new());
    drop(leaky);
}
