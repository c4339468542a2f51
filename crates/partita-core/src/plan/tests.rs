use std::cmp::Reverse;
use std::string::{String, ToString};
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;
use proptest::sample::Index;

use super::{Plan, PlanError, Present, plan, replan};
use crate::testing::{h200, occupied, round_robin, subsets};
use crate::{Share, Topology, TpcSet};

fn share(text: &str) -> Share {
    text.parse().unwrap()
}

fn present(name: &str, set: TpcSet) -> Present {
    Present { name: name.into(), set }
}

fn free_of(topology: &Topology, tenants: &[Present]) -> TpcSet {
    tenants.iter().fold(topology.all(), |free, tenant| free - tenant.set)
}

/// The shares that a message tells the user to type.
fn suggested(message: &str) -> Vec<Share> {
    let parts = message.split("`--sm ").skip(1);
    parts.map(|part| share(part.split('`').next().unwrap())).collect()
}

/// How good a choice is, by the documentation of `plan`, judged by the set alone: less is better.
fn cost(topology: &Topology, free: TpcSet, set: TpcSet) -> (usize, usize, u32, Reverse<u32>, Vec<u8>) {
    let touched: Vec<_> = topology.gpcs().iter().filter(|gpc| !gpc.tpcs.is_disjoint(&set)).collect();
    (
        touched.len(),
        touched.iter().filter(|gpc| gpc.tpcs.is_subset(&free)).count(),
        touched.iter().map(|gpc| (gpc.tpcs & (free - set)).len()).sum(),
        Reverse(topology.max_cluster_sms(&set)),
        touched.iter().map(|gpc| gpc.id).collect(),
    )
}

/// Point 6 of the documentation: what is left over is in one GPC, and which.
fn check_left_over(topology: &Topology, usable: TpcSet, plan: &Plan) {
    let touched = topology.gpcs().iter().filter(|gpc| !gpc.tpcs.is_disjoint(&plan.set));
    let usable_of: Vec<TpcSet> = touched.map(|gpc| gpc.tpcs & usable).collect();
    let broken: Vec<TpcSet> = usable_of.iter().copied().filter(|part| !part.is_subset(&plan.set)).collect();
    assert!(broken.len() <= 1, "{plan:?}");
    if let [part] = broken[..] {
        assert_eq!(usable_of.iter().rev().min_by_key(|part| part.len()), Some(&part));
        let taken = part & plan.set;
        assert_eq!(taken, part.lowest(taken.len()));
    }
}

fn check_sums(topology: &Topology, plan: &Plan) {
    for gpc in topology.gpcs() {
        let count = (gpc.tpcs & plan.set).len();
        let said = plan.gpcs.iter().find(|&&(id, _)| id == gpc.id).map(|&(_, count)| count);
        assert_eq!(said, (count > 0).then_some(count));
    }
    assert!(plan.gpcs.is_sorted());
    assert_eq!(plan.max_cluster_sms, topology.max_cluster_sms(&plan.set));
}

