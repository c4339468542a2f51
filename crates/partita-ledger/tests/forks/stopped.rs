//! A process that is stopped at any instruction of a path that processes share holds up no other.
//!
//! The test single-steps one process by ptrace. While that stands at each instruction, another one
//! does what it does in its life: everything must succeed at once, without the first going on. The
//! longest time is printed; only a hang fails by time.
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

use crate::common;

use std::ffi::CString;
use std::time::{Duration, Instant};

use common::process::Child;
use common::process::alone;
use common::steps::{Step, at_every, end, step, stopped};
use common::{dir, owner, sample_limits};
use partita_ledger::{
    GateMap, Key, LimitsFile, LimitsMap, OPEN, Slot, TIME_WORDS, TimeMap, UsageMap, UsageView,
};

const QUOTA: u64 = 1000;
const KEY: Key = Key([7, 9]);
/// A promise of the design. A busy machine delays this test, too, so beyond it is only reported.
const HOLD_MAX: Duration = Duration::from_millis(50);
/// Nothing that goes on takes as long.
const HANG: Duration = Duration::from_secs(20);
/// The stopped one may have to try again whenever the other was there, so it need not end.
const STEPS_MAX: usize = 3_000;
/// A turn on the GPU, in nanoseconds.
const TURN_NS: u64 = 2_000_000;

/// Does `beside` while another process stands at an instruction: first with a process for each of
/// many instructions, which came there undisturbed, then with one at each of its instructions.
fn beside_a_stopped(what: &str, start: impl Fn() -> Option<Child>, mut beside: impl FnMut(usize)) {
    let (mut stops, mut over, mut longest) = (0, 0, Duration::ZERO);
    let mut measured = |steps: usize| {
        let began = Instant::now();
        beside(steps);
        let took = began.elapsed();
        assert!(took < HANG, "{what}, instruction {steps}: it waited for {took:?}");
        longest = longest.max(took);
        over += usize::from(took > HOLD_MAX);
        stops += 1;
    };
    let ran = at_every(
        Step::Instruction,
        &start,
        |_| {},
        |stop, victim| {
            measured(stop);
            end(victim);
        },
    );
    if !ran {
        return;
    }
    let victim = start().expect("it could be traced before");
    for steps in 0.. {
        measured(steps);
        if steps == STEPS_MAX {
            end(victim);
            break;
        }
        if !step(&victim, Step::Instruction) {
            // It has been waited for.
            std::mem::forget(victim);
            break;
        }
    }
    eprintln!(
        "{what}: {stops} stops, the longest operation beside took {longest:?}; {over} took more than \
         {HOLD_MAX:?}"
    );
}

fn claim(usage: &CString) -> Slot {
    UsageMap::open(usage).unwrap().claim(owner()).unwrap()
}

#[test]
fn in_the_account_of_memory() {
    let _alone = alone();
    type Operation = (&'static str, fn(Slot));
    let operations: [Operation; 5] = [
        ("reserve", |slot| {
            slot.reserve(70, QUOTA).unwrap();
            std::mem::forget(slot);
        }),
        ("release", |slot| {
            slot.release(40).unwrap();
            std::mem::forget(slot);
        }),
        ("share and leave", |slot| {
            let share = slot.share(KEY, 50).unwrap().unwrap();
            slot.leave(share);
            std::mem::forget(slot);
        }),
        ("refuse", |slot| {
            assert!(slot.try_reserve(2 * QUOTA, QUOTA).is_err());
            std::mem::forget(slot);
        }),
        ("finish", |slot| assert_eq!(slot.finish().unwrap(), 100)),
    ];
    for (what, operation) in operations {
        let dir = dir();
        let path = dir.file("usage");
        UsageMap::create(&path, 0o600).unwrap();
        let own = claim(&path);
        let prepare = || {
            let slot = claim(&path);
            slot.try_reserve(100, QUOTA).unwrap();
            slot
        };
        let start = || {
            own.map().reap().unwrap();
            stopped(prepare, operation)
        };
        beside_a_stopped(what, start, |step| {
            own.reserve(200, QUOTA).unwrap();
            own.release(200).unwrap();
            if step % 16 == 0 {
                claim(&path).finish().unwrap();
                own.map().reap().unwrap();
                assert!(UsageView::open(&path).unwrap().slots().count() > 0);
            }
        });
    }
}

#[test]
fn while_it_takes_its_place() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("usage");
    UsageMap::create(&path, 0o600).unwrap();
    let own = claim(&path);
    let operation = |()| std::mem::forget(claim(&path));
    let start = || {
        own.map().reap().unwrap();
        stopped(|| (), operation)
    };
    beside_a_stopped("claim", start, |step| {
        own.reserve(200, QUOTA).unwrap();
        own.release(200).unwrap();
        if step % 16 == 0 {
            claim(&path).finish().unwrap();
        }
    });
}

