//! How threads of one process wait for each other inside the hook.
//!
//! `PARTITA_URGENT_SECONDS` says for how long each way is measured: 600 for the figures in
//! `research/bench/results/waits.md`. How long waits take is shown and asserted nowhere, since
//! other programs of the machine decide about it too.

mod common;

use std::process::Output;

use common::{Fixture, limits};
use partita_ledger::{FLAG_TIMED, Limits, TimeMap};

/// The longest piece of a measurement, in seconds: with the hook and without take turns.
const PIECE_S: u64 = 10;

/// The results of the threads of one way.
#[derive(Debug, Default)]
struct Figures {
    yields: u64,
    requests: u64,
    urgent_requests: u64,
    /// Of these, longer than a millisecond.
    slow: u64,
    longest_us: u64,
    is_urgent: bool,
}

impl Figures {
    fn add(&mut self, output: &Output) {
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        let words: Vec<u64> = text.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        let [yields, requests, urgent_requests, slow, longest_us, is_urgent] = words[..] else {
            panic!("{text}")
        };
        self.yields += yields;
        self.requests += requests;
        self.urgent_requests += urgent_requests;
        self.slow += slow;
        self.longest_us = self.longest_us.max(longest_us);
        self.is_urgent = is_urgent == 1;
    }
}

/// Measures the calls with the hook, and a plain lock without it, in turns: the plain lock shows
/// the machine's own delays.
fn measure(fixture: &Fixture, what: &str) -> Figures {
    let asked = std::env::var("PARTITA_URGENT_SECONDS").ok();
    let seconds: u64 = asked.map_or(2, |text| text.parse().expect("PARTITA_URGENT_SECONDS in seconds"));
    let (mut with, mut plain) = (Figures::default(), Figures::default());
    let mut left = seconds;
    while left > 0 {
        let piece = left.min(PIECE_S);
        let command = |what| fixture.command("urgent.c", &[what, &piece.to_string()]);
        with.add(&command(what).output().expect("the program starts"));
        plain.add(&command("lock").env_remove("LD_PRELOAD").output().expect("the program starts"));
        left -= piece;
    }
    if !with.is_urgent {
        eprintln!("SCHED_FIFO is not permitted here: no thread was urgent");
    }
    eprintln!("{what}, {seconds} s each\n  with the hook: {with:?}\n  a plain lock:  {plain:?}");
    with
}

#[test]
fn an_urgent_thread_lets_the_one_go_on_that_allocates() {
    let figures = measure(&Fixture::new(&limits()), "allocations");
    assert_eq!(figures.yields, 0, "{figures:?}");
}

#[test]
fn an_urgent_thread_lets_the_one_go_on_that_launches() {
    let limits = Limits { flags: FLAG_TIMED, time_permille: 990, ..limits() };
    let fixture = Fixture::new(&limits);
    TimeMap::create(&fixture.file("time"), 0o600).expect("the time file");
    let figures = measure(&fixture, "launches");
    assert_eq!(figures.yields, 0, "{figures:?}");
}
