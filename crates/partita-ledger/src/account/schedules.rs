//! Two processes in every order of their accesses that needs at most three switches from one to the
//! other before its end; at most two without `PARTITA_TEST_LONG=1`.
//!
//! This complements the loom models. Loom models weak memory, but considers only the last access to
//! a word when it looks for orders to try, and so skips some; here memory is sequentially
//! consistent, and no order is skipped. Between any two accesses the books must be exact, because
//! the process may be killed there.

use std::sync::Arc;
use std::vec::Vec;

use super::tests::Usage;
use super::*;
use crate::sync::crash;
use crate::sync::schedule::Leash;

const QUOTA: u64 = 10;
const SWITCHES_MAX: usize = 3;
/// More accesses than any process here makes.
const STEPS_MAX: u32 = 200;

struct Leashed<'a>(&'a [Arc<Leash>]);

impl Drop for Leashed<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|leash| leash.kill());
    }
}

type Outcome = Vec<Result<u64, Fault>>;

/// The changes of a process, one after another.
fn process(usage: &Usage, slot: usize, changes: &[Change]) -> Outcome {
    changes.iter().map(|&change| usage.book().transact(slot, change)).collect()
}

fn reserve(bytes: u64) -> Change {
    Change::Reserve { bytes, quota: QUOTA }
}

/// Runs processes 0 and 1 in every order, and `check`s the result, with the number of reaped bytes
/// if one `dies`. `totals` are all totals that a reader may see.
fn explore(
    start: [u64; 2],
    changes: [&[Change]; 2],
    totals: &[u64],
    dies: bool,
    check: impl Fn(&Usage, [Option<Outcome>; 2], u64),
) {
    let is_long = std::env::var_os("PARTITA_TEST_LONG").is_some_and(|value| value == "1");
    let (switches, orders_min) = if is_long { (SWITCHES_MAX, 1000) } else { (2, 100) };
    let mut orders = 0;
    for first in 0..2 {
        let mut lengths = std::vec![0; switches];
        loop {
            orders += 1;
            let usage = Usage::new(3);
            for (slot, bytes) in start.into_iter().enumerate() {
                usage.book().transact(slot, reserve(bytes)).unwrap();
            }
            let leashes = [Arc::new(Leash::default()), Arc::new(Leash::default())];
            // The process had ended before its accesses of this turn were used up: longer turns
            // change nothing.
            let mut ended_in = None;
            let mut reaped = 0;
            let outcomes = std::thread::scope(|scope| {
                // A failed check must end the threads too: the scope would wait for them.
                let leashed = Leashed(&leashes);
                let [zero, one] = [0, 1].map(|slot| {
                    let (leash, usage) = (Arc::clone(&leashes[slot]), &usage);
                    scope.spawn(move || {
                        leash.run(|| crash::after(STEPS_MAX, || process(usage, slot, changes[slot])))
                    })
                });
                let mut turn = first;
                for (number, &steps) in lengths.iter().enumerate() {
                    if !leashes[turn].advance(steps) && ended_in.is_none() {
                        ended_in = Some(number);
                    }
                    // No process moves now: this is the state if both are killed here.
                    let (used, held) = (usage.book().totals().used, usage.held());
                    assert_eq!(used, held.iter().sum::<u64>(), "{first} {lengths:?}");
                    assert!(totals.contains(&used), "{first} {lengths:?}: {used}");
                    turn ^= 1;
                }
                if dies {
                    // The process of this turn is killed where it stands; the other runs to its
                    // end.
                    assert!(!leashes[turn].advance(STEPS_MAX), "blocked by a dead process: {lengths:?}");
                    reaped = usage.book().bytes(turn ^ 1);
                    assert_eq!(usage.book().transact(turn ^ 1, Change::ReleaseAll), Ok(reaped));
                    assert_eq!(usage.book().totals().used, usage.held().iter().sum::<u64>());
                    assert_eq!(usage.book().bytes(turn ^ 1), 0);
                } else {
                    assert!(!leashes[turn].advance(STEPS_MAX) && !leashes[turn ^ 1].advance(STEPS_MAX));
                }
                drop(leashed);
                [zero, one].map(|thread| thread.join().unwrap())
            });
            check(&usage, outcomes, reaped);
            // The next order: the last turn longer, or the one before if that cannot get longer.
            let mut at = ended_in.unwrap_or(switches - 1);
            if ended_in.is_some() {
                lengths[at..].fill(0);
                if at == 0 {
                    break;
                }
                at -= 1;
            }
            lengths[at] += 1;
            lengths[at + 1..].fill(0);
        }
    }
    assert!(orders > orders_min, "{orders}");
}

