//! Chains that run: started, steered, watched and stopped over REST, and not held up by an end of
//! the daemon.

use crate::common;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use common::{Daemon, PATIENCE, World, definition};
use partita_testing::{eventually, needs_simulator};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

fn lives(pid: &Value) -> bool {
    let pid = u32::try_from(pid.as_u64().unwrap()).unwrap();
    partita::process::ProcessId::living(pid).is_some()
}

fn running(daemon: &Daemon) -> Value {
    daemon.get("/v1/chains/c")["running"].clone()
}

/// Ends the chain whatever becomes of the test.
struct Stop<'w>(&'w World);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.kill_chain("c");
    }
}

/// The first entries of a stream of events: each with its id.
fn events(daemon: &Daemon, header: &str, count: usize) -> Vec<Value> {
    let mut stream = UnixStream::connect(daemon.socket()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET /v1/chains/c/optimizer/events HTTP/1.1\r\nhost: x\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut entries = Vec::new();
    let mut id = None;
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        if let Some(text) = line.strip_prefix("id: ") {
            id = Some(text.parse::<i64>().unwrap());
        }
        if let Some(data) = line.strip_prefix("data: ") {
            let entry: Value = serde_json::from_str(data).unwrap();
            assert_eq!(entry["id"].as_i64(), id.take());
            entries.push(entry);
        }
        if entries.len() == count {
            break;
        }
    }
    assert_eq!(entries.len(), count, "the stream ended");
    entries
}

