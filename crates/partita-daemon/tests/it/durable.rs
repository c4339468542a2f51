//! Killed at any moment, under load: nothing that was acknowledged is lost.

use crate::common;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{World, definition};
use serde_json::{Value, json};

const ROUNDS: u64 = 12;
const WRITERS: usize = 4;

/// What the clients were told, by chain: its period as it was acknowledged last, and the one asked
/// for since without an answer.
type Told = BTreeMap<String, (Option<u32>, Option<u32>)>;

#[test]
fn no_acknowledged_change_is_lost() {
    let world = World::new();
    let told: Mutex<Told> = Mutex::default();
    for round in 0..ROUNDS {
        let mut daemon = world.start();
        check(&daemon.get("/v1/chains"), &mut told.lock().unwrap());
        let stop = AtomicBool::new(false);
        let client = daemon.client();
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (client, told, stop) = (&client, &told, &stop);
                scope.spawn(move || {
                    for number in 0.. {
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                        let name = format!("c{writer}-{}", number % 5);
                        let period = 10 + (round as u32 * 1000 + number) % 50_000;
                        let before = told.lock().unwrap().get(&name).copied();
                        told.lock().unwrap().entry(name.clone()).or_default().1 = Some(period);
                        let mut body = definition(&name);
                        body["period_ms"] = json!(period);
                        let (method, path) = match before {
                            Some((Some(_), _)) => ("PUT", format!("/v1/chains/{name}")),
                            _ => ("POST", "/v1/chains".to_owned()),
                        };
                        // None if the daemon died before it answered.
                        let Ok(answer) = client.request(method, &path, Some(&body)) else { return };
                        assert!([200, 201, 503].contains(&answer.status), "{method} {path}: {answer:?}");
                        if answer.status != 503 {
                            told.lock().unwrap().insert(name, (Some(period), None));
                        }
                    }
                });
            }
            // At another moment in each round.
            std::thread::sleep(Duration::from_millis(5 + round * 7));
            daemon.kill();
            stop.store(true, Ordering::Relaxed);
        });
    }
    let daemon = world.start();
    let chains = daemon.get("/v1/chains");
    check(&chains, &mut told.lock().unwrap());
    assert!(chains.as_array().unwrap().len() >= WRITERS, "{chains}");
    daemon.end();
    // And the file is whole.
    let whole = world.start();
    assert_eq!(whole.get("/v1/chains"), chains);
}

#[test]
fn a_definition_that_is_not_understood_can_be_deleted() {
    let world = World::new();
    let daemon = world.start();
    daemon.ok("POST", "/v1/chains", Some(definition("c")));
    daemon.end();
    let file = rusqlite::Connection::open(world.state().join(partita_daemon::store::FILE)).unwrap();
    file.execute("UPDATE chain SET definition = '{}'", []).unwrap();
    file.close().unwrap();
    let daemon = world.start();
    let problem = daemon.refused(500, "GET", "/v1/chains/c", None);
    assert!(problem["detail"].as_str().unwrap().contains("delete it and define it again"), "{problem}");
    daemon.ok("DELETE", "/v1/chains/c", None);
    daemon.ok("POST", "/v1/chains", Some(definition("c")));
}

/// Each chain is as it was acknowledged, or as it was asked to be without an answer.
fn check(chains: &Value, told: &mut Told) {
    let mut found: BTreeMap<&str, u32> = BTreeMap::new();
    for chain in chains.as_array().unwrap() {
        let period = chain["defined"]["definition"]["period_ms"].as_u64().unwrap();
        found.insert(chain["name"].as_str().unwrap(), period as u32);
    }
    for (name, (acknowledged, asked)) in told.iter_mut() {
        let now = found.remove(name.as_str());
        let is_explained = now == *acknowledged || (now.is_some() && now == *asked);
        assert!(is_explained, "{name} is {now:?}; acknowledged {acknowledged:?}, asked {asked:?}");
        (*acknowledged, *asked) = (now, None);
    }
    assert!(found.is_empty(), "{found:?} without a request");
}
