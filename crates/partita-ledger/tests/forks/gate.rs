//! The gate file: a process that dies, at any instruction, does not delay others.

use crate::common;

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use common::dir;
use common::process::{End, Random, alone, fork, shared_words, wait_until};
use partita_ledger::{GATE_LANES, GateMap, OPEN};

#[test]
fn two_hundred_kills_leave_no_lane_closed() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("gate");
    let map = GateMap::create(&path, 0o600).unwrap();
    let [rounds] = shared_words::<1>();
    let mut random = Random::new(7);
    let mut died_closed = 0;
    for kill in 0..200 {
        rounds.store(0, SeqCst);
        let victim = fork(|| {
            let gate = GateMap::open(&path).unwrap();
            let lane = gate.claim().unwrap().unwrap();
            for state in (2u32..).step_by(2) {
                gate.close(lane, state, 1);
                rounds.fetch_add(1, SeqCst);
            }
            0
        });
        let wanted = if kill % 8 == 0 { 0 } else { 1 + random.below(300) };
        wait_until("the victim", || rounds.load(SeqCst) >= wanted);
        victim.kill();
        assert_eq!(victim.wait(), End::Signal(libc::SIGKILL));
        died_closed += u32::from((0..GATE_LANES).any(|lane| map.state(lane) & OPEN == 0));
        let began = Instant::now();
        map.open_orphans().unwrap();
        assert!(began.elapsed() < Duration::from_secs(10));
        assert!((0..GATE_LANES).all(|lane| map.state(lane) & OPEN != 0), "kill {kill}");
        assert_eq!(map.claimed(), 0);
    }
    assert!(died_closed > 100, "only {died_closed} died with their lane closed");
}

#[test]
fn the_living_keep_their_lanes_and_each_gets_another() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("gate");
    let maps = [GateMap::create(&path, 0o600).unwrap(), GateMap::open(&path).unwrap()];
    let lanes: Vec<_> = (0..GATE_LANES).map(|n| maps[n % 2].claim().unwrap().unwrap()).collect();
    assert_eq!((maps[0].claim().unwrap(), maps[1].claim().unwrap()), (None, None));
    maps[0].close(lanes[0], 2, 5);
    assert_eq!(maps[0].state(lanes[0].index()), 2);
    let [first, second] = maps;
    // The second's go; the first's, one of them closed, stay.
    drop(second);
    let watcher = GateMap::open(&path).unwrap();
    assert_eq!(watcher.open_orphans().unwrap() as usize, GATE_LANES / 2);
    assert_eq!(watcher.claimed().count_ones() as usize, GATE_LANES / 2);
    assert_eq!(watcher.state(lanes[0].index()), 2);
    drop(first);
}

#[test]
fn a_lane_that_was_closed_for_too_long_is_opened_for_a_while() {
    let _alone = alone();
    let dir = dir();
    let map = GateMap::create(&dir.file("gate"), 0o600).unwrap();
    let [a, b] = [(); 2].map(|()| map.claim().unwrap().unwrap());
    map.close(a, 2, 1_000);
    map.close(b, 4, 9_000);
    let late = |now: u64| move |closed: u64| (now.saturating_sub(closed) >= 5_000).then_some(now + 500);
    assert!(!map.relent(late(5_999)));
    assert!(map.relent(late(9_100)));
    assert_eq!([a, b].map(|lane| map.state(lane.index())), [3, 5]);
    // No process closes a lane before the time is over.
    map.close(a, 6, 9_599);
    assert_eq!(map.state(a.index()), 3);
    map.close(a, 6, 9_600);
    assert_eq!(map.state(a.index()), 6);
}

/// Any process that may open the file can write to it.
#[test]
fn nonsense_in_the_file_blocks_no_process_for_ever() {
    let _alone = alone();
    let dir = dir();
    let map = GateMap::create(&dir.file("gate"), 0o600).unwrap();
    let lane = map.claim().unwrap().unwrap();
    map.close(lane, 2, 1_000);
    assert!(map.relent(|_| Some(u64::MAX)));
    map.close(lane, 4, 2_000);
    assert_eq!(map.state(lane.index()), 4, "an impossible time is ignored");
    assert!(map.relent(|_| Some(500_002_000)));
    map.close(lane, 6, 2_000);
    assert_eq!(map.state(lane.index()), 5);
}

#[test]
fn a_turn_is_one_tenant_s_until_it_ends() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("gate");
    let maps = [GateMap::create(&path, 0o600).unwrap(), GateMap::open(&path).unwrap()];
    assert_eq!(maps[0].take_turn(3, 1_000_000, 5_000_000), Ok(()));
    assert_eq!(maps[1].take_turn(5, 2_000_000, 9_000_000), Err(5_000_000));
    assert_eq!(maps[1].take_turn(3, 2_000_000, 6_000_000), Ok(()), "another process of the same tenant");
    maps[1].end_turn(5);
    assert_eq!(maps[1].take_turn(5, 2_000_000, 9_000_000), Err(6_000_000), "another tenant cannot end it");
    // Its holder may die.
    assert_eq!(maps[1].take_turn(5, 6_000_000, 9_000_000), Ok(()));
    maps[1].end_turn(5);
    assert_eq!(maps[0].take_turn(3, 6_000_000, 7_000_000), Ok(()));
    // Damaged words do not matter either.
    assert_eq!(maps[0].take_turn(3, 6_000_000, u64::MAX), Ok(()));
    assert_eq!(maps[1].take_turn(5, 6_000_000, 9_000_000), Ok(()));
}

#[test]
fn processes_of_low_priority_know_of_each_other_until_they_die() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("gate");
    let map = GateMap::create(&path, 0o600).unwrap();
    let [counted] = shared_words::<1>();
    map.count_low(true).unwrap();
    assert!(!map.are_others_low().unwrap(), "it is alone");
    for leaves in [false, true] {
        counted.store(0, SeqCst);
        let other = fork(|| {
            let gate = GateMap::open(&path).unwrap();
            gate.count_low(true).unwrap();
            assert!(gate.are_others_low().unwrap());
            counted.store(1, SeqCst);
            if leaves {
                gate.count_low(false).unwrap();
                counted.store(2, SeqCst);
            }
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        wait_until("the other", || counted.load(SeqCst) == 1 + u64::from(leaves));
        assert_eq!(map.are_others_low().unwrap(), !leaves);
        other.kill();
        assert_eq!(other.wait(), End::Signal(libc::SIGKILL));
        assert!(!map.are_others_low().unwrap());
    }
}
