use std::cmp::Reverse;
use std::vec::Vec;

use proptest::prelude::*;
use proptest::sample::Index;

use crate::testing::{h200, occupied, subsets};
use crate::{Ask, Placement, Present, Share, Topology, TpcSet, plan, replan};

fn spread(share: Share) -> Ask {
    Ask { share, placement: Placement::Spread }
}

/// How good a choice is, by the documentation of `plan`: less is better.
fn cost(topology: &Topology, free: TpcSet, set: TpcSet) -> (Vec<u32>, Vec<u32>, Reverse<Vec<u32>>) {
    let counts = |of: TpcSet| topology.gpcs().iter().map(move |gpc| (gpc.tpcs & of).len());
    let descending = |of: TpcSet| {
        let mut counts: Vec<u32> = counts(of).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    };
    (descending(set), descending(free - set), Reverse(counts(set).collect()))
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 2000, ..ProptestConfig::default() })]

    /// Against every set of that many TPCs.
    #[test]
    fn no_set_is_more_even((topology, tenants) in occupied(5, 4), index: Index) {
        let mut tenants = tenants;
        let free = tenants.iter().fold(topology.all(), |free, tenant| free - tenant.set).lowest(12);
        tenants.push(Present { name: "the rest".into(), set: topology.all() - free });
        if free.is_empty() {
            return Ok(());
        }
        let wanted = 1 + index.index(free.len() as usize) as u32;
        let plan = plan(&topology, &tenants, spread(Share::Tpcs(wanted))).unwrap();
        prop_assert_eq!(plan.set.len(), wanted);
        prop_assert!(plan.set.is_subset(&free));
        let best = subsets(free, wanted).map(|set| cost(&topology, free, set)).min();
        prop_assert_eq!(Some(cost(&topology, free, plan.set)), best);
        for gpc in topology.gpcs() {
            let taken = gpc.tpcs & plan.set;
            prop_assert_eq!(taken, (gpc.tpcs & free).lowest(taken.len()));
        }
    }

    /// A tenant keeps all that it has, or gets a part of it, and of all such sets one of the most
    /// even.
    #[test]
    fn a_spread_tenant_keeps_what_it_can((topology, tenants) in occupied(4, 4), who: Index, wanted in 1..=12u32) {
        if tenants.is_empty() {
            return Ok(());
        }
        let tenant = who.get(&tenants);
        let own = tenant.set;
        let free = tenants.iter().fold(topology.all(), |free, tenant| free - tenant.set) | own;
        match replan(&topology, &tenants, &tenant.name, spread(Share::Tpcs(wanted))) {
            Ok(plan) => {
                prop_assert_eq!((plan.set.len(), (plan.set & own).len()), (wanted, wanted.min(own.len())));
                prop_assert!(plan.set.is_subset(&free));
                let (kept, usable) = if wanted <= own.len() { (TpcSet::EMPTY, own) } else { (own, free) };
                let all = subsets(usable - kept, wanted - kept.len()).map(|more| cost(&topology, usable, kept | more).0);
                prop_assert_eq!(Some(cost(&topology, usable, plan.set).0), all.min());
            }
            Err(error) => prop_assert!(wanted > free.len(), "{error}"),
        }
    }
}

#[test]
fn half_of_an_h200_is_half_of_every_gpc() {
    let h200 = h200();
    let first = plan(&h200, &[], spread(Share::Percent(50_000))).unwrap();
    assert_eq!(first.gpcs.iter().map(|&(_, count)| count).collect::<Vec<_>>(), [5, 4, 4, 4, 4, 4, 4, 4]);
    assert_eq!(first.clusters.largest_sms, 10);
    assert_eq!(first.clusters.iter().collect::<Vec<_>>(), [(2, 33), (4, 16), (8, 8), (16, 0)]);
    let second =
        plan(&h200, &[Present { name: "a".into(), set: first.set }], spread("33tpc".parse().unwrap()));
    assert_eq!(second.unwrap().set, h200.all() - first.set);
}

#[test]
fn packed_halves_run_large_clusters() {
    let h200 = h200();
    let packed = plan(&h200, &[], Share::Percent(50_000)).unwrap();
    // GPCs of 18 and three times 16 SMs.
    assert_eq!(packed.clusters.iter().collect::<Vec<_>>(), [(2, 33), (4, 16), (8, 8), (16, 4)]);
}

#[test]
fn a_share_that_names_its_tpcs_is_not_spread() {
    let h200 = h200();
    let named = plan(&h200, &[], spread("gpc:1".parse().unwrap())).unwrap();
    assert_eq!(named.gpcs, [(1, 9)]);
}
