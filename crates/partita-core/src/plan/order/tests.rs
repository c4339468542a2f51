use std::format;
use std::vec::Vec;

use proptest::prelude::*;

use super::{Way, order};
use crate::TpcSet;

/// Makes the stores and checks after each that no tenants overlap and each has a TPC.
pub(in crate::plan) fn make(ways: &mut [Way], stores: &[super::Store], others: TpcSet) {
    for store in stores {
        assert!(!store.set.is_empty(), "{store:?}");
        let way = ways.iter_mut().find(|way| way.name == store.tenant).expect("a tenant that is there");
        way.now = store.set;
        let mut held = others;
        for way in &*ways {
            assert!(way.now.is_disjoint(&held), "{store:?} overlaps: {ways:?}");
            held |= way.now;
        }
    }
    for way in ways {
        assert_eq!(way.now, way.then, "{}", way.name);
    }
}

fn ways() -> impl Strategy<Value = (Vec<Way>, TpcSet)> {
    // For each of 16 TPCs its holder before and after; 4 and above mean free.
    (prop::collection::vec((0..6u8, 0..6u8), 16), any::<bool>()).prop_map(|(owners, full)| {
        let set = |tenant: u8, after: bool| -> TpcSet {
            let mine = (0..16u8).zip(&owners).filter(|(_, owner)| {
                let owner = if after { owner.1 } else { owner.0 };
                // On a full device each TPC has a holder.
                owner == tenant || (full && tenant == 0 && owner >= 4)
            });
            mine.map(|(tpc, _)| tpc).collect()
        };
        let ways = (0..4).map(|i| Way { name: format!("t{i}"), now: set(i, false), then: set(i, true) });
        let ways: Vec<Way> = ways.filter(|way| !way.now.is_empty() && !way.then.is_empty()).collect();
        let taken = ways.iter().fold(TpcSet::EMPTY, |all, way| all | way.now | way.then);
        (ways, TpcSet::first(16) - taken)
    })
}

proptest! {
    #[test]
    fn every_store_keeps_all_apart((ways, idle) in ways()) {
        match order(&ways, TpcSet::single(200), idle) {
            Some(stores) => {
                prop_assert!(stores.len() <= 6 * ways.len(), "{stores:?}");
                make(&mut ways.clone(), &stores, TpcSet::single(200));
            }
            None => {
                let alone = ways.iter().all(|way| way.now.len() == 1 && way.then.len() == 1);
                prop_assert!(idle.is_empty() && alone, "{ways:?}");
            }
        }
    }
}

fn way(name: &str, now: &str, then: &str) -> Way {
    Way { name: name.into(), now: now.parse().unwrap(), then: then.parse().unwrap() }
}

#[test]
fn who_stays_is_not_stored_and_who_can_go_goes_in_one_step() {
    let ways = [way("a", "0-1", "0-1"), way("b", "2-3", "4-5"), way("c", "6-7", "2-3")];
    let stores = order(&ways, TpcSet::EMPTY, TpcSet::EMPTY).unwrap();
    assert_eq!(stores.iter().map(|store| &*store.tenant).collect::<Vec<_>>(), ["b", "c"]);
}

#[test]
fn a_swap_goes_through_what_one_gives_up_or_a_free_tpc() {
    let mut swap = [way("a", "0-3", "4-7"), way("b", "4-7", "0-3")];
    let stores = order(&swap, TpcSet::EMPTY, TpcSet::EMPTY).unwrap();
    make(&mut swap, &stores, TpcSet::EMPTY);
    let mut swap = [way("a", "0", "1"), way("b", "1", "0")];
    assert_eq!(order(&swap, TpcSet::EMPTY, TpcSet::EMPTY), None);
    let stores = order(&swap, TpcSet::EMPTY, TpcSet::single(2)).unwrap();
    make(&mut swap, &stores, TpcSet::EMPTY);
    assert_eq!(stores.len(), 3);
}

#[test]
fn freed_tpcs_are_room_for_a_swap() {
    let mut ways =
        [way("a", "0-4,6,8-9,12-14", "2,5-7,11-12,14"), way("b", "5,11,15", "10"), way("c", "7,10", "15")];
    let stores = order(&ways, TpcSet::EMPTY, TpcSet::EMPTY).unwrap();
    make(&mut ways, &stores, TpcSet::EMPTY);
}

#[test]
fn who_holds_more_lends_a_place_to_those_who_swap_single_ones() {
    let mut ways = [
        way("a", "0-9,13", "5,7,14"),
        way("b", "10,15", "11"),
        way("c", "11", "15"),
        way("d", "12,14", "0-4,6,8-10,12-13"),
    ];
    let stores = order(&ways, TpcSet::EMPTY, TpcSet::EMPTY).unwrap();
    make(&mut ways, &stores, TpcSet::EMPTY);
    let mut ways = [way("a", "0", "1"), way("b", "1", "0"), way("c", "2-3", "2-3")];
    let stores = order(&ways, TpcSet::EMPTY, TpcSet::EMPTY).unwrap();
    make(&mut ways, &stores, TpcSet::EMPTY);
}
