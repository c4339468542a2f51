//! `partita chain`: the processes of a chain, and the division of its compute units. The components
//! here are shell scripts: no frame passes.

use crate::common;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{PATIENCE, Tenant, World};
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// A component that reports that it runs, and waits.
const WAITS: &str = r#"["sh", "-c", "echo $PARTITA_COMPONENT runs; exec sleep 1000"]"#;

struct Chains {
    world: World,
}

impl Chains {
    fn new() -> Self {
        Self { world: World::new() }
    }

    /// A defined chain of these commands.
    fn define(&self, name: &str, options: &str, commands: &[&str]) -> PathBuf {
        let components = commands.iter().zip("abcdefgh".chars());
        let components: String = components
            .map(|(command, name)| format!("[[component]]\nname = \"{name}\"\ncommand = {command}\n"))
            .collect();
        let path = self.world.dir().join(format!("{name}.toml"));
        fs::write(&path, format!("name = \"{name}\"\nframe = \"64KiB\"\n{options}\n{components}")).unwrap();
        self.ok(&["chain", "define", path.to_str().unwrap()]);
        path
    }

    fn command(&self, words: &[&str]) -> std::process::Command {
        let mut command = self.world.partita(words);
        command.env("XDG_CONFIG_HOME", self.world.dir().join("config"));
        command
    }

    fn ok(&self, words: &[&str]) -> String {
        let output = self.command(words).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {output:?}");
        common::text(&output.stdout)
    }

    fn refused(&self, words: &[&str]) -> String {
        common::refusal(&mut self.command(words))
    }

    /// Starts a chain, and waits until this many components have printed a line.
    fn start(&self, words: &[&str], lines: usize) -> Tenant {
        let mut tenant = Tenant::start(&mut self.command(&[&["chain", "start"], words].concat()));
        for _ in 0..lines {
            tenant.next_line();
        }
        tenant
    }

    fn view(&self, name: &str) -> Value {
        serde_json::from_str(&self.ok(&["chain", "watch", name, "--once", "--json"])).unwrap()
    }

