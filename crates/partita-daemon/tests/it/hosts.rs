//! An application in two chains on two hosts: two places with a daemon and a simulated GPU each,
//! which reach each other over TCP alone.

use crate::common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use common::{Daemon, PATIENCE, World};
use partita_testing::{build, eventually, needs_simulator};
use serde_json::{Value, json};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const TPCS: u64 = 4;

/// A host: its chain ends with it.
struct Host {
    // It ends before the world, which waits for its processes.
    daemon: Daemon,
    world: World,
    chain: &'static str,
}

impl Host {
    fn new(chain: &'static str, components: &[(&str, &[&str])]) -> Self {
        let world = World::new();
        let daemon = Self::serve(&world, "127.0.0.1:0");
        let stage = build().join("partita-stage");
        let command = |words: &[&str]| {
            let words = words.iter().map(ToString::to_string);
            std::iter::once(stage.display().to_string()).chain(words).collect::<Vec<_>>()
        };
        let components: Vec<Value> = components
            .iter()
            .map(|(name, words)| json!({ "name": name, "command": command(words) }))
            .collect();
        let definition = json!({
            "name": chain, "frame": "64KiB", "frames": 12, "capacity": 3, "sm": format!("{TPCS}tpc"),
            "period_ms": 20, "component": components
        });
        daemon.ok("POST", "/v1/chains", Some(definition));
        daemon.ok("POST", &format!("/v1/chains/{chain}/start"), None);
        Self { world, daemon, chain }
    }

    fn serve(world: &World, listen: &str) -> Daemon {
        world.start_with(["--listen", listen, "--token-file", &world.token_file("token", TOKEN)])
    }

    fn url(&self) -> String {
        format!("http://{}/{}", self.daemon.address(), self.chain)
    }

    fn running(&self) -> Value {
        self.daemon.get(&format!("/v1/chains/{}", self.chain))["running"].clone()
    }

    fn tpcs(&self) -> Vec<u64> {
        let components = self.running()["components"].as_array().unwrap().clone();
        components.iter().map(|one| one["tpcs"].as_u64().unwrap()).collect()
    }

    fn token_file(&self) -> String {
        self.world.dir().join("token").display().to_string()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.world.kill_chain(self.chain);
    }
}

/// The application: `a` and `b` on one host, `c` and `d` on the other. The last component checks
/// what all four have computed.
fn application() -> (Host, Host) {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let rear = Host::new(
        "rear",
        &[
            ("c", &["matrix", "20:1", "--from", &free]),
            ("d", &["matrix", "40:2", "--check", "20:1,40:2,20:1,40:2"]),
        ],
    );
    let front = Host::new("front", &[("a", &["matrix", "20:1"]), ("b", &["matrix", "40:2", "--to", &free])]);
    eventually("frames pass both hosts", || rear.running()["frames_finished"].as_u64() > Some(20));
    (front, rear)
}

/// `partita chain tune` on a host.
fn tune(host: &Host, words: &[&str]) -> Command {
    host.world.partita(["chain", "tune"].iter().chain(words))
}

