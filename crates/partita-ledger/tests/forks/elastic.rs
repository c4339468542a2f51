//! The elastic file: records of processes that live and die.

use crate::common;

use std::sync::atomic::Ordering::SeqCst;

use common::dir;
use common::process::{End, Random, alone, fork, shared_words, wait_until};
use partita_core::TpcSet;
use partita_ledger::{ElasticMap, RECORDS};

fn set(text: &str) -> TpcSet {
    text.parse().unwrap()
}

#[test]
fn a_record_shows_work_rest_and_what_is_held() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("elastic");
    let maps = [ElasticMap::create(&path, 0o600).unwrap(), ElasticMap::open(&path).unwrap()];
    let owner = maps[0].claim(1, set("0-3"), false, 5).unwrap().unwrap();
    let borrower = maps[1].claim(2, set("4-7"), true, 6).unwrap().unwrap();
    assert_ne!(owner, borrower);
    assert!(!maps[1].is_at_work(owner));
    let before = maps[1].beginnings();
    maps[0].begin(owner, 77);
    assert!(maps[1].is_at_work(owner) && maps[1].beginnings() == before + 1);
    let seen = maps[1].seen(owner);
    assert_eq!((seen.tenant, seen.owned, seen.since_ns, seen.borrows), (1, set("0-3"), 77, false));
    maps[0].rest(owner, 99);
    assert_eq!((maps[1].is_at_work(owner), maps[1].since_ns(owner)), (false, 99));

    assert_eq!(maps[1].take(borrower, set("0-3,8")), set("0-3,8"));
    assert_eq!(maps[0].take(owner, set("8-9")), set("9"), "another holds TPC 8");
    maps[1].give_back(borrower, set("0"));
    assert_eq!(maps[0].seen(borrower).held, set("0"));
    assert_eq!(maps[0].take(owner, set("8-9")), set("8-9"));
}

#[test]
fn processes_beyond_the_records_lend_nothing() {
    let _alone = alone();
    let dir = dir();
    let map = ElasticMap::create(&dir.file("elastic"), 0o600).unwrap();
    for tenant in 0..RECORDS as u64 {
        assert!(map.claim(tenant, TpcSet::EMPTY, false, 1).unwrap().is_some());
    }
    assert_eq!(map.claim(1000, set("3-4"), false, 1).unwrap(), None);
    assert_eq!(map.shut(), set("3-4"));
}

#[test]
fn a_killed_process_leaves_nothing_taken_and_no_gate_closed() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("elastic");
    let map = ElasticMap::create(&path, 0o600).unwrap();
    let own = map.claim(1, set("0"), true, 1).unwrap().unwrap();
    let [rounds] = shared_words::<1>();
    let mut random = Random::new(7);
    let (mut died_at_work, mut died_with_tpcs) = (0, 0);
    for kill in 0..100 {
        rounds.store(0, SeqCst);
        let victim = fork(|| {
            let map = ElasticMap::open(&path).unwrap();
            let record = map.claim(2, set("1-2"), true, 1).unwrap().unwrap();
            for now_ns in 1.. {
                map.begin(record, now_ns);
                map.take(record, set("5-9"));
                rounds.fetch_add(1, SeqCst);
                map.rest(record, now_ns);
                map.give_back(record, TpcSet::EMPTY);
            }
            0
        });
        let wanted = 1 + random.below(300);
        wait_until("the victim", || rounds.load(SeqCst) >= wanted);
        victim.kill();
        assert_eq!(victim.wait(), End::Signal(libc::SIGKILL));
        for record in map.claimed().filter(|record| *record != own) {
            died_at_work += u32::from(map.is_at_work(record));
            died_with_tpcs += u32::from(!map.held(record).is_empty());
        }
        assert_eq!(map.reap().unwrap(), 1, "kill {kill}");
        assert_eq!(map.claimed().collect::<Vec<_>>(), [own], "the living keep their records");
        assert_eq!(map.take(own, set("5-9")), set("5-9"));
        map.give_back(own, TpcSet::EMPTY);
    }
    assert!(died_at_work > 10 && died_with_tpcs > 10, "{died_at_work} {died_with_tpcs}");
}

#[test]
fn what_waits_for_too_long_passes_but_the_owner_stays_at_work() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("elastic");
    let map = ElasticMap::create(&path, 0o600).unwrap();
    let owner = map.claim(1, set("0"), false, 1).unwrap().unwrap();
    let gate = || {
        let at = map.address() + ElasticMap::gate_offset(owner);
        // SAFETY: a word of the mapping.
        unsafe { core::ptr::with_exposed_provenance::<u32>(at).read_volatile() }
    };
    assert_eq!(gate() & 1, 1);
    map.begin(owner, 10);
    assert_eq!(gate() & 1, 0);
    map.relent(|begun_ns| begun_ns < 10);
    assert_eq!(gate() & 1, 0);
    map.relent(|begun_ns| begun_ns == 10);
    assert_eq!((gate() & 1, map.is_at_work(owner)), (1, true));
    map.rest(owner, 20);
    map.begin(owner, 30);
    assert_eq!(gate() & 1, 0, "its next work closes it again");
}
