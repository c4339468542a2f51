//! The files from outside: their makers, tenants and observers, in one process.

use crate::common;

use common::{dir, owner, sample_limits};
use partita_ledger::{
    AccountError, HookState, Limits, LimitsFault, LimitsFile, LimitsMap, NO_QUOTA, Problem, UsageMap,
    UsageView,
};

#[test]
fn limits_reach_the_reader_whole() {
    let dir = dir();
    let path = dir.file("limits");
    let first = sample_limits();
    let mut file = LimitsFile::create(&path, &first, 0o600).unwrap();
    let map = LimitsMap::open_ro(&path).unwrap();
    assert_eq!(map.epoch(), 1);
    assert_eq!(map.load().unwrap(), (1, first.clone()));
    assert_eq!(map.disable_words().unwrap(), (1, first.qmd_disable));
    assert_eq!(map.memory_bytes().unwrap(), (40 << 30, 141 << 30));
    assert_eq!(map.load().unwrap().1.name(), "serve");

    let second =
        Limits { qmd_disable: [!0, 1, 2, 3, 4, 5, 6, 7], memory_quota_bytes: NO_QUOTA, ..first.clone() };
    assert_eq!(file.store(&second).unwrap(), 2);
    assert_eq!(map.load().unwrap(), (2, second.clone()));
    assert_eq!(map.disable_words().unwrap(), (2, second.qmd_disable));
    assert_eq!(map.misfit_words().unwrap(), (second.max_cluster_sms, second.flags));

    let mut other = LimitsFile::open_rw(&path).unwrap();
    assert_eq!(other.update(|limits| limits.time_permille = 250).unwrap(), 3);
    assert_eq!(file.load().unwrap(), (3, Limits { time_permille: 250, ..second }));
    assert_eq!(map.load().unwrap().1.time_permille, 250);
    assert_eq!(Limits::read(&path).unwrap(), map.load().unwrap());
}

#[test]
fn impossible_limits_are_not_written() {
    let dir = dir();
    let path = dir.file("limits");
    let good = sample_limits();
    let faults = [
        (Limits { tpc_count: 0, ..good.clone() }, LimitsFault::TpcCount(0)),
        (Limits { tpc_count: 257, ..good.clone() }, LimitsFault::TpcCount(257)),
        (Limits { sms_per_tpc: 0, ..good.clone() }, LimitsFault::SmsPerTpc),
        (
            Limits { set: [0, 4, 0, 0], ..good.clone() },
            LimitsFault::SetBeyondDevice { tpc: 66, tpc_count: 66 },
        ),
        (Limits { time_permille: 1001, ..good.clone() }, LimitsFault::Time(1001)),
        (
            Limits { memory_quota_bytes: (141 << 30) + 1, ..good.clone() },
            LimitsFault::Quota { quota: (141 << 30) + 1, total: 141 << 30 },
        ),
        (Limits { name: [b'x'; 64], ..good.clone() }, LimitsFault::Name),
        (Limits { name: [0xff; 64], ..good.clone() }, LimitsFault::Name),
        (
            Limits { physical_of_logical: [256; 256], ..good.clone() },
            LimitsFault::Physical { tpc: 0, physical: 256 },
        ),
    ];
    for (bad, fault) in &faults {
        assert_eq!(
            LimitsFile::create(&path, bad, 0o600).unwrap_err().problem(),
            &Problem::Limits(*fault),
            "{fault}"
        );
        assert!(!std::fs::exists(dir.path().join("limits")).unwrap(), "nothing may be left behind");
    }
    let mut file = LimitsFile::create(&path, &good, 0o600).unwrap();
    for (bad, fault) in &faults {
        assert_eq!(file.store(bad).unwrap_err().problem(), &Problem::Limits(*fault));
    }
    assert_eq!(file.load().unwrap(), (1, good));
}

#[test]
fn a_file_is_made_once_and_with_its_mode() {
    use std::os::unix::fs::PermissionsExt;
    let dir = dir();
    let (limits, usage) = (dir.file("limits"), dir.file("usage"));
    LimitsFile::create(&limits, &sample_limits(), 0o644).unwrap();
    UsageMap::create(&usage, 0o666).unwrap();
    assert_eq!(LimitsFile::create(&limits, &sample_limits(), 0o644).unwrap_err().problem(), &Problem::Exists);
    assert_eq!(UsageMap::create(&usage, 0o666).unwrap_err().problem(), &Problem::Exists);
    let mode = |name| std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("limits"), mode("usage")), (0o644, 0o666));
}

