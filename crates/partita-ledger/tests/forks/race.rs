//! Many processes at one quota.

use crate::common;

use std::sync::atomic::Ordering::SeqCst;

use common::process::{Child, End, Random, alone, fork, shared_words, wait_until};
use common::{dir, owner, sample_limits};
use partita_ledger::{AccountError, Limits, LimitsFile, LimitsMap, UsageMap, UsageView};

const PROCESSES: usize = 64;
const ROUNDS: u64 = 2000;
const QUOTA: u64 = 10_000_019;

/// One of the racing processes: reserves and releases odd amounts, keeps some of them, and returns
/// the kept bytes.
fn race(usage: &std::ffi::CStr, number: usize, refused: &mut u64) -> u64 {
    let slot = UsageMap::open(usage).unwrap().claim(owner()).unwrap();
    let mut random = Random::new(number as u64 + 1);
    let mut held = Vec::new();
    for _ in 0..ROUNDS {
        let bytes = 1 + random.below(QUOTA / 40);
        // Not `reserve`: processes that have finished must not be reaped before the sum is checked.
        match slot.try_reserve(bytes, QUOTA) {
            Ok(()) => held.push(bytes),
            Err(AccountError::OverQuota { asked, used, quota }) => {
                assert!(asked == bytes && quota == QUOTA && used <= QUOTA && used + bytes > QUOTA);
                *refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
        assert!(slot.map().used() <= QUOTA);
        if held.len() > 1 && random.below(3) != 0 {
            slot.release(held.swap_remove(random.below(held.len() as u64) as usize)).unwrap();
        }
        slot.count_launch();
        // More processes than cores: without this each would run alone for most of its rounds.
        if random.below(8) == 0 {
            std::thread::yield_now();
        }
    }
    assert_eq!(slot.bytes(), held.iter().sum::<u64>());
    held.iter().sum()
}

#[test]
fn sixty_four_processes_never_hold_a_byte_too_much() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("usage");
    let map = UsageMap::create(&path, 0o600).unwrap();
    // The gate, the sum kept, refusals, processes done.
    let [gate, kept, refusals, done] = shared_words::<4>();
    let children: Vec<Child> = (0..PROCESSES)
        .map(|number| {
            fork(|| {
                wait_until("the gate", || gate.load(SeqCst) != 0);
                let mut refused = 0;
                kept.fetch_add(race(&path, number, &mut refused), SeqCst);
                refusals.fetch_add(refused, SeqCst);
                done.fetch_add(1, SeqCst);
                0
            })
        })
        .collect();
    let view = UsageView::open(&path).unwrap();
    gate.store(1, SeqCst);
    // A child that fails is not done; the wait for it below reports it.
    let start = std::time::Instant::now();
    while done.load(SeqCst) < PROCESSES as u64 && start.elapsed().as_secs() < 60 {
        assert!(map.used() <= QUOTA);
        std::thread::yield_now();
    }
    for child in children {
        assert_eq!(child.wait(), End::Exit(0));
    }

    let slots: Vec<_> = view.slots().map(Result::unwrap).collect();
    assert_eq!(slots.len(), PROCESSES);
    assert!(slots.iter().all(|slot| !slot.live && slot.launches == ROUNDS));
    let sum: u64 = slots.iter().map(|slot| slot.bytes).sum();
    let totals = map.totals();
    assert_eq!((totals.used, sum), (kept.load(SeqCst), kept.load(SeqCst)));
    assert!(totals.peak <= QUOTA && totals.peak > QUOTA - QUOTA / 40, "the quota was reached: {totals:?}");
    assert!(refusals.load(SeqCst) > 0);
    assert_eq!(map.reap().unwrap(), sum);
    assert_eq!((map.used(), view.slots().count()), (0, 0));
}

#[test]
fn slots_are_claimed_once() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("usage");
    UsageMap::create(&path, 0o600).unwrap();
    let [gate, claimed, twice] = shared_words::<3>();
    let owners = shared_words::<{ partita_ledger::SLOTS }>();
    let children: Vec<Child> = (0..16)
        .map(|_| {
            fork(|| {
                wait_until("the gate", || gate.load(SeqCst) != 0);
                for _ in 0..50 {
                    let slot = UsageMap::open(&path).unwrap().claim(owner()).unwrap();
                    let own = &owners[slot.index()];
                    twice.fetch_add(own.swap(1, SeqCst), SeqCst);
                    claimed.fetch_add(1, SeqCst);
                    slot.reserve(3, u64::MAX).unwrap();
                    own.store(0, SeqCst);
                    assert_eq!(slot.finish().unwrap(), 3);
                }
                0
            })
        })
        .collect();
    gate.store(1, SeqCst);
    for child in children {
        assert_eq!(child.wait(), End::Exit(0));
    }
    assert_eq!((claimed.load(SeqCst), twice.load(SeqCst)), (16 * 50, 0));
    assert_eq!(UsageMap::open(&path).unwrap().used(), 0);
}

/// Four writers and the tenant's readers, in separate processes.
#[test]
fn limits_are_whole_while_writers_race() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("limits");
    // Every field that a reader compares follows from one number.
    let limits = |n: u32| Limits {
        qmd_disable: [n; 8],
        priority: n,
        flags: n,
        memory_quota_bytes: n.into(),
        ..sample_limits()
    };
    let whole = |found: &Limits| *found == limits(found.priority);
    LimitsFile::create(&path, &limits(0), 0o600).unwrap();
    let writers: Vec<Child> = (0..4)
        .map(|number| {
            fork(|| {
                let mut file = LimitsFile::open_rw(&path).unwrap();
                for round in 0..200 {
                    file.update(|found| {
                        assert!(whole(found));
                        *found = limits(round * 4 + number);
                    })
                    .unwrap();
                }
                0
            })
        })
        .collect();
    let map = LimitsMap::open_ro(&path).unwrap();
    let (mut reads, mut newest) = (0u64, 0);
    while map.epoch() < 801 {
        let (epoch, found) = map.load().unwrap();
        assert!(whole(&found) && epoch >= newest);
        newest = epoch;
        let (_, words) = map.disable_words().unwrap();
        assert_eq!(words, [words[0]; 8]);
        assert!(whole(&Limits::read(&path).unwrap().1));
        reads += 1;
        assert!(reads < 1 << 32);
    }
    for writer in writers {
        assert_eq!(writer.wait(), End::Exit(0));
    }
    // No writer's change was lost: one epoch each.
    assert_eq!(map.epoch(), 801);
}
