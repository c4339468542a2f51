//! Faults that a test provokes: Partita names the culprit, or reports that it is not known and
//! lists it among the candidates.
//!
//! `PARTITA_TEST_LONG=1` provokes 100 faults instead of 10. `PARTITA_TEST_GPU=real` runs them on
//! the machine's first GPU.

use crate::common;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::process::Stdio;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use common::{Tenant, World};
use partita_testing::is_long;
use serde_json::Value;

/// The ways to break: the first three are faults of a kernel (of which a failed assertion concerns
/// its own process alone), the others deaths with an endless kernel in flight.
const WAYS: [&str; 7] = ["address", "trap", "assert", "kill", "segv", "abort", "leave"];

/// Faults that are provoked at the same time.
const AT_ONCE: usize = 4;

/// Numbers that look random and are the same in each run (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// What was said of a fault.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Said {
    Named,
    Among,
    /// No neighbour noticed: the death was contained.
    Contained,
}

/// Tenants that wait for a line, and tenants that compute all the time.
struct Neighbours {
    waiting: Vec<(String, Tenant)>,
    computing: Vec<(String, Tenant)>,
}

impl Neighbours {
    fn start(world: &World, waiting: usize, computing: usize) -> Self {
        let start = |name: String, what: &str| {
            let options = format!("--name {name} --sm 10%");
            // With a holder no death would break a neighbour.
            let mut command = world.gpu(&options, what);
            let mut tenant = Tenant::start(command.env("PARTITA_HOLDER", "off").stdin(Stdio::piped()));
            assert!(tenant.next_line().starts_with("sms"));
            (name, tenant)
        };
        Self {
            waiting: (0..waiting).map(|number| start(format!("waits{number}"), "break")).collect(),
            computing: (0..computing).map(|number| start(format!("computes{number}"), "loop")).collect(),
        }
    }
}

fn status(world: &World) -> Value {
    serde_json::from_str(&world.ok("mps status --json")).unwrap()
}

/// The process of a tenant that is a client.
fn pid_of(status: &Value, tenant: &str) -> u64 {
    let clients =
        status["servers"].as_array().unwrap().iter().flat_map(|server| server["clients"].as_array().unwrap());
    let found = clients.into_iter().find(|client| client["tenant"] == tenant);
    found.and_then(|client| client["pid"].as_u64()).unwrap_or_else(|| panic!("no {tenant} in {status}"))
}

/// Breaks one of the waiting tenants, and checks what all the others and the status say.
fn provoke(way: &str, waiting: usize, computing: usize, culprit: usize) -> Said {
    let world = World::new();
    let mut neighbours = Neighbours::start(&world, waiting, computing);
    let (name, mut breaks) = neighbours.waiting.remove(culprit);
    let pid = pid_of(&status(&world), &name);
    breaks.child.stdin.take().unwrap().write_all(format!("{way}\n").as_bytes()).unwrap();
    let code = breaks.exit_code();
    assert_ne!(code, 0, "{way}");

    // Who waits for a line ends with its input; a neighbour that computes ends by the error.
    let mut was_hit = false;
    for (other, mut tenant) in neighbours.computing {
        let is_hit =
            std::iter::repeat_with(|| tenant.next_line()).take(200).find(|line| !line.starts_with("sms"));
        if let Some(line) = is_hit {
            assert!(line.contains("error"), "{other}: {line}");
            was_hit = true;
            assert_eq!(tenant.exit_code(), 91);
            let mut said = String::new();
            tenant.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            // «process N of tenant T», or «tenant T, whose process N was killed».
            let culprit = [format!("process {pid} "), format!("tenant {name}")];
            let words = ["its work on the GPU was lost by a fault", &culprit[0], &culprit[1]];
            for words in words {
                assert!(said.contains(words), "{way}: {other}: {line}; {said}; {}", world.service_logs());
            }
        }
    }
    // The tenants write down what they know when they see the fault.
    let is_known = |status: &Value| status["servers"][0]["fault"]["cause"] == "known";
    let mut answers = (0..20).map(|_| {
        thread::sleep(Duration::from_millis(100));
        status(&world)
    });
    let status = answers.find(is_known).unwrap_or_else(|| status(&world));
    let fault = &status["servers"][0]["fault"];
    if fault.is_null() {
        assert!(!was_hit, "{way}: {status}");
        return Said::Contained;
    }
    let candidates: Vec<u64> =
        fault["candidates"].as_array().unwrap().iter().map(|one| one["pid"].as_u64().unwrap()).collect();
    assert!(candidates.contains(&pid), "{way}: process {pid} is not among the candidates: {fault}");
    match fault["cause"].as_str() {
        Some("known") => {
            assert_eq!(candidates, [pid]);
            Said::Named
        }
        _ => {
            let logs = if computing == 0 { world.service_logs() } else { String::new() };
            eprintln!("{way}: {fault}{logs}");
            Said::Among
        }
    }
}

#[test]
fn the_culprit_of_a_provoked_fault_is_named_or_among_the_candidates() {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let rounds = if is_long() { 100 } else { 10 };
    // Every way comes up, among neighbours that differ.
    let rounds = (0..rounds).map(|round| {
        let (waiting, computing) = (1 + numbers.below(2), 1 + numbers.below(2));
        (WAYS[round % WAYS.len()], waiting, computing, numbers.below(waiting))
    });
    let rounds = Mutex::new(rounds.collect::<Vec<_>>().into_iter());
    let said = Mutex::new(BTreeMap::new());
    let next = || rounds.lock().unwrap().next();
    // Each has a world of its own, and most of the time it waits.
    let provoke_all = || {
        while let Some((way, waiting, computing, culprit)) = next() {
            let answer = provoke(way, waiting, computing, culprit);
            assert_eq!(way == "assert", answer == Said::Contained, "{way}: {answer:?}");
            let mut said = said.lock().unwrap();
            *said.entry((way, answer)).or_insert(0) += 1;
            eprintln!("{said:?}");
        }
    };
    thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(provoke_all))));
    assert!(said.into_inner().unwrap().keys().any(|(_, said)| *said != Said::Contained));
}

/// A neighbour that had waited for all of its work cannot be the culprit.
#[test]
fn the_only_client_with_unfinished_work_is_named() {
    for way in ["address", "trap"] {
        assert_eq!(provoke(way, 3, 0, 1), Said::Named, "{way}");
    }
}