proptest! {
    // Devices with tenants shrink slowly; a failure should still be seen soon.
    #![proptest_config(ProptestConfig { max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_is_exact_disjoint_and_made_whenever_there_is_room(
        (topology, tenants) in occupied(12, 10),
        wanted in 1..=120u32,
    ) {
        let free = free_of(&topology, &tenants);
        match plan(&topology, &tenants, Share::Tpcs(wanted)) {
            Ok(plan) => {
                prop_assert_eq!(plan.set.len(), wanted);
                prop_assert!(plan.set.is_subset(&free));
                check_sums(&topology, &plan);
                check_left_over(&topology, free, &plan);
            }
            Err(PlanError::NotEnough(why)) => {
                prop_assert!(wanted > free.len());
                prop_assert_eq!((why.wanted_tpcs, why.free), (wanted, free));
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    /// Against every set of that many TPCs.
    #[test]
    fn no_set_of_tpcs_is_better((topology, tenants) in occupied(5, 4), index: Index) {
        let mut tenants = tenants;
        let free = free_of(&topology, &tenants).lowest(12);
        tenants.push(present("the rest", topology.all() - free));
        if free.is_empty() {
            return Ok(());
        }
        let wanted = 1 + index.index(free.len() as usize) as u32;
        let plan = plan(&topology, &tenants, Share::Tpcs(wanted)).unwrap();
        let best = subsets(free, wanted).map(|set| cost(&topology, free, set)).min();
        prop_assert_eq!(Some(cost(&topology, free, plan.set)), best);
    }

    /// Against every set of GPCs, on devices as large as real ones.
    #[test]
    fn no_set_of_gpcs_is_better((topology, tenants) in occupied(10, 9), index: Index) {
        let free = free_of(&topology, &tenants);
        if free.is_empty() {
            return Ok(());
        }
        let wanted = 1 + index.index(free.len() as usize) as u32;
        let plan = plan(&topology, &tenants, Share::Tpcs(wanted)).unwrap();
        let rooms: Vec<_> = topology.gpcs().iter().filter(|gpc| !gpc.tpcs.is_disjoint(&free)).collect();
        let best = (0u32..1 << rooms.len()).filter_map(|bits| {
            let chosen: Vec<_> = (0..rooms.len()).filter(|i| bits >> i & 1 == 1).map(|i| rooms[i]).collect();
            let size = |i: usize| (chosen[i].tpcs & free).len();
            let left_over = (0..chosen.len()).map(size).sum::<u32>().checked_sub(wanted)?;
            // In the smallest; what does not fit there makes for a GPC too many, which is not the
            // best.
            let largest = (0..chosen.len()).map(size).max()?;
            let cluster = if chosen.len() == 1 { wanted } else { largest };
            Some((
                chosen.len(),
                chosen.iter().filter(|gpc| gpc.tpcs.is_subset(&free)).count(),
                left_over,
                Reverse(cluster * topology.sms_per_tpc()),
                chosen.iter().map(|gpc| gpc.id).collect(),
            ))
        });
        prop_assert_eq!(Some(cost(&topology, free, plan.set)), best.min());
    }

    #[test]
    fn what_would_fit_fits((topology, tenants) in occupied(9, 8), percent in 1..=100_000u32, tpcs in 1..300u32) {
        let free = free_of(&topology, &tenants);
        let sms = tpcs * topology.sms_per_tpc();
        for share in [Share::Percent(percent), Share::Tpcs(tpcs), Share::Sms(sms)] {
            let Err(PlanError::NotEnough(why)) = plan(&topology, &tenants, share) else { continue };
            let message = why.to_string();
            prop_assert_eq!(suggested(&message), why.fits.into_iter().collect::<Vec<_>>());
            prop_assert_eq!(why.fits.is_none(), free.is_empty());
            if let Some(fits) = why.fits {
                prop_assert_eq!(std::mem::discriminant(&fits), std::mem::discriminant(&share));
                // All of what is free, so that more would not fit.
                prop_assert_eq!(plan(&topology, &tenants, fits).map(|plan| plan.set), Ok(free));
            }
            let held = tenants.iter().filter(|tenant| !tenant.set.is_empty());
            prop_assert!(held.clone().all(|tenant| why.holders.iter().any(|h| h.name == tenant.name && h.set == tenant.set)));
            prop_assert_eq!(why.holders.len(), held.count());
        }
    }

    #[test]
    fn named_tpcs_are_given_or_their_holders_named(
        (topology, tenants) in occupied(9, 8),
        words: [u64; 4],
        by_gpc: bool,
    ) {
        let some = TpcSet::from_words(words);
        let share = if by_gpc {
            Share::Gpcs(topology.gpcs().iter().map(|gpc| gpc.id).filter(|&id| some.contains(id)).collect())
        } else {
            Share::Exact(some & topology.all())
        };
        let named = match share {
            Share::Gpcs(ids) => {
                let chosen = topology.gpcs().iter().filter(|gpc| ids.contains(gpc.id));
                chosen.fold(TpcSet::EMPTY, |set, gpc| set | gpc.tpcs)
            }
            _ => some & topology.all(),
        };
        if named.is_empty() {
            return Ok(());
        }
        let free = free_of(&topology, &tenants);
        match plan(&topology, &tenants, share) {
            Ok(plan) => {
                prop_assert_eq!(plan.set, named);
                prop_assert!(named.is_subset(&free));
                check_sums(&topology, &plan);
            }
            Err(PlanError::Taken(why)) => {
                let conflicts = why.conflicts.iter().fold(TpcSet::EMPTY, |all, holder| all | holder.set);
                prop_assert_eq!(conflicts & named, named - free);
                prop_assert!(why.conflicts.iter().all(|holder| !holder.set.is_disjoint(&named)));
                prop_assert_eq!(suggested(&why.to_string()), why.fits.clone());
                prop_assert_eq!(why.fits.is_empty(), free.is_empty());
                for fits in &why.fits {
                    let plan = plan(&topology, &tenants, fits).unwrap();
                    prop_assert!(plan.set.is_subset(&free) && plan.set.len() <= named.len().max(plan.set.len()));
                }
                for holder in &why.conflicts {
                    let named_one = std::format!("`{}` holds", holder.name);
                    prop_assert!(why.to_string().contains(&named_one));
                }
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn percentages_of_one_whole_all_fit(
        (topology, _) in occupied(9, 9),
        cuts in prop::collection::vec(0..=100_000u32, 0..8),
    ) {
        let mut cuts = cuts;
        cuts.extend([0, 100_000]);
        cuts.sort_unstable();
        let mut tenants = vec![];
        for (i, pair) in cuts.windows(2).enumerate() {
            match plan(&topology, &tenants, Share::Percent(pair[1] - pair[0])) {
                Ok(plan) => tenants.push(present(&i.to_string(), plan.set)),
                // Nothing, or less than one TPC.
                Err(PlanError::Share(_)) => {}
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }

    #[test]
    fn a_tenant_keeps_what_it_can(
        (topology, tenants) in occupied(10, 9),
        who: Index,
        wanted in 1..=90u32,
    ) {
        if tenants.is_empty() {
            return Ok(());
        }
        let tenant = who.get(&tenants);
        let own = tenant.set;
        let free = free_of(&topology, &tenants);
        match replan(&topology, &tenants, &tenant.name, Share::Tpcs(wanted)) {
            Ok(plan) => {
                prop_assert_eq!(plan.set.len(), wanted);
                prop_assert!(plan.set.is_subset(&(free | own)));
                prop_assert_eq!((plan.set & own).len(), wanted.min(own.len()));
                check_sums(&topology, &plan);
                if wanted <= own.len() {
                    check_left_over(&topology, own, &plan);
                    stays_as_it_is(&topology, &tenants, tenant, &plan)?;
                } else {
                    grows_at_home_first(&topology, free, own, &plan)?;
                }
            }
            Err(PlanError::NotEnough(why)) => {
                prop_assert!(wanted > (free | own).len());
                prop_assert_eq!((why.free, why.own), (free | own, own));
                if let Some(fits) = why.fits {
                    prop_assert_eq!(replan(&topology, &tenants, &tenant.name, fits).map(|plan| plan.set), Ok(free | own));
                }
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn no_part_of_its_own_is_better((topology, tenants) in occupied(5, 5), who: Index, count: Index) {
        let mut tenants = tenants;
        tenants.retain(|tenant| !tenant.set.is_empty());
        if tenants.is_empty() {
            return Ok(());
        }
        let who = who.index(tenants.len());
        tenants[who].set = tenants[who].set.lowest(12);
        let (tenant, own) = (&tenants[who], tenants[who].set);
        let wanted = 1 + count.index(own.len() as usize) as u32;
        let plan = replan(&topology, &tenants, &tenant.name, Share::Tpcs(wanted)).unwrap();
        // GPCs count as whole if the tenant is the only one there, and what is left over is its
        // own.
        let usable = free_of(&topology, &tenants) | own;
        let cost = |set| {
            let (count, whole, _, cluster, ids) = cost(&topology, usable, set);
            let touched = topology.gpcs().iter().filter(|gpc| ids.contains(&gpc.id));
            let left_over: u32 = touched.map(|gpc| (gpc.tpcs & (own - set)).len()).sum();
            (count, whole, left_over, cluster, ids)
        };
        prop_assert_eq!(cost(plan.set), subsets(own, wanted).map(cost).min().unwrap());
    }
}

/// The same share again changes nothing.
fn stays_as_it_is(
    topology: &Topology,
    tenants: &[Present],
    tenant: &Present,
    plan: &Plan,
) -> Result<(), TestCaseError> {
    let mut tenants = tenants.to_vec();
    for other in tenants.iter_mut().filter(|other| other.name == tenant.name) {
        other.set = plan.set;
    }
    let again = replan(topology, &tenants, &tenant.name, Share::Tpcs(plan.set.len()));
    prop_assert_eq!(again.as_ref(), Ok(plan));
    Ok(())
}

fn grows_at_home_first(
    topology: &Topology,
    free: TpcSet,
    own: TpcSet,
    plan: &Plan,
) -> Result<(), TestCaseError> {
    let home = topology.gpcs().iter().filter(|gpc| !gpc.tpcs.is_disjoint(&own));
    let home_free = home.clone().fold(TpcSet::EMPTY, |all, gpc| all | gpc.tpcs & free);
    let new = plan.set - own;
    if new.is_subset(&home_free) {
        // The largest cluster that growth by so many can make.
        let best = home.map(|gpc| {
            let (has, room) = ((gpc.tpcs & own).len(), (gpc.tpcs & free).len());
            has + room.min(new.len())
        });
        prop_assert_eq!(plan.max_cluster_sms, best.max().unwrap() * topology.sms_per_tpc());
    } else {
        prop_assert!(home_free.is_subset(&plan.set), "elsewhere while there is room at home");
        // The rest is what a new tenant of that size would get elsewhere.
        let elsewhere = topology.gpcs().iter().filter(|gpc| gpc.tpcs.is_disjoint(&own));
        let elsewhere = elsewhere.fold(TpcSet::EMPTY, |all, gpc| all | gpc.tpcs & free);
        let rest = new - home_free;
        let blocked = present("the others", topology.all() - elsewhere);
        let alone = super::plan(topology, &[blocked], Share::Tpcs(rest.len()));
        prop_assert_eq!(alone.map(|plan| plan.set), Ok(rest));
    }
    Ok(())
}

#[test]
fn two_halves_of_an_h200_are_whole_gpcs() {
    let h200 = h200();
    let first = plan(&h200, &[], share("50%")).unwrap();
    let tenants = [present("a", first.set)];
    let second = plan(&h200, &tenants, share("50%")).unwrap();
    assert_eq!(first.set | second.set, h200.all());
    for plan in [&first, &second] {
        assert_eq!(plan.gpcs.len(), 4);
        // Room for a cluster of 16 blocks of one SM each.
        assert_eq!(plan.max_cluster_sms, 18);
    }
}

#[test]
fn thirds_fit_on_boards_of_66_and_of_54_tpcs() {
    for topology in [h200(), round_robin(&[8, 8, 8, 8, 8, 7, 7], 8)] {
        for parts in [["33%", "33%", "34%"], ["33.33%"; 3], ["34%", "33%", "33%"]] {
            let mut tenants = vec![];
            for (i, part) in parts.into_iter().enumerate() {
                let plan = plan(&topology, &tenants, share(part)).unwrap();
                tenants.push(present(&i.to_string(), plan.set));
            }
        }
    }
}

#[test]
fn left_over_room_is_used_before_a_whole_gpc() {
    let h200 = h200();
    let big = plan(&h200, &[], share("13tpc")).unwrap();
    assert_eq!(big.gpcs, [(2, 8), (3, 5)]);
    let mut tenants = vec![present("big", big.set)];
    // Three are left in GPC 3: exactly what the next one wants.
    let small = plan(&h200, &tenants, share("3tpc")).unwrap();
    assert_eq!(small.gpcs, [(3, 3)]);
    tenants.push(present("small", small.set));
    // A whole one is broken only where no other is large enough.
    let next = plan(&h200, &tenants, share("9tpc")).unwrap();
    assert_eq!(next.gpcs, [(0, 9)]);
}

#[test]
fn refusals_read_well() {
    let h200 = h200();
    let serve = plan(&h200, &[], share("50%")).unwrap();
    let mut tenants = vec![present("serve", serve.set)];
    let message =
        |tenants: &[Present], asked: &str| plan(&h200, tenants, share(asked)).unwrap_err().to_string();

    assert_eq!(
        message(&tenants, "80sm"),
        "80sm (40 TPCs, 80 SMs) does not fit: 33 of 66 TPCs are free; tenant `serve` holds 33 TPCs \
         (0,2-4,8,10-12,16,...); ask for `--sm 66sm` or less, or shrink or end a tenant",
    );
    assert_eq!(
        message(&[], "80tpc"),
        "80tpc (80 TPCs, 160 SMs) does not fit: 66 of 66 TPCs are free; ask for `--sm 66tpc` or less",
    );
    assert_eq!(
        message(&tenants, "tpc:0-2"),
        "tpc:0-2 is not free: tenant `serve` holds 2 TPCs of it (tpc:0,2); ask for `--sm tpc:1`, or `--sm 3tpc`, \
         or shrink or end a tenant",
    );
    assert_eq!(
        message(&tenants, "gpc:4-5"),
        "gpc:4-5 is not free: tenant `serve` holds 8 TPCs of it (tpc:4,12,20,28,36,44,52,60); \
         ask for `--sm gpc:1,5`, or `--sm 16tpc`, or shrink or end a tenant",
    );
    assert_eq!(message(&tenants, "gpc:9"), "gpc:9: this device has no GPC 9; its GPCs are 0-7");
    assert_eq!(message(&tenants, "tpc:66"), "tpc:66: this device has no TPC 66; its TPCs are 0-65");

    tenants.push(present("train", h200.all() - serve.set));
    assert_eq!(
        message(&tenants, "1tpc"),
        "1tpc (1 TPC, 2 SMs) does not fit: none of 66 TPCs is free; tenant `serve` holds 33 TPCs \
         (0,2-4,8,10-12,16,...), tenant `train` holds 33 TPCs (1,5-7,9,13-15,17,...); shrink or end a tenant",
    );
    assert_eq!(
        replan(&h200, &tenants, "train", share("60%")).unwrap_err().to_string(),
        "60% (39 TPCs, 78 SMs) does not fit: 33 of 66 TPCs are free, the 33 of this tenant counted; \
         tenant `serve` holds 33 TPCs (0,2-4,8,10-12,16,...); ask for `--sm 51%` or less, or shrink or end a tenant",
    );
    let crowd: Vec<Present> =
        (0..66).map(|tpc| present(&alloc::format!("t{tpc}"), TpcSet::single(tpc))).collect();
    assert_eq!(
        message(&crowd, "1tpc"),
        "1tpc (1 TPC, 2 SMs) does not fit: none of 66 TPCs is free; tenant `t0` holds 1 TPC (0), tenant `t1` holds 1 TPC (1), \
         tenant `t2` holds 1 TPC (2), tenant `t3` holds 1 TPC (3), tenant `t4` holds 1 TPC (4), 61 others 61 TPCs; \
         shrink or end a tenant",
    );
    let unknown =
        |tenants: &[Present]| replan(&h200, tenants, "trian", share("1tpc")).unwrap_err().to_string();
    assert_eq!(unknown(&tenants), "there is no tenant `trian`; there are `serve`, `train`");
    assert_eq!(unknown(&[]), "there is no tenant `trian`; there are no tenants");
}

#[test]
fn shrinking_gives_whole_gpcs_back() {
    let h200 = h200();
    let tenants = [present("train", plan(&h200, &[], share("33tpc")).unwrap().set)];
    let smaller = replan(&h200, &tenants, "train", share("20%")).unwrap();
    assert_eq!(smaller.gpcs, [(2, 8), (3, 5)]);
    let exact = replan(&h200, &tenants, "train", share("gpc:1")).unwrap();
    assert_eq!(exact.gpcs, [(1, 9)]);
}

/// The largest device there can be, in the worst state: planning is bounded.
#[test]
fn the_largest_device_is_planned() {
    let sizes: Vec<u16> = (0..32).map(|i| if i % 2 == 0 { 3 + i / 4 % 6 } else { 8 }).collect();
    let topology = round_robin(&sizes, 8);
    let scattered: TpcSet = topology.all().iter().filter(|tpc| tpc % 5 == 0).collect();
    let tenants = [present("scattered", scattered)];
    for wanted in 1..=free_of(&topology, &tenants).len() {
        let plan = plan(&topology, &tenants, Share::Tpcs(wanted)).unwrap();
        assert_eq!(plan.set.len(), wanted);
        assert!(plan.set.is_disjoint(&scattered));
    }
}

#[test]
fn tpcs_beyond_the_device_belong_to_no_tenant() {
    let topology = round_robin(&[2, 2], 2);
    let tenants = [present("odd", "3,200".parse().unwrap())];
    let plan = plan(&topology, &tenants, share("3tpc")).unwrap();
    assert_eq!(plan.set, TpcSet::first(3));
    let error: String = super::plan(&topology, &tenants, share("100%")).unwrap_err().to_string();
    assert!(error.contains("`odd` holds 1 TPC (3)"), "{error}");
}
