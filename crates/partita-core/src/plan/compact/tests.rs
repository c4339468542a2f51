use std::vec;
use std::vec::Vec;

use proptest::prelude::*;
use proptest::sample::Index;

use super::super::order::{Way, tests::make};
use crate::testing::{h200, occupied, round_robin, subsets};
use crate::{
    Ask, Compaction, Placement, PlanError, Present, Share, Topology, TpcSet, compact, plan, repack, replan,
};

fn present(name: &str, set: TpcSet) -> Present {
    Present { name: name.into(), set }
}

fn touched(topology: &Topology, set: TpcSet) -> usize {
    topology.gpcs().iter().filter(|gpc| !gpc.tpcs.is_disjoint(&set)).count()
}

/// How far from ideal a set is, at any number of moves: less is better.
fn rank(topology: &Topology, placement: Placement, set: TpcSet) -> Vec<u32> {
    match placement {
        Placement::Packed => vec![touched(topology, set) as u32],
        Placement::Spread => {
            let mut counts: Vec<u32> = topology.gpcs().iter().map(|gpc| (gpc.tpcs & set).len()).collect();
            counts.sort_unstable_by(|a, b| b.cmp(a));
            counts
        }
    }
}

/// How many TPCs change hands or places if a tenant that has `own` gets `set`.
fn price(own: TpcSet, free: TpcSet, set: TpcSet) -> u32 {
    let leaves = own.len().min(set.len()) - (own & set).len();
    leaves + (set - own - free).len()
}

/// Makes the moves: each tenant keeps its number of TPCs, no two overlap at any store, and all
/// reach their new sets.
fn check_moves(
    topology: &Topology,
    tenants: &[Present],
    name: Option<&str>,
    done: &Compaction,
    may_move: impl Fn(&Present) -> bool,
) {
    let mut ways = vec![];
    let mut others = TpcSet::EMPTY;
    for tenant in tenants {
        let moved = done.moves.iter().find(|made| made.tenant == tenant.name);
        let mut then = tenant.set;
        if let Some(made) = moved {
            assert!(may_move(tenant) && Some(&*tenant.name) != name, "{made:?}");
            assert!(made.from.is_subset(&tenant.set) && made.to.is_disjoint(&tenant.set));
            assert_eq!(made.from.len(), made.to.len());
            then = (then - made.from) | made.to;
        } else if Some(&*tenant.name) == name {
            then = done.plan.set;
        }
        if then == tenant.set {
            others |= tenant.set;
        } else {
            assert!(then.is_subset(&topology.all()));
            ways.push(Way { name: tenant.name.clone(), now: tenant.set, then });
        }
    }
    make(&mut ways, &done.stores, others);
    let held = ways.iter().fold(others, |all, way| all | way.then);
    if name.is_none() {
        assert!(done.plan.set.is_disjoint(&held));
    }
}

