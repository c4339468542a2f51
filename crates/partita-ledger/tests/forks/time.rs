//! The time file: one account for all processes, whichever dies at whatever instruction.

use crate::common;

use std::sync::atomic::Ordering::SeqCst;

use common::dir;
use common::process::{End, Random, alone, fork, shared_words, wait_until};
use partita_ledger::{TIME_WORDS, TimeMap, TimeView};

/// Adds one to every word; all are equal, always.
fn count(words: &[u64; TIME_WORDS]) -> ([u64; TIME_WORDS], u64) {
    assert!(words.iter().all(|word| *word == words[0]), "torn: {words:?}");
    (words.map(|word| word + 1), words[0] + 1)
}

#[test]
fn two_hundred_kills_lose_nothing_and_stop_no_process() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("time");
    let map = TimeMap::create(&path, 0o600).unwrap();
    let seat = map.take_seat().unwrap();
    let [done] = shared_words::<1>();
    let mut random = Random::new(11);
    let (mut least, mut own) = (0, 0);
    for kill in 0..200 {
        done.store(0, SeqCst);
        let victim = fork(|| {
            let time = TimeMap::open(&path).unwrap();
            let seat = time.take_seat().unwrap();
            for since in 1.. {
                time.note_in_flight(seat, time.in_flight_since(seat), since);
                time.update(seat, count).unwrap();
                done.fetch_add(1, SeqCst);
            }
            0
        });
        let wanted = if kill % 8 == 0 { 1 } else { 1 + random.below(2000) };
        wait_until("the victim", || done.load(SeqCst) >= wanted);
        own += 1;
        map.update(seat, count).unwrap();
        victim.kill();
        assert_eq!(victim.wait(), End::Signal(libc::SIGKILL));
        least += done.load(SeqCst);
        let mut orphans = Vec::new();
        map.charge_orphans(u64::MAX, |since| orphans.push(since)).unwrap();
        assert_eq!(orphans.len(), 1, "kill {kill}");
        map.charge_orphans(u64::MAX, |since| panic!("charged twice: {since}")).unwrap();
    }
    let [counted, ..] = TimeView::open(&path).unwrap().account().unwrap();
    // The account has all that the victims had finished; each may have finished one that it could
    // not report.
    assert!((least + own..=least + own + 200).contains(&counted), "{counted} of {least} + {own}");
}

#[test]
fn the_gate_obeys_the_latest_version() {
    let _alone = alone();
    let dir = dir();
    let map = TimeMap::create(&dir.file("time"), 0o600).unwrap();
    assert!(map.is_open());
    map.set_gate(2, false);
    assert!(!map.is_open());
    map.set_gate(1, true);
    assert!(!map.is_open(), "an older one comes late");
    map.set_gate(4, false);
    map.set_gate(3, true);
    assert!(!map.is_open(), "also where nothing changed");
    map.set_gate(u64::from(u32::MAX) / 3, true);
    assert!(map.is_open());
    map.set_gate(u64::from(u32::MAX) / 3 * 2, false);
    map.set_gate(u64::from(u32::MAX) + 5, true);
    assert!(map.is_open(), "versions outgrow their half of the word");
}

#[test]
fn every_process_has_a_seat_of_its_own() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("time");
    let maps = [TimeMap::create(&path, 0o600).unwrap(), TimeMap::open(&path).unwrap()];
    let seats = [maps[0].take_seat().unwrap(), maps[1].take_seat().unwrap()];
    assert_ne!(seats[0], seats[1]);
    assert!(!maps[0].others_in_flight(seats[0]));
    assert!(maps[1].note_in_flight(seats[1], 0, 7));
    assert!(maps[0].others_in_flight(seats[0]));
    assert!(!maps[1].others_in_flight(seats[1]), "its own is no other's");
    // Living processes are not orphans.
    maps[0].charge_orphans(u64::MAX, |_| panic!("it lives")).unwrap();
    let [first, second] = maps;
    drop(second);
    let mut charged = Vec::new();
    first.charge_orphans(7, |since| charged.push(since)).unwrap();
    assert!(charged.is_empty(), "not that old");
    first.charge_orphans(8, |since| charged.push(since)).unwrap();
    assert_eq!(charged, [7]);
    // The next process takes that seat.
    assert_eq!(TimeMap::open(&path).unwrap().take_seat().unwrap(), seats[1]);
}

#[test]
fn an_observer_of_hostile_words_gets_an_answer() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("time");
    drop(TimeMap::create(&path, 0o600).unwrap());
    let view = TimeView::open(&path).unwrap();
    let text = path.to_str().unwrap();
    let whole = std::fs::read(text).unwrap();
    let mut random = Random::new(3);
    for _ in 0..64 {
        let mut bytes = whole.clone();
        for byte in &mut bytes[64..4096] {
            *byte = random.below(256) as u8;
        }
        std::fs::write(text, &bytes).unwrap();
        view.account().unwrap();
        view.wants(5).unwrap();
        let map = TimeMap::open(&path).unwrap();
        let seat = map.take_seat().unwrap();
        map.update(seat, |words| (*words, ())).unwrap();
        map.charge_orphans(u64::MAX, |_| {}).unwrap();
        assert!(!map.others_in_flight(seat));
    }
    std::fs::write(text, &whole[..5000]).unwrap();
    assert!(view.account().is_err());
}