    /// A chain's state once the condition holds. Until then it need not run.
    fn eventually(&self, name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let output = self.command(&["chain", "watch", name, "--once", "--json"]).output().unwrap();
            let view = if output.status.success() {
                serde_json::from_slice(&output.stdout).unwrap()
            } else {
                Value::Null
            };
            if !view.is_null() && is_so(&view) {
                return view;
            }
            assert!(Instant::now() < deadline, "{view:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn kill(pid: &Value, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid.as_i64().unwrap()).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn definitions_are_checked_kept_and_forgotten() {
    let chains = Chains::new();
    let example = chains.ok(&["chain", "define", "--example"]);
    let file = chains.world.dir().join("example.toml");
    fs::write(&file, &example).unwrap();
    let told = chains.ok(&["chain", "define", file.to_str().unwrap()]);
    assert!(told.contains("decode > enhance > detect") && told.contains("chain start cameras"), "{told}");
    let kept: Value = serde_json::from_str(&chains.ok(&["chain", "define", "--print", "cameras"])).unwrap();
    assert_eq!(kept["component"][2]["name"], "detect");
    let rows: Value = serde_json::from_str(&chains.ok(&["chain", "ps", "--json"])).unwrap();
    assert_eq!((&rows[0]["name"], &rows[0]["running"]), (&"cameras".into(), &Value::Null));
    assert!(chains.ok(&["chain", "ps"]).contains("not running"));
    chains.ok(&["chain", "forget", "cameras"]);
    assert_eq!(chains.ok(&["chain", "ps", "--json"]).trim(), "[]");
    for (words, expected) in [
        (["chain", "start", "cameras"], "not defined"),
        (["chain", "start", "../cameras"], "../cameras: No such file"),
        (["chain", "stop", "cameras"], "no chain of that name runs"),
        (["chain", "forget", "cameras"], "not defined"),
        (["chain", "define", "/no/such/file"], "/no/such/file"),
    ] {
        let refused = chains.refused(&words);
        assert!(refused.contains(expected), "{words:?}: {refused}");
    }
    fs::write(&file, example.replace("frames = 16", "frames = 1").replace("4MiB", "4194304B")).unwrap();
    let told = chains.ok(&["chain", "define", file.to_str().unwrap()]);
    assert!(told.contains("1 frame of 4MiB"), "{told}");
    for empty in ["", "\n\n", "# nothing\n"] {
        fs::write(&file, empty).unwrap();
        let refused = chains.refused(&["chain", "define", file.to_str().unwrap()]);
        assert!(refused.contains("example.toml: missing field `name`; "), "{refused}");
    }
    fs::write(&file, "colour = 7").unwrap();
    let refused = chains.refused(&["chain", "define", file.to_str().unwrap()]);
    assert!(refused.contains("example.toml") && refused.contains("`colour`"), "{refused}");
    fs::write(&file, example.replace("frame = \"4MiB\"", "frame = \"4 parsecs\"")).unwrap();
    let refused = chains.refused(&["chain", "define", file.to_str().unwrap()]);
    assert!(refused.contains("`frame`"), "{refused}");
}

#[test]
fn what_a_gpu_cannot_give_is_refused_in_the_keys_of_the_definition() {
    let chains = Chains::new();
    for (options, expected) in [
        ("mem = \"1PiB\"", "chain toy: mem 1PiB: "),
        ("sm = \"999tpc\"", "or less"),
        ("frames = 256\nframe = \"1GiB\"", "chain toy, component a: `frame` = 1GiB: sim:h200, "),
    ] {
        let path = chains.world.dir().join("toy.toml");
        let frame = if options.contains("frame = ") { "" } else { "frame = \"64KiB\"\n" };
        let components =
            ["a", "b"].map(|name| format!("[[component]]\nname = \"{name}\"\ncommand = {WAITS}\n"));
        fs::write(&path, format!("name = \"toy\"\n{frame}{options}\n{}", components.concat())).unwrap();
        let refused = chains.refused(&["chain", "start", path.to_str().unwrap()]);
        assert!(refused.contains(expected) && !refused.contains("--"), "{refused}");
    }
}

#[test]
fn a_failed_component_restarts_and_the_others_continue() {
    let chains = Chains::new();
    chains.define("toy", "sm = \"25%\"\nrestarts = 3", &[WAITS, WAITS]);
    let mut tenant = chains.start(&["toy"], 2);
    let before = chains.eventually("toy", |view| view["components"][1]["process"].is_object());
    kill(&before["components"][0]["process"]["pid"], Signal::KILL);
    assert_eq!(tenant.next_line(), "0 runs");
    let after = chains.eventually("toy", |view| view["components"][0]["restarts"] == 1);
    assert_eq!(after["components"][0]["ended"], "signal 9");
    assert_eq!(after["components"][1], before["components"][1]);
    let events = after["events"].to_string();
    assert!(events.contains("component a") && events.contains("signal 9"), "{events}");
    let told = chains.ok(&["chain", "watch", "toy", "--once"]);
    assert!(told.starts_with("toy on ") && told.contains("\na ") && told.contains("\nb "), "{told}");
    // A chain is a tenant.
    let row = chains.world.row("toy");
    assert_eq!((&row["name"], &row["command"][0]), (&"toy".into(), &"chain of 2 components".into()));
    assert!(chains.ok(&["chain", "stop", "toy"]).contains("toy: ended"));
    assert_eq!(tenant.exit_code(), 0, "components without frames get a signal");
}

#[test]
fn a_component_that_always_fails_ends_the_chain_and_is_named() {
    let chains = Chains::new();
    chains.define("toy", "restarts = 2", &[WAITS, r#"["sh", "-c", "exit 7"]"#]);
    let output = chains.command(&["chain", "start", "toy"]).output().unwrap();
    let told = common::text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{told}");
    assert!(
        told.contains("component b") && told.contains("code 7") && told.contains("it has failed 3 times"),
        "{told}"
    );
    // A component that cannot be started at all is not retried for long.
    for (command, expected) in [(r#"["/no/such/program"]"#, "no such program"), (r#"["/"]"#, "directory")] {
        chains.define("toy", "", &[WAITS, command]);
        let output = chains.command(&["chain", "start", "toy"]).output().unwrap();
        let told = common::text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{told}");
        assert!(told.contains("component b") && told.contains(expected), "{told}");
    }
}

#[test]
fn a_chain_ends_when_one_of_it_is_done() {
    let chains = Chains::new();
    // The second ignores the end of frames, but not a signal.
    let path = chains.define("toy", "", &[r#"["sh", "-c", "sleep 0.3"]"#, WAITS]);
    let mut tenant = chains.start(&[path.to_str().unwrap()], 1);
    assert_eq!(tenant.exit_code(), 0);
}

#[test]
fn what_a_component_has_started_ends_with_it_and_with_the_chain() {
    const STARTS: &str = r#"["sh", "-c", "sleep 1000 & echo $!; exec sleep 1000"]"#;
    let chains = Chains::new();
    chains.define("toy", "", &[STARTS, r#"["sleep", "1000"]"#]);
    let mut tenant = Tenant::start(&mut chains.command(&["chain", "start", "toy"]));
    let first: u64 = tenant.next_line().parse().unwrap();
    let view = chains.eventually("toy", |view| view["components"][1]["process"].is_object());
    kill(&view["components"][0]["process"]["pid"], Signal::KILL);
    let second: u64 = tenant.next_line().parse().unwrap();
    assert!(!common::lives(first) && common::lives(second));
    assert!(
        common::lives(view["components"][1]["process"]["pid"].as_u64().unwrap()),
        "another's is left alone"
    );
    tenant.signal(Signal::TERM);
    assert_eq!(tenant.exit_code(), 128 + Signal::TERM.as_raw());
    assert!(!common::lives(second));
    // The chain's own place on the GPU goes with its holder, which sees the end some milliseconds
    // later.
    let is_gone = || chains.world.ps().is_empty();
    partita_testing::eventually("the tenant is gone", is_gone);
    // Also of one that has ended well.
    chains.define("toy", "", &[r#"["sh", "-c", "sleep 1000 & exit 0"]"#, WAITS]);
    chains.ok(&["chain", "start", "toy"]);
    partita_testing::eventually("the tenant is gone", is_gone);
}

#[test]
fn a_tenant_without_a_chain_is_refused_as_one() {
    let chains = Chains::new();
    let _tenant = chains.world.idle("--name toy --sm 4tpc");
    for words in [&["chain", "stop", "toy"] as &[_], &["chain", "steer", "toy", "--tpcs", "1,1"]] {
        let refused = chains.refused(words);
        assert!(refused.contains("not a chain") && refused.contains("partita kill toy"), "{refused}");
    }
}

#[test]
fn a_log_without_a_reader_is_reported_and_blocks_nothing() {
    let chains = Chains::new();
    let world = &chains.world;
    chains.define("toy", "period_ms = 10", &[WAITS, WAITS]);
    // From the first line on.
    let refused = chains.refused(&["chain", "start", "toy", "--log", "/dev/full"]);
    assert!(refused.contains("/dev/full"), "{refused}");
    let pipe = world.dir().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    world.give(&pipe);
    let words = ["chain", "start", "toy", "--log", pipe.to_str().unwrap()];
    let refused = chains.refused(&words);
    assert!(refused.contains("this pipe has no reader"), "{refused}");
    // The reader closes the pipe, and the chain continues.
    let reader = fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    let mut tenant = chains.start(&words[2..], 2);
    drop(reader);
    let view = chains.eventually("toy", |view| view["events"].to_string().contains("without a log"));
    assert_eq!(view["supervised"], true);
    tenant.signal(Signal::TERM);
    tenant.exit_code();
    let mut complaint = String::new();
    std::io::Read::read_to_string(&mut tenant.child.stderr.take().unwrap(), &mut complaint).unwrap();
    assert!(complaint.contains("/pipe failed; the chain continues"), "{complaint}");
}

#[test]
fn a_chain_that_cannot_be_shown_goes_on() {
    let chains = Chains::new();
    chains.define("toy", "", &[WAITS, r#"["sleep", "1000"]"#]);
    let mut tenant = chains.start(&["toy"], 1);
    let view = chains.eventually("toy", |view| view["components"][1]["process"].is_object());
    // As on a full disk: the state file cannot be replaced.
    let pid = view["components"][1]["process"]["pid"].as_u64().unwrap();
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
    let mut variables = environment.split(|byte| *byte == 0);
    let file = variables.find_map(|word| word.strip_prefix(b"PARTITA_CHAIN=")).unwrap();
    let shown = std::path::Path::new(std::ffi::OsStr::from_bytes(file)).with_file_name("chain.state.json");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let _ = fs::remove_file(&shown);
        if fs::create_dir(&shown).is_ok() {
            break;
        }
        assert!(Instant::now() < deadline, "it is written all the time");
    }
    kill(&view["components"][0]["process"]["pid"], Signal::KILL);
    assert_eq!(tenant.next_line(), "0 runs");
    fs::remove_dir(&shown).unwrap();
    chains.eventually("toy", |view| view["components"][0]["restarts"] == 1);
    tenant.signal(Signal::TERM);
    assert_eq!(tenant.exit_code(), 128 + Signal::TERM.as_raw());
    let mut complaint = String::new();
    std::io::Read::read_to_string(&mut tenant.child.stderr.take().unwrap(), &mut complaint).unwrap();
    assert!(
        complaint.contains("chain.state.json") && complaint.contains("the chain continues"),
        "{complaint}"
    );
}

#[test]
fn a_chain_is_ended_by_a_signal_as_any_program() {
    let chains = Chains::new();
    chains.define("toy", "", &[WAITS, WAITS, WAITS]);
    for signal in [Signal::TERM, Signal::INT, Signal::USR1] {
        let mut tenant = chains.start(&["toy"], 3);
        tenant.signal(signal);
        assert_eq!(tenant.exit_code(), 128 + signal.as_raw());
        assert_eq!(chains.world.ps(), [Value::Null; 0], "after {signal:?}");
    }
    let mut tenant = chains.start(&["toy"], 3);
    chains.world.ok("kill toy");
    tenant.exit_code();
}

#[test]
fn who_heeds_no_request_to_end_is_ended_by_force() {
    const DEAF: &str = r#"["sh", "-c", "trap '' TERM; echo runs; while :; do sleep 1; done"]"#;
    let chains = Chains::new();
    chains.define("toy", "", &[WAITS, DEAF]);
    let mut tenant = chains.start(&["toy"], 2);
    assert!(chains.ok(&["chain", "stop", "toy", "--grace", "1"]).contains("toy: ended"));
    assert_ne!(tenant.exit_code(), 0);
    assert!(chains.ok(&["chain", "ps"]).contains("not running"));
}

#[test]
fn compute_units_are_divided_by_hand_or_shared_and_follow_the_tenants() {
    let chains = Chains::new();
    chains.define("toy", "sm = \"20tpc\"\nalgorithm = \"none\"\nperiod_ms = 20", &[WAITS, WAITS]);
    let log = chains.world.dir().join("log.jsonl");
    let mut tenant = chains.start(&["toy", "--log", log.to_str().unwrap()], 2);
    let view = chains.eventually("toy", |view| view["tpcs"].is_array());
    assert_eq!((&view["tpcs"], &view["phase"]), (&serde_json::json!([20, 20]), &"off".into()));
    chains.ok(&["chain", "steer", "toy", "--tpcs", "5,12"]);
    let view = chains.eventually("toy", |view| view["tpcs"] == serde_json::json!([5, 12]));
    let sets: Vec<Vec<u32>> =
        (0..2).map(|at| common::tpcs(view["roles"][at]["tpcs"].as_str().unwrap())).collect();
    assert_eq!((sets[0].len(), sets[1].len()), (5, 12));
    assert!(sets[0].iter().all(|tpc| !sets[1].contains(tpc)), "{sets:?}");
    // No component has more than there is, and no notice appears.
    chains.ok(&["chain", "steer", "toy", "--tpcs", "5,4000000000"]);
    chains.eventually("toy", |view| view["tpcs"] == serde_json::json!([5, 20]));
    chains.ok(&["chain", "steer", "toy", "--tpcs", "5,12"]);
    // The tenant shrinks, and its components' sets lie in the rest.
    chains.world.ok("set toy --sm 6tpc");
    // Its number, its components' sets and the event appear one after the other.
    let view = chains.eventually("toy", |view| {
        view["tpcs_of_chain"] == 6
            && view["tpcs"] == serde_json::json!([5, 6])
            && view["events"].to_string().contains("search: 5 6")
    });
    let events = view["events"].to_string();
    assert!(!events.contains("4000000000"), "{events}");
    let of_tenant = common::tpcs(chains.world.row("toy")["tpcs"].as_str().unwrap());
    let view = chains.eventually("toy", |_| true)["roles"].as_array().cloned().unwrap_or_else(|| vec![view]);
    for role in view {
        let set = common::tpcs(role["tpcs"].as_str().unwrap());
        assert!(!set.is_empty() && set.iter().all(|tpc| of_tenant.contains(tpc)), "{set:?} in {of_tenant:?}");
    }
    for (words, expected) in [
        (["--tpcs", "1"], "2 components"),
        (["--tpcs", "0,3"], "component 1 of the chain"),
        (["--tpcs", "1,2,3"], "2 components"),
        (["--algorithm", "magic"], "magic"),
    ] {
        let refused = chains.refused(&[["chain", "steer", "toy"].as_slice(), &words].concat());
        assert!(refused.contains(expected), "{words:?}: {refused}");
    }
    tenant.signal(Signal::TERM);
    tenant.exit_code();
    for ending in ["svg", "png"] {
        let picture = chains.world.dir().join("picture").with_extension(ending);
        chains.ok(&["chain", "plot", log.to_str().unwrap(), "--out", picture.to_str().unwrap()]);
        assert!(fs::metadata(&picture).unwrap().len() > 1000);
    }
    let refused = chains.refused(&["chain", "plot", log.to_str().unwrap(), "--out", "/tmp/x.gif"]);
    assert!(refused.contains(".svg or .png"), "{refused}");
}

/// Kills the supervising process of a chain, and waits until its `start` has exited.
fn kill_supervisor(chains: &Chains, name: &str, tenant: &mut Tenant) -> Value {
    let view = chains.eventually(name, |view| view["components"][1]["process"].is_object());
    assert_eq!(view["supervised"], true);
    kill(&view["supervisor"]["pid"], Signal::KILL);
    assert_eq!(tenant.exit_code(), 128 + Signal::KILL.as_raw());
    view
}

#[test]
fn a_chain_whose_process_has_died_is_shown_and_can_restart() {
    let chains = Chains::new();
    chains.define("toy", "sm = \"25%\"", &[WAITS, WAITS]);
    let mut tenant = chains.start(&["toy"], 2);
    let refused = chains.refused(&["chain", "start", "toy"]);
    assert!(refused.contains("another process runs it"), "one that runs is left alone: {refused}");
    let before = kill_supervisor(&chains, "toy", &mut tenant);

    // The components continue, and every display reports the chain's state.
    let view = chains.view("toy");
    assert_eq!((&view["supervised"], &view["components"]), (&false.into(), &before["components"]));
    let pid = before["components"][0]["process"]["pid"].as_u64().unwrap();
    assert!(common::lives(pid));
    assert!(chains.ok(&["chain", "ps"]).contains("unsupervised"));
    let told = chains.ok(&["chain", "watch", "toy", "--once"]);
    assert!(told.contains("HAS DIED") && told.contains("partita chain start toy"), "{told}");
    let refused = chains.refused(&["chain", "steer", "toy", "--tpcs", "3,4"]);
    assert!(refused.contains("has died") && refused.contains("partita chain start toy"), "{refused}");
    // No other process takes over the chain.
    let ledger = fs::read(format!("/proc/{pid}/environ")).unwrap();
    let ledger = ledger.split(|byte| *byte == 0).find_map(|one| one.strip_prefix(b"PARTITA_LEDGER="));
    let order = serde_json::json!({ "definition": before["definition"], "log": null }).to_string();
    let mut second = chains.command(&["chain", "internal-chain", &order]);
    second.env("PARTITA_LEDGER", std::ffi::OsStr::from_bytes(ledger.unwrap()));
    let refused = common::refusal(&mut second);
    assert!(refused.contains("has died") && refused.contains("partita chain start toy"), "{refused}");

    // Of two that start it, one does.
    let mut starting = ["first", "second"].map(|_| {
        let mut command = chains.command(&["chain", "start", "toy"]);
        Tenant::start(&mut command)
    });
    let view = chains.eventually("toy", |view| {
        let is_new = view["supervised"] == true && view["supervisor"] != before["supervisor"];
        is_new && view["components"][1]["process"].is_object()
    });
    assert!(!common::lives(pid), "what was left has ended");
    let refused = common::refusal(
        chains
            .command(&["chain", "internal-chain", &order])
            .env("PARTITA_LEDGER", std::ffi::OsStr::from_bytes(ledger.unwrap())),
    );
    assert!(refused.contains("another process runs it"), "{refused}");
    let deadline = Instant::now() + PATIENCE;
    let loser = loop {
        let ended = starting.iter_mut().position(|one| one.child.try_wait().unwrap().is_some());
        if let Some(loser) = ended {
            break loser;
        }
        assert!(Instant::now() < deadline, "both run: {view:#}");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(starting[loser].exit_code(), 125);
    let winner = &mut starting[1 - loser];
    assert_eq!(chains.view("toy")["supervisor"], view["supervisor"], "the one that runs is left alone");

    kill_supervisor(&chains, "toy", winner);
    let told = chains.ok(&["chain", "stop", "toy"]);
    assert!(told.contains("the process that ran it had died"), "{told}");
    assert!(chains.ok(&["chain", "ps"]).contains("not running"));
}