#[test]
fn bytes_and_counters_of_a_slot() {
    let dir = dir();
    let path = dir.file("usage");
    let map = UsageMap::create(&path, 0o600).unwrap();
    let view = UsageView::open(&path).unwrap();
    assert_eq!(view.slots().count(), 0);

    let a = UsageMap::open(&path).unwrap().claim(owner()).unwrap();
    let b = UsageMap::open(&path).unwrap().claim(owner()).unwrap();
    assert_eq!((a.index(), b.index()), (0, 1));
    a.reserve(600, 1000).unwrap();
    assert_eq!(b.reserve(401, 1000), Err(AccountError::OverQuota { asked: 401, used: 600, quota: 1000 }));
    b.reserve(400, 1000).unwrap();
    assert_eq!((a.bytes(), b.bytes(), map.used()), (600, 400, 1000));
    assert_eq!(a.release(601), Err(AccountError::NotHeld { asked: 601, held: 600 }));
    a.release(600).unwrap();
    a.count_launch();
    a.count_launch();
    a.report(HookState { flags: HookState::ATTACHED | HookState::REFUSED, code: 7 });
    assert_eq!((map.used(), map.peak()), (400, 1000));
    assert_eq!(view.totals().unwrap(), map.totals());

    let shown: Vec<_> = view.slots().map(Result::unwrap).collect();
    let [first, second] = shown[..] else { panic!("{shown:?}") };
    assert_eq!((first.pid, first.bytes, first.launches, first.live), (owner().pid, 0, 2, true));
    assert_eq!(first.start_ticks, owner().start_ticks);
    assert_eq!(first.state, HookState { flags: HookState::ATTACHED | HookState::REFUSED, code: 7 });
    assert_eq!((second.bytes, second.launches, second.refusals, second.live), (400, 0, 1, true));

    // A dropped slot is like a dead process's: the bytes stay until another process reaps them.
    drop(b);
    assert_eq!(map.used(), 400);
    assert!(!view.slots().map(Result::unwrap).any(|slot| slot.index == 1 && slot.live));
    assert_eq!(map.reap().unwrap(), 400);
    assert_eq!(map.used(), 0);
    assert_eq!(map.reap().unwrap(), 0, "the living are left alone");

    a.reserve(5, 10).unwrap();
    assert_eq!(a.finish().unwrap(), 5);
    assert_eq!((map.used(), map.peak()), (0, 1000));
    assert_eq!(view.slots().count(), 0);
}

#[test]
fn a_refusal_comes_after_the_dead_were_reaped() {
    let dir = dir();
    let path = dir.file("usage");
    UsageMap::create(&path, 0o600).unwrap();
    let claim = || UsageMap::open(&path).unwrap().claim(owner()).unwrap();
    let (a, b) = (claim(), claim());
    a.reserve(1000, 1000).unwrap();
    drop(a);
    assert!(b.try_reserve(1, 1000).is_err());
    b.reserve(1000, 1000).unwrap();
    assert_eq!((b.bytes(), b.map().used()), (1000, 1000));
}

#[test]
fn edges_of_the_arithmetic() {
    let dir = dir();
    let path = dir.file("usage");
    let slot = UsageMap::create(&path, 0o600).unwrap().claim(owner()).unwrap();
    slot.reserve(u64::MAX, NO_QUOTA).unwrap();
    assert_eq!(
        slot.reserve(1, NO_QUOTA),
        Err(AccountError::OverQuota { asked: 1, used: u64::MAX, quota: NO_QUOTA })
    );
    slot.release(u64::MAX).unwrap();
    slot.reserve(10, 10).unwrap();
    // The quota is now below the bytes held: no more fit, none are lost.
    assert!(slot.reserve(1, 5).is_err());
    slot.reserve(0, 5).unwrap();
    slot.release(0).unwrap();
    slot.release(6).unwrap();
    slot.reserve(1, 5).unwrap();
    assert_eq!(slot.bytes(), 5);
}

#[test]
fn an_owner_without_a_number_is_refused() {
    let dir = dir();
    let map = UsageMap::create(&dir.file("usage"), 0o600).unwrap();
    let no_process = partita_ledger::Owner { pid: 0, start_ticks: 0 };
    assert_eq!(map.claim(no_process).unwrap_err().problem(), &Problem::BadOwner { pid: 0 });
}

#[test]
fn slots_run_out_and_come_back() {
    let dir = dir();
    let path = dir.file("usage");
    UsageMap::create(&path, 0o600).unwrap();
    // Each slot costs a descriptor.
    common::raise_open_files(partita_ledger::PROCESS_SLOTS as u64 + 100);
    let claim = || UsageMap::open(&path).unwrap().claim(owner());
    let mut slots: Vec<_> = (0..partita_ledger::PROCESS_SLOTS).map(|_| claim().unwrap()).collect();
    assert_eq!(claim().unwrap_err().problem(), &Problem::Full { slots: partita_ledger::PROCESS_SLOTS });
    let index = slots[500].index();
    slots[500].reserve(7, 7).unwrap();
    drop(slots.swap_remove(500));
    let again = claim().unwrap();
    assert_eq!((again.index(), again.bytes(), again.map().used()), (index, 0, 0));
}

#[test]
fn threads_of_one_process_share_a_slot() {
    let dir = dir();
    let slot = UsageMap::create(&dir.file("usage"), 0o600).unwrap().claim(owner()).unwrap();
    std::thread::scope(|scope| {
        for bytes in 1..=4 {
            let slot = &slot;
            scope.spawn(move || {
                for _ in 0..20_000 {
                    slot.count_launch();
                    if slot.try_reserve(bytes, 7).is_ok() {
                        assert!(slot.map().used() <= 7);
                        slot.release(bytes).unwrap();
                    }
                }
            });
        }
    });
    let view = UsageView::open(slot.map().path()).unwrap();
    let shown = view.slots().next().unwrap().unwrap();
    assert_eq!((shown.bytes, shown.launches, slot.map().used()), (0, 80_000, 0));
}
