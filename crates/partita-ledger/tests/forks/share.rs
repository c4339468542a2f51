//! Memory that several processes hold: charged once, and released with the last of them, however it
//! ends.

use crate::common;

use std::ffi::CStr;
use std::sync::atomic::Ordering::SeqCst;

use common::process::{End, alone, fork, shared_words, wait_until};
use common::{dir, owner};
use partita_ledger::{AccountError, Key, NO_QUOTA, PROCESS_SLOTS, SLOTS, Slot, UsageMap, UsageView};

const KEY: Key = Key([7, 8]);

fn claim(usage: &CStr) -> Slot {
    UsageMap::open(usage).unwrap().claim(owner()).unwrap()
}

#[test]
fn sharing_moves_bytes_and_the_last_to_leave_gives_them_back() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("usage");
    UsageMap::create(&path, 0o600).unwrap();
    let (maker, user) = (claim(&path), claim(&path));
    maker.reserve(100, 100).unwrap();
    assert_eq!(
        maker.share(KEY, 101).unwrap_err(),
        AccountError::NotHeld { asked: 101, held: 100 },
        "more than is held"
    );
    let of_maker = maker.share(KEY, 60).unwrap().expect("room");
    assert_eq!((maker.bytes(), maker.map().used(), maker.map().peak()), (40, 100, 100));

    assert!(user.join(Key([8, 7])).is_none());
    let of_user = user.join(KEY).expect("the maker lives");
    assert_eq!((user.bytes(), user.map().used()), (0, 100));
    let view = UsageView::open(&path).unwrap();
    let shown: Vec<_> = view.slots().map(Result::unwrap).filter(|slot| slot.shared).collect();
    assert_eq!(shown.len(), 1);
    assert_eq!((shown[0].bytes, shown[0].pid, shown[0].live), (60, 0, true));

    maker.leave(of_maker);
    assert_eq!((user.map().reap().unwrap(), user.map().used()), (0, 100), "the user holds it");
    user.leave(of_user);
    assert_eq!((maker.bytes(), maker.map().used()), (40, 40));
    assert!(user.join(KEY).is_none());
    assert_eq!(view.slots().filter(|slot| slot.as_ref().unwrap().shared).count(), 0);
}

#[test]
fn what_comes_from_elsewhere_is_charged_once_or_refused() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("usage");
    UsageMap::create(&path, 0o600).unwrap();
    let (one, two) = (claim(&path), claim(&path));
    one.reserve(50, 100).unwrap();
    let refused = two.join_or_reserve(KEY, 51, 100).unwrap_err();
    assert_eq!(refused, AccountError::OverQuota { asked: 51, used: 50, quota: 100 });
    assert_eq!((two.map().used(), two.join(KEY).is_none()), (50, true));
    let first = two.join_or_reserve(KEY, 50, 100).unwrap().expect("room");
    let second = one.join_or_reserve(KEY, 50, 100).unwrap().expect("room");
    assert_eq!((one.bytes(), two.bytes(), one.map().used()), (50, 0, 100));
    two.leave(first);
    assert_eq!(one.map().used(), 100);
    one.leave(second);
    assert_eq!(one.map().used(), 50);
}

#[test]
fn a_killed_maker_leaves_the_bytes_to_those_who_share_and_the_last_kill_frees_them() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("usage");
    let map = UsageMap::create(&path, 0o600).unwrap();
    let [made, joined] = shared_words::<2>();
    let park = || {
        loop {
            std::thread::park();
        }
    };
    let maker = fork(|| {
        let slot = claim(&path);
        slot.reserve(30, 100).unwrap();
        let _share = slot.share(KEY, 20).unwrap().unwrap();
        made.store(1, SeqCst);
        park()
    });
    wait_until("the maker", || made.load(SeqCst) == 1);
    let users = [(); 3].map(|()| {
        fork(|| {
            let slot = claim(&path);
            let _share = slot.join(KEY).unwrap();
            joined.fetch_add(1, SeqCst);
            park()
        })
    });
    wait_until("the users", || joined.load(SeqCst) == 3);
    maker.kill();
    assert_eq!(maker.wait(), End::Signal(libc::SIGKILL));
    assert_eq!((map.reap().unwrap(), map.used()), (10, 20));
    let mut users = users.into_iter();
    for left in [20, 20, 0] {
        let user = users.next().unwrap();
        user.kill();
        user.wait();
        map.reap().unwrap();
        assert_eq!(map.used(), left);
    }
}