#[test]
fn one_of_two_fits_in_every_order() {
    explore([0, 0], [&[reserve(6)], &[reserve(6)]], &[0, 6], false, |usage, outcomes, _| {
        let refused = Err(Fault::OverQuota { used: 6 });
        match outcomes.map(|outcome| outcome.unwrap()[0]) {
            [Ok(6), other] if other == refused => assert_eq!(usage.held(), [6, 0, 0]),
            [other, Ok(6)] if other == refused => assert_eq!(usage.held(), [0, 6, 0]),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn what_fits_is_granted_in_every_order() {
    let changes = [Change::Release(1), reserve(2), Change::ReleaseAll];
    explore([3, 3], [&[reserve(3)], &changes], &[6, 5, 7, 3, 9, 8, 10, 6], false, |usage, outcomes, _| {
        let [zero, one] = outcomes.map(Option::unwrap);
        assert_eq!((zero, one), ([Ok(3)].to_vec(), [Ok(1), Ok(2), Ok(4)].to_vec()));
        assert_eq!(usage.held(), [6, 0, 0]);
    });
}

/// The other process holds 3, then 2, then 4, and dies somewhere. 7 do not fit beside 4, but only
/// once that has taken effect.
#[test]
fn a_refusal_is_never_early() {
    let changes = [Change::Release(1), reserve(2)];
    explore(
        [0, 3],
        [&[reserve(7)], &changes],
        &[3, 2, 4, 10, 9],
        true,
        |_, outcomes, reaped| match outcomes {
            [Some(zero), None] if zero[0] == Ok(7) => assert!(reaped == 3 || reaped == 2, "{reaped}"),
            [Some(zero), None] => assert_eq!((zero[0], reaped), (Err(Fault::OverQuota { used: 4 }), 4)),
            [_, Some(one)] => assert!(one[1] == Ok(2) || one[1] == Err(Fault::OverQuota { used: 9 })),
            [None, None] => panic!("both died"),
        },
    );
}

#[test]
fn a_process_dies_in_every_order() {
    let (up, down) = ([reserve(4), Change::Release(2)], [Change::Release(3), reserve(5)]);
    explore([2, 4], [&up, &down], &[6, 10, 8, 3, 7, 5], true, |_, outcomes, _| {
        assert!(outcomes.iter().any(Option::is_some));
    });
}

/// Process 0 passes bytes on to slot 2 while the other reserves the rest, and one of them dies
/// somewhere.
#[test]
fn bytes_are_passed_on_in_every_order() {
    for dies in [false, true] {
        let pass = [Change::Pass { bytes: 3, to: 2 }, Change::Release(1)];
        explore(
            [5, 3],
            [&pass, &[reserve(2), Change::Release(2)]],
            &[8, 10, 7, 9],
            dies,
            |usage, _, reaped| {
                let [zero, _, two] = usage.held()[..] else { panic!("three slots") };
                if dies {
                    assert!(two == 0 || two == 3);
                    assert!([0, 1, 5].contains(&zero) && [1, 2, 3, 5].contains(&reaped), "{zero} {reaped}");
                } else {
                    assert_eq!((zero, two), (1, 3));
                }
            },
        );
    }
}