/// Small devices whose tenants are scattered over the GPCs, so that plans without moves are seldom
/// packed.
fn scattered() -> impl Strategy<Value = (Topology, Vec<Present>)> {
    let sizes = prop::collection::vec(2..=4u16, 2..=5)
        .prop_filter("what can be tried out", |sizes| sizes.iter().sum::<u16>() <= 13);
    (sizes, prop::collection::vec(0..5usize, 13)).prop_map(|(sizes, owners)| {
        let topology = round_robin(&sizes, 4);
        let of = |i| topology.all().iter().filter(|&tpc| owners[usize::from(tpc)] == i).collect();
        let tenants = (0..3).map(|i| present(&std::format!("t{i}"), of(i)));
        let tenants = tenants.collect();
        (topology, tenants)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    /// Against every set of that many TPCs: none that is as packed, or as even, takes fewer moves.
    #[test]
    fn the_fewest_tpcs_move(
        (topology, tenants) in scattered(),
        who in prop::option::of(any::<Index>()),
        wanted in 1..=8u32,
        fixed in 0..8usize,
        is_spread: bool,
    ) {
        let tenants: Vec<_> = tenants.into_iter().filter(|tenant| !tenant.set.is_empty()).collect();
        let name = who.filter(|_| !tenants.is_empty()).map(|who| who.get(&tenants).name.clone());
        let placement = if is_spread { Placement::Spread } else { Placement::Packed };
        let ask = Ask { share: Share::Tpcs(wanted), placement };
        let may_move = |tenant: &Present| !tenant.name.ends_with(&*std::format!("{fixed}"));
        let of = |of: &dyn Fn(&Present) -> bool| {
            tenants.iter().filter(|tenant| of(tenant)).fold(TpcSet::EMPTY, |all, tenant| all | tenant.set)
        };
        let is_own = |tenant: &Present| Some(&tenant.name) == name.as_ref();
        let (own, free) = (of(&is_own), topology.all() - of(&|_| true));
        let stays = of(&|tenant| !is_own(tenant) && !may_move(tenant));
        let plain = match &name {
            Some(name) => replan(&topology, &tenants, name, ask),
            None => plan(&topology, &tenants, ask),
        };
        match compact(&topology, &tenants, name.as_deref(), ask, may_move) {
            Ok(done) => {
                prop_assert_eq!(done.plan.set.len(), wanted);
                prop_assert!(done.plan.set.is_disjoint(&stays));
                check_moves(&topology, &tenants, name.as_deref(), &done, may_move);
                let all: Vec<TpcSet> = subsets(topology.all() - stays, wanted).collect();
                let best = all.iter().map(|&set| rank(&topology, placement, set)).min().unwrap();
                prop_assert_eq!(rank(&topology, placement, done.plan.set), best.clone());
                let as_good = all.into_iter().filter(|&set| rank(&topology, placement, set) == best);
                let least = as_good.map(|set| price(own, free, set)).min().unwrap();
                prop_assert_eq!(price(own, free, done.plan.set), least);
                let moved: u32 = done.moves.iter().map(|made| made.from.len()).sum();
                prop_assert_eq!(moved, (done.plan.set - own - free).len());
                if let Ok(plain) = plain
                    && rank(&topology, placement, plain.set) == best
                {
                    prop_assert_eq!(&done.plan, &plain);
                    prop_assert!(done.moves.is_empty());
                }
            }
            Err(PlanError::Deadlock { .. }) => {
                let waits = tenants.iter().filter(|tenant| tenant.set.len() == 1).count();
                prop_assert!(free.is_empty() && waits > 1, "{tenants:?}");
            }
            Err(error) => prop_assert_eq!(Err(error), plain.map(drop)),
        }
    }

    /// A tenant with TPCs in a requested set gives up exactly those.
    #[test]
    fn named_tpcs_are_cleared((topology, tenants) in occupied(6, 6), words: [u64; 4], fixed in 0..8usize) {
        let tenants: Vec<_> = tenants.into_iter().filter(|tenant| !tenant.set.is_empty()).collect();
        let named = TpcSet::from_words(words) & topology.all();
        let named = named.lowest(named.len() / 2);
        if named.is_empty() {
            return Ok(());
        }
        let may_move = |tenant: &Present| !tenant.name.ends_with(&*std::format!("{fixed}"));
        let held = tenants.iter().fold(TpcSet::EMPTY, |all, tenant| all | tenant.set);
        let stays = tenants.iter().filter(|tenant| !may_move(tenant)).fold(TpcSet::EMPTY, |all, tenant| all | tenant.set);
        match compact(&topology, &tenants, None, Share::Exact(named), may_move) {
            Ok(done) => {
                prop_assert_eq!(done.plan.set, named);
                check_moves(&topology, &tenants, None, &done, may_move);
                let from = done.moves.iter().fold(TpcSet::EMPTY, |all, made| all | made.from);
                prop_assert_eq!(from, named & held);
            }
            Err(PlanError::Taken(_)) => {
                let room = topology.tpc_count() - held.len();
                prop_assert!(!named.is_disjoint(&stays) || named.len() > room);
            }
            Err(error) => prop_assert!(false, "{error}"),
        }
    }

    #[test]
    fn repacking_never_loses_and_leaves_no_step((topology, tenants) in occupied(6, 5), fixed in 0..8usize) {
        let tenants: Vec<_> = tenants.into_iter().filter(|tenant| !tenant.set.is_empty()).collect();
        let may_move = |tenant: &Present| !tenant.name.ends_with(&*std::format!("{fixed}"));
        let Ok(done) = repack(&topology, &tenants, may_move, |_| true) else {
            let held = tenants.iter().fold(TpcSet::EMPTY, |all, tenant| all | tenant.set);
            prop_assert_eq!(held, topology.all());
            return Ok(());
        };
        let mut ways: Vec<Way> = tenants
            .iter()
            .map(|tenant| {
                let made = done.moves.iter().find(|made| made.tenant == tenant.name);
                let then = made.map_or(tenant.set, |made| (tenant.set - made.from) | made.to);
                Way { name: tenant.name.clone(), now: tenant.set, then }
            })
            .collect();
        let sum = |of: &dyn Fn(&Way) -> TpcSet| ways.iter().map(|way| touched(&topology, of(way))).sum::<usize>();
        let (before, after) = (sum(&|way| way.now), sum(&|way| way.then));
        prop_assert!(done.moves.is_empty() || after < before);
        make(&mut ways, &done.stores, TpcSet::EMPTY);
        let packed: Vec<_> = ways.iter().map(|way| present(&way.name, way.then)).collect();
        prop_assert_eq!(repack(&topology, &packed, may_move, |_| true), Ok(Default::default()));
    }
}

/// Tenants came and went: two are left in eight halves of GPCs.
fn holes(topology: &Topology) -> Vec<Present> {
    let half = |gpc: usize| topology.gpcs()[gpc].tpcs.lowest(4);
    let union = |gpcs: [usize; 4]| gpcs.iter().fold(TpcSet::EMPTY, |all, &gpc| all | half(gpc));
    vec![present("a", union([0, 1, 2, 3])), present("b", union([4, 5, 6, 7]))]
}

#[test]
fn a_whole_gpc_is_cleared_of_as_few_as_are_there() {
    let h200 = h200();
    let tenants = holes(&h200);
    // Without a request no tenant moves: pieces of two GPCs.
    assert_eq!(plan(&h200, &tenants, "8tpc".parse::<Share>().unwrap()).unwrap().gpcs.len(), 2);
    let done = compact(&h200, &tenants, None, "8tpc".parse::<Share>().unwrap(), |_| true).unwrap();
    assert_eq!(done.plan.gpcs.len(), 1);
    // The GPCs of nine have five free ones: three are missing, of one tenant.
    assert_eq!(done.moves.iter().map(|made| made.from.len()).collect::<Vec<_>>(), [3]);
    check_moves(&h200, &tenants, None, &done, |_| true);
    // A tenant that may not move is in the way; the plan goes around it.
    let done = compact(&h200, &tenants, None, "8tpc".parse::<Share>().unwrap(), |tenant| tenant.name == "b")
        .unwrap();
    assert_eq!((done.plan.gpcs.len(), &*done.moves[0].tenant), (1, "b"));
    let done = compact(&h200, &tenants, None, "8tpc".parse::<Share>().unwrap(), |_| false).unwrap();
    assert_eq!((done.plan.gpcs.len(), done.moves.len()), (2, 0));
}

#[test]
fn repacking_restores_whole_gpcs() {
    let h200 = h200();
    let tenants = holes(&h200);
    let done = repack(&h200, &tenants, |_| true, |_| true).unwrap();
    let sets: Vec<TpcSet> = tenants
        .iter()
        .map(|tenant| {
            let made = done.moves.iter().find(|made| made.tenant == tenant.name).unwrap();
            (tenant.set - made.from) | made.to
        })
        .collect();
    assert_eq!(sets.iter().map(|&set| touched(&h200, set)).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(repack(&h200, &tenants, |_| false, |_| true), Ok(Default::default()));
    assert_eq!(repack(&h200, &tenants, |_| true, |_| false), Ok(Default::default()));
}

/// The largest device there can be, every second TPC held: compaction is bounded.
#[test]
fn the_largest_device_is_compacted() {
    let sizes: Vec<u16> = (0..32).map(|i| if i % 2 == 0 { 3 + i / 4 % 6 } else { 8 }).collect();
    let topology = round_robin(&sizes, 8);
    let scattered: TpcSet = topology.all().iter().filter(|tpc| tpc % 2 == 0).collect();
    let tenants = [present("scattered", scattered)];
    for wanted in [1, 7, 30, topology.tpc_count() - scattered.len()] {
        for placement in [Placement::Packed, Placement::Spread] {
            let ask = Ask { share: Share::Tpcs(wanted), placement };
            let done = compact(&topology, &tenants, None, ask, |_| true).unwrap();
            check_moves(&topology, &tenants, None, &done, |_| true);
        }
    }
}