#[test]
fn a_chain_lives_on_without_the_daemon_and_is_found_again() {
    if needs_simulator("a chain on a GPU that others may use") {
        return;
    }
    let world = World::new();
    let mut daemon = world.start();
    daemon.ok("POST", "/v1/chains", Some(definition("c")));
    let started = daemon.ok("POST", "/v1/chains/c/start", None);
    let stop = Stop(&world);
    assert_eq!(
        (&started["name"], &started["gpu"], &started["tpcs"]),
        (&json!("c"), &json!("sim:h200"), &json!(66))
    );
    assert!(started["components"].as_array().unwrap().iter().all(|component| component["pid"].is_u64()));
    eventually("the keeper of its frames is listed", || daemon.get("/v1/keepers")[0]["chain"] == "c");
    daemon.refused(409, "POST", "/v1/chains/c/start", None);
    daemon.refused(409, "DELETE", "/v1/chains/c", None);
    let tenants = daemon.get("/v1/tenants");
    assert_eq!(tenants[0]["name"], "c", "a chain is a tenant");

    // The daemon dies, and a program in the meantime asks nothing of it.
    let before = running(&daemon);
    daemon.kill();
    assert!(lives(&before["supervisor_pid"]));
    let daemon = world.start();
    let after = running(&daemon);
    assert_eq!(after["supervisor_pid"], before["supervisor_pid"]);
    assert_eq!(after["components"][1]["pid"], before["components"][1]["pid"]);

    // Restarted in order, too.
    daemon.end();
    let daemon = world.start();
    assert_eq!(running(&daemon)["supervisor_pid"], before["supervisor_pid"]);

    // Its own process dies: what is left of it makes room for the next start.
    let pid = Pid::from_raw(i32::try_from(before["supervisor_pid"].as_i64().unwrap()).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    eventually("it is seen to be alone", || running(&daemon)["supervised"] == false);
    assert!(lives(&before["components"][0]["pid"]));
    let page = daemon.send("GET /metrics HTTP/1.1", b"").2;
    assert!(page.contains("partita_chain_supervised{chain=\"c\",gpu=\"sim:h200\"} 0.0"), "{page}");
    let restarted = daemon.ok("POST", "/v1/chains/c/start", None);
    assert!(
        restarted["supervised"] == true && restarted["supervisor_pid"] != before["supervisor_pid"],
        "{restarted}"
    );
    assert!(!lives(&before["components"][0]["pid"]));
    daemon.refused(409, "POST", "/v1/chains/c/start", None);

    drop(stop);
    eventually("all of it has ended", || !lives(&restarted["supervisor_pid"]));
}

#[test]
fn shares_are_configured_suggested_and_kept_as_history() {
    if needs_simulator("a chain on a GPU that others may use") {
        return;
    }
    let world = World::new();
    let daemon = world.start();
    let mut chain = definition("c");
    chain["sm"] = json!("50%");
    chain["algorithm"] = json!("none");
    daemon.ok("POST", "/v1/chains", Some(chain));
    daemon.ok("POST", "/v1/chains/c/start", None);
    let _stop = Stop(&world);
    let path = "/v1/chains/c/sm-configuration";
    let of = |component: &str, what: &str| format!("/v1/chains/c/components/{component}/{what}");

    for (status, path, body) in [
        (422, path.to_owned(), json!({ "first": { "tpcs": 4 } })),
        (422, path.to_owned(), json!({ "first": { "tpcs": 4 }, "second": {} })),
        (422, path.to_owned(), json!({ "first": { "tpcs": 4 }, "second": { "tpcs": 34 } })),
        (422, path.to_owned(), json!({ "first": { "tpcs": 0 }, "second": { "tpcs": 4 } })),
        (422, path.to_owned(), json!({ "first": { "sm_percent": 101.0 }, "second": { "tpcs": 4 } })),
        (422, path.to_owned(), json!({ "first": { "sm_percent": 1.0 }, "second": { "tpcs": 4 } })),
        (422, path.to_owned(), json!({ "first": { "tpcs": 4, "sm_percent": 4.0 }, "second": { "tpcs": 4 } })),
        (404, of("third", "sm-configuration"), json!({ "tpcs": 4 })),
        (422, of("first", "sm-configuration"), json!({ "tpcs": -4 })),
        (422, "/v1/chains/c/optimizer".to_owned(), json!({ "algorithm": "magic" })),
    ] {
        daemon.refused(status, "PUT", &path, Some(body));
    }
    let problem = daemon.refused(422, "PUT", path, Some(json!({ "third": { "tpcs": 4 } })));
    let detail = problem["detail"].as_str().unwrap();
    assert!(problem["field"] == "/third" && detail.contains("it has first, second"), "{problem}");
    // What would be ignored is refused.
    for change in ["start", "stop"] {
        let problem =
            daemon.refused(422, "POST", &format!("/v1/chains/c/{change}"), Some(json!({ "grace_s": 1 })));
        assert!(problem["detail"].as_str().unwrap().contains("takes none"), "{problem}");
    }

    let now =
        daemon.ok("PUT", path, Some(json!({ "first": { "tpcs": 4 }, "second": { "sm_percent": 75.0 } })));
    // Three quarters of 33, rounded down.
    assert_eq!(now["tpcs"], json!({ "first": 4, "second": 24 }));
    let suggestion = of("second", "sm-suggestion");
    eventually("the chain has it", || daemon.get(&suggestion)["tpcs"] == 24);
    let told = daemon.get(&suggestion);
    assert!((told["sm_percent"].as_f64().unwrap() - 2400.0 / 33.0).abs() < 1e-9, "{told}");
    // The components use no client library, so they do not obey; they do not refuse either.
    assert!(told["tpc_set"].is_string() && told["obeys"] == false && told["refuses"] == false, "{told}");
    assert_eq!(running(&daemon)["components"][1]["refuses"], false);
    assert_eq!(daemon.get("/v1/chains/c/optimizer")["algorithm"], "hand");

    // One alone; the other one keeps what it has.
    let now = daemon.ok("PUT", &of("first", "sm-configuration"), Some(json!({ "tpcs": 9 })));
    assert_eq!(now["tpcs"], json!({ "first": 9, "second": 24 }));
    eventually("the chain has it", || daemon.get(path)["tpcs"] == json!({ "first": 9, "second": 24 }));

    let history = || daemon.get("/v1/chains/c/optimizer/history");
    let has = |first: u32| {
        let is = |entry: &Value| entry["tpcs"] == json!({ "first": first, "second": 24 });
        history().as_array().unwrap().iter().any(is)
    };
    eventually("both are history", || has(4) && has(9));
    let all = history();
    let all = all.as_array().unwrap();
    let ids: Vec<i64> = all.iter().map(|entry| entry["id"].as_i64().unwrap()).collect();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{ids:?}");
    let rest = daemon.get(&format!("/v1/chains/c/optimizer/history?after={}&limit=1", ids[0]));
    assert_eq!(rest, json!([all[1]]));
    // A client that reconnects gets what it missed, and then new events.
    assert_eq!(events(&daemon, "last-event-id: 0\r\n", all.len()), *all);
    assert_eq!(events(&daemon, &format!("last-event-id: {}\r\n", ids[0]), all.len() - 1), all[1..]);
    let live = std::thread::scope(|scope| {
        let live = scope.spawn(|| events(&daemon, "", 1));
        eventually("the watcher is there", || {
            daemon.send("GET /metrics HTTP/1.1", b"").2.contains("optimizer/events")
        });
        while !live.is_finished() {
            daemon.ok("PUT", &of("first", "sm-configuration"), Some(json!({ "tpcs": 10 })));
            daemon.ok("PUT", &of("first", "sm-configuration"), Some(json!({ "tpcs": 11 })));
            std::thread::sleep(Duration::from_millis(100));
        }
        live.join().unwrap()
    });
    assert!(live[0]["id"].as_i64().unwrap() > ids[ids.len() - 1], "{live:?}");

    daemon.ok("PUT", "/v1/chains/c/optimizer", Some(json!({ "algorithm": "steady" })));
    eventually("an optimizer is back", || daemon.get("/v1/chains/c/optimizer")["algorithm"] == "steady");
    let page = daemon.send("GET /metrics HTTP/1.1", b"").2;
    assert!(
        page.contains(
            "partita_chain_component_starts_total{chain=\"c\",gpu=\"sim:h200\",component=\"first\"}"
        ),
        "{page}"
    );

    let ended = daemon.ok("POST", "/v1/chains/c/stop?grace_s=1", None);
    assert!(ended["processes"].as_u64().unwrap() >= 1, "{ended}");
    assert_eq!(running(&daemon), Value::Null);
    assert!(history().as_array().unwrap().len() >= all.len(), "history stays");
    daemon.refused(409, "POST", "/v1/chains/c/stop", None);
}

#[test]
fn a_chain_that_cannot_start_says_why() {
    if needs_simulator("a partition of a known GPU") {
        return;
    }
    let world = World::new();
    let daemon = world.start();
    let mut chain = definition("c");
    chain["sm"] = json!("1tpc");
    chain["mem"] = json!("100TiB");
    daemon.ok("POST", "/v1/chains", Some(chain));
    let problem = daemon.refused(409, "POST", "/v1/chains/c/start", None);
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("chain c: mem 100TiB") && detail.contains("c.log"), "{detail}");
    assert_eq!(running(&daemon), Value::Null);
    let mut chain = definition("d");
    chain["component"][1]["command"] = json!(["./none"]);
    daemon.ok("POST", "/v1/chains", Some(chain));
    let problem = daemon.refused(409, "POST", "/v1/chains/d/start", None);
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("./none: no such program"), "{detail}");
}
