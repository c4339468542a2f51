use std::vec::Vec;

use proptest::prelude::*;

use super::place;
use crate::Allocation;
use crate::testing::{h200, topologies};
use partita_core::{Topology, TpcSet};

/// A device, a non-empty part of it, and numbers of TPCs for one to eight components.
fn placed() -> impl Strategy<Value = (Topology, TpcSet, Vec<u32>)> {
    topologies(8, 9).prop_flat_map(|topology| {
        let count = topology.tpc_count();
        let within = prop::collection::vec(any::<bool>(), count as usize).prop_map(|chosen| {
            let set: TpcSet = (0u8..).zip(&chosen).filter(|(_, is_in)| **is_in).map(|(tpc, _)| tpc).collect();
            if set.is_empty() { TpcSet::single(0) } else { set }
        });
        (Just(topology), within, prop::collection::vec(1..=count, 1..=8))
    })
}

/// How many sets each TPC of `within` is in.
fn depths(within: TpcSet, sets: &[TpcSet]) -> Vec<usize> {
    within.iter().map(|tpc| sets.iter().filter(|set| set.contains(tpc)).count()).collect()
}

proptest! {
    #[test]
    fn everybody_gets_as_many_as_asked_and_meets_as_few_as_can_be((topology, within, tpcs) in placed()) {
        let sets = place(&topology, within, &Allocation::new(tpcs.clone()).unwrap());
        prop_assert_eq!(sets.len(), tpcs.len());
        for (set, &tpcs) in sets.iter().zip(&tpcs) {
            prop_assert!(set.is_subset(&within));
            prop_assert_eq!(set.len(), tpcs.min(within.len()));
        }
        let depths = depths(within, &sets);
        prop_assert!(depths.iter().max().unwrap() - depths.iter().min().unwrap() <= 1, "{:?}", depths);
        let given: u32 = sets.iter().map(TpcSet::len).sum();
        if given <= within.len() {
            prop_assert_eq!(sets.iter().fold(TpcSet::EMPTY, |all, set| all | *set).len(), given);
        }
    }

    /// A set of n TPCs that touches m GPCs holds all available TPCs of m - 2 of them.
    #[test]
    fn sets_are_packed((topology, within, tpcs) in placed()) {
        for set in place(&topology, within, &Allocation::new(tpcs).unwrap()) {
            let broken = topology.gpcs().iter().filter(|gpc| {
                let part = gpc.tpcs & set;
                !part.is_empty() && part != gpc.tpcs & within
            });
            prop_assert!(broken.count() <= 2, "{}", set);
        }
    }

    #[test]
    fn a_little_change_moves_little(
        (topology, within, tpcs) in placed(),
        who in any::<prop::sample::Index>(),
        more in 1..4_u32,
    ) {
        let before = Allocation::new(tpcs).unwrap();
        let who = who.index(before.components());
        let after = before.with(who, before.tpcs()[who] + more);
        let [old, new] = [&before, &after].map(|allocation| place(&topology, within, allocation));
        let moved: u32 = old.iter().zip(&new).map(|(old, new)| (*old ^ *new).len()).sum();
        prop_assert!(moved <= (2 * before.components() as u32 - 1) * more, "{} to {}: {}", before, after, moved);
        for earlier in 0..who {
            prop_assert_eq!(old[earlier], new[earlier]);
        }
    }
}

#[test]
fn a_component_with_the_whole_gpu_leaves_the_others_where_they_are() {
    let gpu = h200();
    let place = |tpcs: [u32; 4]| place(&gpu, gpu.all(), &Allocation::new(tpcs).unwrap());
    let [first, whole, third, last] = place([9, 66, 9, 16])[..] else { unreachable!() };
    assert_eq!(whole, gpu.all());
    // Two whole GPCs of nine, and two of eight.
    assert_eq!([first, third], [gpu.gpcs()[0].tpcs, gpu.gpcs()[1].tpcs]);
    assert_eq!(last, gpu.gpcs()[2].tpcs | gpu.gpcs()[3].tpcs);
}

#[test]
fn nothing_can_be_had_of_nothing() {
    assert_eq!(place(&h200(), TpcSet::EMPTY, &Allocation::uniform(2, 3)), [TpcSet::EMPTY; 2]);
}
