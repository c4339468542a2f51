//! Limits that change without pause while several threads launch: every mask is one of those that
//! were stored.

use crate::common;

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::Instant;

use common::{Fixture, limits};
use partita_ledger::Limits;

/// Changes of the limits; `PARTITA_TEST_FLIPS` has another number.
const FLIPS: u64 = 20_000;

#[test]
fn no_launch_carries_parts_of_two_masks() {
    no_mask_is_torn(|limits| Some(Fixture::new(limits)));
}

#[test]
fn no_launch_on_aarch64_carries_parts_of_two_masks() {
    no_mask_is_torn(Fixture::on_aarch64);
}

fn no_mask_is_torn(fixture: fn(&Limits) -> Option<Fixture>) {
    let flips = std::env::var("PARTITA_TEST_FLIPS").map_or(FLIPS, |text| text.parse().expect("a number"));
    // The tests' own limits, and those of the rest of the device: no TPC in common, and no word.
    let halves = [
        limits(),
        Limits { set: [!0x1_ffff_ffff, 3, 0, 0], qmd_disable: [!0, 1, !3, !0, !0, !0, !0, !0], ..limits() },
    ];
    let Some(fixture) = fixture(&halves[0]) else { return };
    let mut file = fixture.limits_file();
    let mut child = fixture
        .command("torn.c", &[])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("readable");
    assert_eq!(line, "ready\n");
    let start = Instant::now();
    for flip in 1..=flips {
        file.store(&halves[(flip % 2) as usize]).expect("stored");
    }
    let spent = start.elapsed();
    drop(child.stdin.take());
    let mut said = String::new();
    output.read_to_string(&mut said).expect("readable");
    assert!(child.wait().expect("it ends").success());
    let numbers: Vec<u64> = said.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let [launches, torn, changes, last] = numbers[..] else { panic!("{said}") };
    println!("{flips} changes in {spent:.1?}; {launches} launches saw {changes} of them; torn masks: {torn}");
    let slot = fixture.usage().slots().next().expect("one slot").expect("readable");
    assert_eq!(slot.launches, launches + 1, "every launch is counted once, on whatever thread");
    assert_eq!(torn, 0, "of {launches} launches");
    assert_eq!(last, flips % 2, "a launch after the last change carries its mask");
    // Else nothing was tried.
    assert!(changes > 4, "{changes} changes seen by {launches} launches");
}