/// A writer of limits: the launches of the tenant read old or new ones, and do not wait.
#[test]
fn in_a_change_of_limits() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("limits");
    let old = sample_limits();
    LimitsFile::create(&path, &old, 0o600).unwrap();
    let map = LimitsMap::open_ro(&path).unwrap();
    let new = partita_ledger::Limits { priority: 1, ..old.clone() };
    let prepare = || LimitsFile::open_rw(&path).unwrap();
    let operation = |mut file: LimitsFile| {
        file.store(&new).unwrap();
        std::mem::forget(file);
    };
    beside_a_stopped(
        "set",
        || stopped(prepare, operation),
        |_| {
            let (_, now) = map.load().unwrap();
            assert!(now == old || now == new);
            map.disable_words().unwrap();
        },
    );
}

/// The file of a GPU that tenants of all users share: lanes of priorities, and turns.
#[test]
fn in_the_gate_of_a_gpu() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("gate");
    let map = GateMap::create(&path, 0o600).unwrap();
    let own = map.claim().unwrap().unwrap();
    let operation = |gate: GateMap| {
        let lane = gate.claim().unwrap().unwrap();
        gate.close(lane, 2, 1);
        gate.take_turn(1, 1000, 1000 + TURN_NS).unwrap();
        gate.take_turn(1, 2000, 2000 + TURN_NS).unwrap();
        gate.open_lane(lane.index(), 4);
        gate.end_turn(1);
        gate.close(lane, 6, 1);
        std::mem::forget(gate);
    };
    let start = || {
        map.open_orphans().unwrap();
        stopped(|| GateMap::open(&path).unwrap(), operation)
    };
    beside_a_stopped("gate", start, |step| {
        map.close(own, 2, 1);
        map.open_lane(own.index(), 4);
        // A turn ends with its time, and a lane that is closed for too long is opened.
        let now_ns = 10 * TURN_NS;
        map.take_turn(2, now_ns, now_ns + TURN_NS).unwrap();
        map.end_turn(2);
        map.relent(|_| Some(0));
        let claimed = map.claimed();
        let closed = (0..64).filter(|lane| claimed >> lane & 1 != 0 && map.state(*lane) & OPEN == 0);
        assert_eq!(closed.count(), 0, "instruction {step}");
        if step % 16 == 0 {
            map.open_orphans().unwrap();
        }
    });
}

#[test]
fn in_the_account_of_time() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("time");
    let map = TimeMap::create(&path, 0o600).unwrap();
    let seat = map.take_seat().unwrap();
    let count = |words: &[u64; TIME_WORDS]| (words.map(|word| word + 1), ());
    let operation = |time: TimeMap| {
        let seat = time.take_seat().unwrap();
        time.note_in_flight(seat, 0, 5);
        // None where the other has changed the account at each attempt.
        if let Some((version, ())) = time.update(seat, count) {
            time.set_gate(version, false);
        }
        time.note_in_flight(seat, 5, 0);
        std::mem::forget(time);
    };
    let start = || stopped(|| TimeMap::open(&path).unwrap(), operation);
    beside_a_stopped("time", start, |step| {
        // Whatever the stopped one has done: the account goes on, and so does the gate.
        let (version, ()) = map.update(seat, count).unwrap();
        map.set_gate(version, true);
        assert!(map.is_open(), "instruction {step}");
        map.charge_orphans(u64::MAX, |_| {}).unwrap();
    });
}

/// A process that stands still for ever leaves nothing behind when it is ended.
#[test]
fn and_its_end_releases_everything() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("gate");
    let map = GateMap::create(&path, 0o600).unwrap();
    let prepare = || {
        let gate = GateMap::open(&path).unwrap();
        let lane = gate.claim().unwrap().unwrap();
        gate.close(lane, 2, 1);
        gate
    };
    let Some(victim) = stopped(prepare, std::mem::forget) else { return };
    assert_ne!(map.claimed(), 0);
    end(victim);
    assert_eq!(map.open_orphans().unwrap(), 1);
    assert_eq!(map.claimed(), 0);
}