/// Many processes take and leave shares of few memories, and are killed at any time.
#[test]
fn kills_while_sharing_lose_no_byte() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("usage");
    let map = UsageMap::create(&path, 0o600).unwrap();
    let [rounds] = shared_words::<1>();
    for kill in 0..200u64 {
        rounds.store(0, SeqCst);
        let victims = [0, 1].map(|victim| {
            let path = path.clone();
            fork(move || {
                let slot = claim(&path);
                for round in 0.. {
                    let key = Key([1 + (round + victim) % 3, 1]);
                    let share = match round % 2 {
                        0 => slot.join_or_reserve(key, 100, NO_QUOTA).unwrap(),
                        _ => {
                            slot.reserve(100, NO_QUOTA).unwrap();
                            // The other may have it already: then these are two memories with one
                            // key, which the ledger need not distinguish.
                            slot.share(Key([1 + round % 3, 2 + victim]), 100).unwrap()
                        }
                    };
                    slot.leave(share.expect("room"));
                    rounds.fetch_add(1, SeqCst);
                }
                0
            })
        });
        wait_until("the victims", || rounds.load(SeqCst) > kill % 50);
        for victim in victims {
            victim.kill();
            assert_eq!(victim.wait(), End::Signal(libc::SIGKILL), "kill {kill}");
        }
        map.reap().unwrap();
        assert_eq!(map.used(), 0, "kill {kill}");
    }
    assert_eq!(UsageView::open(&path).unwrap().slots().count(), 0);
}

#[test]
fn when_there_is_no_room_nothing_changes() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("usage");
    UsageMap::create(&path, 0o600).unwrap();
    let slot = claim(&path);
    slot.reserve(5000, NO_QUOTA).unwrap();
    let shares: Vec<_> = (1..).map_while(|number| slot.share(Key([number, 0]), 1).unwrap()).collect();
    assert_eq!(shares.len(), SLOTS - PROCESS_SLOTS);
    assert!(slot.share(KEY, 1).unwrap().is_none());
    assert!(slot.join_or_reserve(KEY, 1, NO_QUOTA).unwrap().is_none());
    assert_eq!((slot.bytes(), slot.map().used()), (5000 - shares.len() as u64, 5000));
    let count = shares.len() as u64;
    shares.into_iter().for_each(|share| slot.leave(share));
    assert_eq!(slot.map().used(), 5000 - count);
}

/// The driver's free allowance has a bound for all processes together.
#[test]
fn what_is_free_of_charge_is_never_more_than_the_bound() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("usage");
    UsageMap::create(&path, 0o600).unwrap();
    let (one, two) = (claim(&path), claim(&path));
    assert_eq!((one.take_driver_free(600, 1000), two.take_driver_free(600, 1000)), (600, 400));
    // It stays with its process, and others can take the rest.
    assert_eq!((one.take_driver_free(600, 1000), one.take_driver_free(100, 1000)), (600, 100));
    assert_eq!(two.take_driver_free(2000, 1000), 900);
    // Dead processes have none.
    drop(two);
    assert_eq!(one.take_driver_free(2000, 1000), 1000);
    assert_eq!(one.take_driver_free(0, 1000), 0);
    // Two at the same moment see each other.
    let two = claim(&path);
    for _ in 0..2000 {
        let go = std::sync::Barrier::new(2);
        let take = |slot: &Slot| {
            go.wait();
            slot.take_driver_free(700, 1000)
        };
        let (of_one, of_two) = std::thread::scope(|scope| {
            let other = scope.spawn(|| take(&two));
            (take(&one), other.join().unwrap())
        });
        assert!(of_one + of_two <= 1000, "{of_one} and {of_two}");
        one.take_driver_free(0, 1000);
        two.take_driver_free(0, 1000);
    }
}
