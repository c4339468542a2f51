//! Decisions for targets are events, each of them once.

use std::process::{Child, Stdio};

use partita_testing::eventually;
use serde_json::Value;

use crate::common::{Daemon, World};

/// A tenant that ends with this value.
struct Tenant(Child);

impl Tenant {
    fn start(world: &World, line: &str) -> Self {
        let mut command = world.partita(line.split_whitespace());
        Self(command.stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_raw(self.0.id() as i32).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

fn decisions(daemon: &Daemon) -> Vec<Value> {
    let events = daemon.get("/v1/events");
    events.as_array().unwrap().iter().filter(|event| event["kind"] == "target").cloned().collect()
}

#[test]
fn decisions_are_events_and_each_is_stored_once() {
    let world = World::new();
    let mut daemon = world.start();
    let _train = Tenant::start(&world, "run --name train --sm 10% --goal throughput -- sleep 1000");
    let has = |daemon: &Daemon, what: &str| {
        decisions(daemon).iter().any(|event| event["detail"].as_str().unwrap().contains(what))
    };
    eventually("its TPCs have moved", || has(&daemon, "train went from 6 to 66 TPCs: the others leave them"));
    let first = decisions(&daemon)[0].clone();
    assert_eq!((&first["change"], &first["tenant"]), (&"happened".into(), &"train".into()), "{first}");
    assert!(first["gpu_uuid"].is_string() && first["user"].is_string() && first["pid"].is_null(), "{first}");
    let (_, _, page) = daemon.send("GET /metrics HTTP/1.1", b"");
    assert!(page.contains(r#"partitad_events_total{kind="target",change="happened"} 1"#), "{page}");
    daemon.kill();
    let daemon = world.start();
    // The next decision comes after all that the new daemon has seen before.
    let _other = Tenant::start(&world, "run --name other --sm 10% --goal throughput -- sleep 1000");
    eventually("TPCs have moved again", || has(&daemon, "other went from 6 to 33 TPCs"));
    let all = decisions(&daemon);
    assert_eq!(all.iter().filter(|event| **event == first).count(), 1, "{all:?}");
    let times = |event: &Value| (event["tenant"].to_string(), event["at_unix_ms"].as_i64().unwrap());
    let mut seen: Vec<_> = all.iter().map(times).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), all.len(), "{all:?}");
    assert!(daemon.log().contains("train went from 6 to 66 TPCs"));
}
