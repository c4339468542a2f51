//! How threads of one process wait for each other inside the hook.

mod common;

use common::{Fixture, limits};
use partita_ledger::{FLAG_TIMED, Limits, TimeMap};

/// How often threads gave up their turns while they waited, of how many requests.
fn yields(fixture: &Fixture, what: &str) -> (u64, u64) {
    let output = fixture.run("urgent.c", &[what]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let words: Vec<u64> = text.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    (words[0], words[1])
}

#[test]
fn an_urgent_thread_lets_the_one_go_on_that_allocates() {
    let (yields, requests) = yields(&Fixture::new(&limits()), "allocations");
    assert_eq!(yields, 0, "of {requests} allocations");
}

#[test]
fn an_urgent_thread_lets_the_one_go_on_that_launches() {
    let limits = Limits { flags: FLAG_TIMED, time_permille: 990, ..limits() };
    let fixture = Fixture::new(&limits);
    TimeMap::create(&fixture.file("time"), 0o600).expect("the time file");
    let (yields, requests) = yields(&fixture, "launches");
    assert_eq!(yields, 0, "of {requests} launches");
}