fn refusal(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn one_search_divides_the_gpus_of_two_hosts() {
    if needs_simulator("two hosts with a GPU each") {
        return;
    }
    let (front, rear) = application();
    let (url, token) = (rear.url(), front.token_file());
    let once = ["front", &url, "--token-file", &token, "--period-ms", "20", "--once", "--json"];
    let output = tune(&front, &once).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let last = String::from_utf8(output.stdout).unwrap().lines().last().unwrap().to_owned();
    let event: Value = serde_json::from_str(&last).unwrap();
    assert!(event["what"].as_str().unwrap().starts_with("searched for"), "{event}");
    let found: Vec<u64> = serde_json::from_value(event["tpcs"].clone()).unwrap();
    assert!(found.len() == 4 && found.iter().all(|tpcs| (1..=TPCS).contains(tpcs)), "{event}");
    // Both hosts have it, and their own searches have ended.
    assert_eq!([front.tpcs(), rear.tpcs()].concat(), found);
    for host in [&front, &rear] {
        let now = host.running();
        assert_eq!(now["algorithm"], "hand");
        for component in now["components"].as_array().unwrap() {
            assert_eq!(component["incarnation"], 1, "each result was right: {now}");
        }
    }
}

/// The lines of a search that goes on.
struct Search {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Search {
    fn begin(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn until(&mut self, what: &str) -> String {
        let found = self.lines.by_ref().map(Result::unwrap).find(|line| line.contains(what));
        found.unwrap_or_else(|| panic!("the search ended before {what:?}"))
    }
}

impl Drop for Search {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_search_outlives_a_daemon_and_begins_again_after_a_resize() {
    if needs_simulator("two hosts with a GPU each") {
        return;
    }
    let (front, mut rear) = application();
    let (url, address, token) = (rear.url(), rear.daemon.address(), front.token_file());
    let words = ["front", &url, "--token-file", &token, "--period-ms", "20"];
    let mut search = Search::begin(&mut tune(&front, &words));
    search.until("searched for");

    // Its daemon there is replaced.
    rear.daemon.kill();
    rear.daemon = Host::serve(&rear.world, &address);
    let half = TPCS / 2;
    let sm = format!("{half}tpc");
    assert!(rear.world.partita(["set", "rear", "--sm", &sm]).status().unwrap().success());
    let line = search.until("began again or was resized");
    assert!(line.contains(&url), "{line}");
    search.until("searched for");
    assert!(rear.tpcs().iter().all(|&tpcs| tpcs <= half));

    // Two that divide one chain would undo each other's work.
    rear.daemon.ok("PUT", "/v1/chains/rear/optimizer", Some(json!({ "algorithm": "steady" })));
    assert_eq!(search.child.wait().unwrap().code(), Some(125));
    let mut text = String::new();
    std::io::Read::read_to_string(&mut search.child.stderr.take().unwrap(), &mut text).unwrap();
    assert!(text.contains("somebody else divided") && text.contains(&url), "{text}");
    let limit = std::time::Instant::now() + PATIENCE;
    while front.running()["algorithm"] != "hand" {
        assert!(std::time::Instant::now() < limit, "what was divided here stays");
    }
}

#[test]
fn what_cannot_be_searched_is_refused_with_the_reason() {
    let world = World::new();
    let daemon = Host::serve(&world, "127.0.0.1:0");
    let address = daemon.address();
    let (token, wrong) = (world.dir().join("token"), world.dir().join("wrong"));
    fs::write(&wrong, "ffffffffffffffffffffffffffffffff").unwrap();
    let (token, wrong) = (token.to_str().unwrap(), wrong.to_str().unwrap());
    let refused = |words: &[&str]| refusal(&mut world.partita(["chain", "tune"].iter().chain(words)));

    let url = format!("http://{address}/rear");
    assert!(refused(&[&url]).contains("--token-file"));
    assert!(refused(&[&url, "--token-file", "/nowhere"]).contains("/nowhere"));
    let text = refused(&[&url, "--token-file", wrong]);
    assert!(text.contains(&address) && text.contains("token"), "{text}");
    let text = refused(&[&url, "--token-file", token]);
    assert!(text.contains("no chain rear") || text.contains("rear"), "{text}");
    for wrong in [
        "https://far:1/rear",
        "http://far/rear",
        "http://far:1",
        "http://far:1/",
        "http://far:1/front/rear",
        "http://far:99999/rear",
        "http://:1/rear",
        "far/rear",
    ] {
        let text = refused(&[wrong, "--token-file", token]);
        assert!(text.contains(&format!("{wrong}: give http://HOST:PORT/CHAIN; ")), "{text}");
    }
    assert!(refused(&["nothing"]).contains("no chain of that name runs"));
    assert!(refused(&["one", "one"]).contains("named twice"));
    // A port where nothing listens.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let text = refused(&[&format!("http://{free}/rear"), "--token-file", token]);
    assert!(text.contains(&free.to_string()) && text.contains("refused"), "{text}");
}
