//! Random sequences of graph and stream calls have the same results without the hook and as a
//! tenant.
//!
//! The same codes of every call, the same values in memory, the same nodes and edges where they are
//! asked for: for a mask, for each priority, and for a share of time. `PARTITA_SEQUENCES=100000`
//! says how many (250 otherwise, 1,000 in a long run), `PARTITA_SEQUENCES_SEED` from which seed on,
//! and `PARTITA_TEST_GPU=real` on the machine's first GPU. `PARTITA_SEQUENCES_SECONDS` ends a
//! comparison after that time, and `PARTITA_SEQUENCES_SHRINK=0` tells differences as they are.
//!
//! The program of this test needs no cargo: with `partita` and `libpartita.so` in the directory
//! that `PARTITA_TEST_LIB_DIR` names it runs wherever there is a GPU (`on_gpu.sh`).
//! `writes_a_trace` writes what the driver does to the file `PARTITA_SEQUENCES_OUTPUT`, to be
//! compared with another driver's or the simulator's: for sequences from the file
//! `PARTITA_SEQUENCES_INPUT` if it is given (`questions.txt`), and behind the hook if
//! `PARTITA_SEQUENCES_TENANT` has options of `partita run`.

mod compare;
mod driver;
mod plan;
mod program;

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use compare::{Effort, INPUT, Named, OUTPUT, World};
use partita_testing::is_long;
use plan::Operation;

fn number(variable: &str, otherwise: u64) -> u64 {
    let Some(value) = std::env::var_os(variable) else { return otherwise };
    let number = value.to_str().and_then(|text| text.parse().ok());
    number.unwrap_or_else(|| panic!("{variable}={} is not a number", value.display()))
}

fn seeds() -> std::ops::Range<u64> {
    let first = number("PARTITA_SEQUENCES_SEED", 1);
    first..first + number("PARTITA_SEQUENCES", if is_long() { 1000 } else { 250 })
}

fn path(variable: &str) -> PathBuf {
    std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} names no file")).into()
}

/// Sequences from a file: each behind a line with its name.
fn parse(text: &str) -> Vec<Named> {
    let sequence = |part: &str| {
        let (name, lines) = part.split_once('\n').unwrap_or((part, ""));
        let lines = lines.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
        let operations =
            lines.map(|line| line.parse::<Operation>().unwrap_or_else(|error| panic!("{error}"))).collect();
        (name.to_owned(), operations)
    };
    text.split("= ").skip(1).map(sequence).collect()
}

/// What is asked of every driver.
fn questions() -> Vec<Named> {
    parse(include_str!("questions.txt"))
}

#[test]
fn a_tenant_sees_what_a_program_without_the_hook_sees() {
    let seconds = number("PARTITA_SEQUENCES_SECONDS", 0);
    let effort = Effort {
        until: (seconds > 0).then(|| Instant::now() + Duration::from_secs(seconds)),
        shrinks: number("PARTITA_SEQUENCES_SHRINK", 1) > 0,
    };
    World::new().compare(seeds(), &effort);
}

#[test]
fn the_questions_have_the_same_answers_in_a_tenant() {
    World::new().compare_all(&questions());
}

/// Frameworks do this first when they record a graph, and a tenant once could not.
#[test]
fn a_capture_of_nothing_can_be_executed_in_every_tenant() {
    let world = World::new();
    let question = questions().into_iter().next().expect("a question");
    assert!(question.0.starts_with("a capture of nothing"), "{}", question.0);
    let tenants = compare::TENANTS.iter().map(|(_, options)| Some(*options));
    for tenant in std::iter::once(None).chain(tenants) {
        let trace = world.trace(tenant, std::slice::from_ref(&question));
        let made = ["begin", "end", "instantiate", "launch", "update", "clone", "flags"];
        let is_made = |line: &&str| line.split(' ').nth(1).is_some_and(|kind| made.contains(&kind));
        let calls: Vec<&str> = trace.lines().filter(is_made).collect();
        assert_eq!(calls.len(), question.1.iter().filter(|it| is_made(&&*it.to_string())).count(), "{trace}");
        for call in calls {
            let (_, told) = call.split_once("-> ").expect("a result");
            assert!(
                told.split(' ').any(|word| word == "0") && !told.contains("skipped"),
                "{tenant:?}: {call}"
            );
            let refused = |word: &str| word.parse::<u32>().is_ok_and(|code| code != 0);
            assert!(call.contains(" flags ") || !told.split(' ').any(refused), "{tenant:?}: {call}");
        }
    }
}

#[test]
#[ignore = "writes a file, where PARTITA_SEQUENCES_OUTPUT says"]
fn writes_a_trace() {
    let sequences: Vec<Named> = match std::env::var_os(INPUT) {
        Some(input) => parse(&std::fs::read_to_string(input).expect("the sequences are read")),
        None => seeds().map(|seed| (format!("seed {seed}"), plan::sequence(seed))).collect(),
    };
    let tenant = std::env::var("PARTITA_SEQUENCES_TENANT").ok();
    std::fs::write(path(OUTPUT), World::new().trace(tenant.as_deref(), &sequences))
        .expect("the trace is written");
}

#[test]
#[ignore = "run by the other tests"]
fn carries_sequences_out() {
    let sequences = parse(&std::fs::read_to_string(path(INPUT)).expect("the sequences are read"));
    let mut output = BufWriter::new(File::create(path(OUTPUT)).expect("a file"));
    program::run(sequences.into_iter(), &mut output).expect("the trace is written");
}
