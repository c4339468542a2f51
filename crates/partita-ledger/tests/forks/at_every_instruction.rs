//! SIGKILL at every instruction: the test single-steps the victim by ptrace, and kills it after *k*
//! instructions of an operation, for *k* from the first to the last. In operations with very many
//! instructions, it kills after *k* entries to and returns from the kernel, where locks change
//! hands. Afterwards others work as if the operation had happened completely or not at all.
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

use crate::common;

use std::cell::Cell;
use std::ffi::CStr;
use std::time::{Duration, Instant};

use common::process::alone;
use common::steps::{KILLS_MAX, Step, at_every, end, stopped};
use common::{dir, owner, sample_limits};
use partita_ledger::{Key, Limits, LimitsFile, LimitsMap, Slot, UsageMap, UsageView};

const QUOTA: u64 = 1000;
/// Bytes of the living process.
const OWN: u64 = 200;
const VICTIM_BEFORE: u64 = 300;
const KEY: Key = Key([7, 9]);

fn claim(usage: &CStr) -> Slot {
    UsageMap::open(usage).unwrap().claim(owner()).unwrap()
}

/// An operation on bytes of a process that holds [`VICTIM_BEFORE`], and its possible results.
fn try_bytes(unit: Step, operation: fn(Slot), outcomes: [u64; 2]) {
    let dir = dir();
    let path = dir.file("usage");
    UsageMap::create(&path, 0o600).unwrap();
    let own = claim(&path);
    own.reserve(OWN, QUOTA).unwrap();
    let start = || {
        // The victim before left its bytes.
        own.map().reap().unwrap();
        let prepare = || {
            let slot = claim(&path);
            slot.try_reserve(VICTIM_BEFORE, QUOTA).unwrap();
            slot
        };
        stopped(prepare, operation)
    };
    let mut seen = outcomes.map(|_| false);
    let ran = at_every(
        unit,
        start,
        |step| {
            let used = own.map().used();
            assert!(outcomes.map(|bytes| OWN + bytes).contains(&used), "step {step}: {used}");
        },
        |kill, victim| {
            // While the victim stands there: the ledger grants what fits, and refuses the rest, to
            // the byte.
            let used = own.map().used();
            let which = outcomes.iter().position(|bytes| OWN + bytes == used).expect("one of the outcomes");
            seen[which] = true;
            own.try_reserve(QUOTA - used, QUOTA).unwrap();
            assert!(own.try_reserve(1, QUOTA).is_err());
            own.release(QUOTA - used).unwrap();
            let lives = used - OWN;
            end(victim);
            assert_eq!(own.map().used(), used);
            assert_eq!(own.map().reap().unwrap(), lives, "after step {kill}");
            assert_eq!((own.map().used(), own.bytes()), (OWN, OWN));
        },
    );
    if ran {
        let expected = if outcomes[0] == outcomes[1] { [true, false] } else { [true; 2] };
        assert_eq!(seen, expected);
    }
}

#[test]
fn of_a_reservation() {
    let _alone = alone();
    let after = VICTIM_BEFORE + 70;
    try_bytes(
        Step::Instruction,
        |slot| {
            slot.try_reserve(70, QUOTA).unwrap();
            std::mem::forget(slot);
        },
        [VICTIM_BEFORE, after],
    );
}

#[test]
fn of_a_release() {
    let _alone = alone();
    try_bytes(
        Step::Instruction,
        |slot| {
            slot.release(40).unwrap();
            std::mem::forget(slot);
        },
        [VICTIM_BEFORE, VICTIM_BEFORE - 40],
    );
}

#[test]
fn of_an_orderly_end() {
    let _alone = alone();
    try_bytes(
        Step::Instruction,
        |slot| assert_eq!(slot.finish().unwrap(), VICTIM_BEFORE),
        [VICTIM_BEFORE, 0],
    );
}

/// The total stays the same at each instruction, and the name of the shared bytes remains usable.
#[test]
fn of_sharing_and_leaving() {
    let _alone = alone();
    try_bytes(
        Step::SystemCall,
        |slot| {
            let share = slot.share(KEY, 50).unwrap().unwrap();
            std::mem::forget((slot, share));
        },
        [VICTIM_BEFORE; 2],
    );
    try_bytes(
        Step::SystemCall,
        |slot| {
            let share = slot.join_or_reserve(KEY, 60, QUOTA).unwrap().unwrap();
            std::mem::forget((slot, share));
        },
        [VICTIM_BEFORE, VICTIM_BEFORE + 60],
    );
}

/// A process that dies while it takes its place leaves the place to others: none is lost.
#[test]
fn of_a_claim() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("usage");
    UsageMap::create(&path, 0o600).unwrap();
    let view = UsageView::open(&path).unwrap();
    let own = claim(&path);
    let start = || {
        own.map().reap().unwrap();
        stopped(|| (), |()| std::mem::forget(claim(&path)))
    };
    let mut places = std::collections::BTreeSet::new();
    at_every(
        Step::Instruction,
        start,
        |_| assert_eq!(own.map().used(), 0),
        |kill, victim| {
            // While it stands there, another process finds a place without waiting for it.
            let began = Instant::now();
            let beside = claim(&path);
            assert!(began.elapsed() < Duration::from_secs(10), "after step {kill}: it waited");
            places.insert(beside.index());
            beside.finish().unwrap();
            end(victim);
            own.map().reap().unwrap();
            let living = view.slots().map(Result::unwrap).filter(|slot| slot.live).count();
            assert_eq!(living, 1, "after step {kill}");
        },
    );
    // Dead processes' places are taken last, but a finished one is free again: no kill loses one
    // for ever.
    assert!(places.len() <= KILLS_MAX + 2, "{places:?}");
    let all: Vec<_> = std::iter::from_fn(|| UsageMap::open(&path).unwrap().claim(owner()).ok()).collect();
    assert_eq!(all.len() + 1, partita_ledger::PROCESS_SLOTS);
}

/// A writer of limits that dies: readers get the old or the new ones, whole, and the next writer
/// does not wait.
#[test]
fn of_a_change_of_limits() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("limits");
    let old = sample_limits();
    let mut file = LimitsFile::create(&path, &old, 0o600).unwrap();
    let map = LimitsMap::open_ro(&path).unwrap();
    let new = Limits { memory_quota_bytes: 20 << 30, set: [0xff, 0, 0, 0], priority: 1, ..old.clone() };
    let start = || {
        LimitsFile::open_rw(&path).unwrap().store(&old).unwrap();
        let prepare = || LimitsFile::open_rw(&path).unwrap();
        stopped(prepare, |mut file| {
            file.store(&new).unwrap();
            std::mem::forget(file);
        })
    };
    let seen = Cell::new([false; 2]);
    let check = |step| {
        let (_, now) = map.load().unwrap();
        assert!(now == old || now == new, "after step {step}: {now:?}");
        let [old_seen, new_seen] = seen.get();
        seen.set([old_seen || now == old, new_seen || now == new]);
    };
    let ran = at_every(Step::Instruction, start, &check, |kill, victim| {
        end(victim);
        check(kill);
        let began = Instant::now();
        file.store(&old).unwrap();
        assert!(began.elapsed() < Duration::from_secs(10), "after step {kill}: the lock stayed");
        assert_eq!(map.load().unwrap().1, old);
    });
    if ran {
        assert_eq!(seen.get(), [true; 2]);
    }
}
