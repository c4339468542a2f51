//! `partita chain`: what happens to the processes of a chain, and who divides its compute units. But for one test the components are
//! shell scripts: no frame passes.

mod common;

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use common::{PATIENCE, Tenant, World};
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// A component that says that it runs, and waits.
const WAITS: &str = r#"["sh", "-c", "echo $PARTITA_COMPONENT runs; exec sleep 1000"]"#;

/// Where the keeper of a chain's memory is, and the components of the examples.
static BUILT: LazyLock<PathBuf> =
    LazyLock::new(|| partita_testing::build(&["partita-daemon", "partita-chain"]));

struct Chains {
    world: World,
}

impl Chains {
    fn new() -> Self {
        LazyLock::force(&BUILT);
        Self { world: World::new() }
    }

    /// A chain of these commands, defined.
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

    /// Starts a chain, and waits until so many components have said a line.
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

    /// As [`Chains::eventually`], of one that may not have begun yet.
    fn running(&self, name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        while !self.command(&["chain", "watch", name, "--once"]).output().unwrap().status.success() {
            assert!(Instant::now() < deadline, "{name} does not run");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.eventually(name, is_so)
    }

    /// What a chain shows once it is so.
    fn eventually(&self, name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let view = self.view(name);
            if is_so(&view) {
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
        (["chain", "start", "../cameras"], "\"../cameras\""),
        (["chain", "stop", "cameras"], "no chain of that name runs"),
        (["chain", "forget", "cameras"], "not defined"),
        (["chain", "define", "/no/such/file"], "/no/such/file"),
    ] {
        let refused = chains.refused(&words);
        assert!(refused.contains(expected), "{words:?}: {refused}");
    }
    fs::write(&file, example.replace("frame = \"4MiB\"", "frame = \"4 parsecs\"")).unwrap();
    let refused = chains.refused(&["chain", "define", file.to_str().unwrap()]);
    assert!(refused.contains("`frame`"), "{refused}");
}

#[test]
fn whoever_fails_is_started_anew_and_the_others_go_on() {
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
    assert_ne!(tenant.exit_code(), 0);
}

#[test]
fn whoever_fails_for_ever_ends_the_chain_and_is_named() {
    let chains = Chains::new();
    chains.define("toy", "restarts = 2", &[WAITS, r#"["sh", "-c", "exit 7"]"#]);
    let output = chains.command(&["chain", "start", "toy"]).output().unwrap();
    let told = common::text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{told}");
    assert!(
        told.contains("component b") && told.contains("exit code 7") && told.contains("for the 3. time"),
        "{told}"
    );
    // What cannot be started at all is not tried for long.
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
    // The second heeds no end of frames, but a signal.
    let path = chains.define("toy", "", &[r#"["sh", "-c", "sleep 0.3"]"#, WAITS]);
    let mut tenant = chains.start(&[path.to_str().unwrap()], 1);
    assert_eq!(tenant.exit_code(), 0);
}

#[test]
fn a_chain_is_ended_by_a_signal_as_any_program() {
    let chains = Chains::new();
    chains.define("toy", "", &[WAITS, WAITS, WAITS]);
    for signal in [Signal::TERM, Signal::INT] {
        let mut tenant = chains.start(&["toy"], 3);
        tenant.signal(signal);
        assert_eq!(tenant.exit_code(), 128 + signal.as_raw());
    }
    let mut tenant = chains.start(&["toy"], 3);
    chains.world.ok("kill toy");
    tenant.exit_code();
}

#[test]
fn compute_units_are_divided_by_hand_or_by_nobody_and_follow_the_tenants() {
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
    // The tenant shrinks, and what its components may use lies in what is left of it.
    chains.world.ok("set toy --sm 6tpc");
    let view = chains.eventually("toy", |view| view["tpcs_of_chain"] == 6);
    let of_tenant = common::tpcs(chains.world.row("toy")["tpcs"].as_str().unwrap());
    let view = chains.eventually("toy", |_| true)["roles"].as_array().cloned().unwrap_or_else(|| vec![view]);
    for role in view {
        let set = common::tpcs(role["tpcs"].as_str().unwrap());
        assert!(!set.is_empty() && set.iter().all(|tpc| of_tenant.contains(tpc)), "{set:?} in {of_tenant:?}");
    }
    for (words, expected) in [
        (["--tpcs", "1"], "2 components"),
        (["--tpcs", "0,3"], "component 0"),
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

/// Frames go through, in memory that the keeper gives by handles and by descriptors, and all of it is back in the end.
#[test]
fn frames_pass_in_a_keepers_memory_of_either_kind() {
    let chains = Chains::new();
    let stage = BUILT.join("partita-stage");
    let stage = |words: &str| format!("[{:?}, {words}]", stage.to_str().unwrap());
    let stages =
        [r#""decode", "96x64""#, r#""enhance", "96x64""#, r#""detect", "96x64", "--check""#].map(stage);
    for handles in ["ipc", "fd"] {
        let options = format!("handles = \"{handles}\"\nrestarts = 0\nalgorithm = \"none\"");
        chains.define("images", &options, &stages.each_ref().map(String::as_str));
        let mut tenant = chains.start(&["images"], 0);
        let view = chains.running("images", |view| view["frames_finished"].as_u64() > Some(20));
        assert_eq!((&view["frames_lost"], &view["definition"]["handles"]), (&0.into(), &handles.into()));
        tenant.signal(Signal::TERM);
        assert_eq!(tenant.exit_code(), 128 + Signal::TERM.as_raw());
    }
}
