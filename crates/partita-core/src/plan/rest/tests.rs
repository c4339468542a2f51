use std::string::ToString;
use std::vec::Vec;

use proptest::prelude::*;

use super::super::order::tests::make;
use super::{Part, level, plan_beside};
use crate::plan::order::Way;
use crate::testing::{h200, occupied};
use crate::{Ask, Compaction, Placement, PlanError, Present, Share, Topology, TpcSet, plan};

fn promise<'a>(
    topology: &'a Topology,
    share: Share,
) -> impl Fn(&[Present]) -> Result<Compaction, PlanError> + 'a {
    move |present| {
        plan(topology, present, share).map(|plan| Compaction { plan, moves: Vec::new(), stores: Vec::new() })
    }
}

/// The tenants after the stores, checked one after the other: none overlaps, none is empty.
fn follow(tenants: &[Present], planned: &[crate::Store]) -> Vec<Present> {
    let last = |name: &str| planned.iter().rev().find(|store| store.tenant == name).map(|store| store.set);
    let mut ways: Vec<Way> = tenants
        .iter()
        .map(|tenant| Way {
            name: tenant.name.clone(),
            now: tenant.set,
            then: last(&tenant.name).unwrap_or(tenant.set),
        })
        .collect();
    make(&mut ways, planned, TpcSet::EMPTY);
    ways.into_iter().map(|way| Present { name: way.name, set: way.then }).collect()
}

/// Every second tenant has no share.
fn rests(tenant: &Present) -> Option<Placement> {
    let number: usize = tenant.name[1..].parse().unwrap();
    number.is_multiple_of(2).then_some(if number.is_multiple_of(4) {
        Placement::Packed
    } else {
        Placement::Spread
    })
}

fn assert_even(parts: impl Iterator<Item = u32> + Clone, rest: u32) {
    let (least, most) = (parts.clone().min().unwrap(), parts.clone().max().unwrap());
    assert!(least >= 1 && most - least <= 1, "{least} to {most}");
    assert_eq!(parts.sum::<u32>(), rest);
}

proptest! {
    #[test]
    fn tenants_without_a_share_divide_what_the_shares_leave(
        (topology, mut tenants) in occupied(9, 8),
        wanted in proptest::option::of(0..=1000u32),
    ) {
        tenants.retain(|tenant| !tenant.set.is_empty());
        let firm: Vec<&Present> = tenants.iter().filter(|tenant| rests(tenant).is_none()).collect();
        let free = firm.iter().fold(topology.all(), |free, tenant| free - tenant.set).len();
        let resting = (tenants.len() - firm.len()) as u32;
        let count = wanted.map(|part| (part * topology.tpc_count()).div_ceil(1000).max(1));
        let placed = promise(&topology, Share::Tpcs(count.unwrap_or(1)));
        let part = match count {
            Some(_) => Part::Share { name: None, plan: &placed },
            None => Part::Even(Placement::Packed),
        };
        let planned = plan_beside(&topology, &tenants, &part, rests);
        // It fits exactly if each tenant without a share keeps a TPC.
        prop_assert_eq!(planned.is_ok(), free >= resting + count.unwrap_or(1));
        let Ok(planned) = planned else { return Ok(()) };
        let after = follow(&tenants, &planned.stores);
        for (before, after) in tenants.iter().zip(&after) {
            prop_assert!(after.set.is_disjoint(&planned.plan.set));
            // A share is a promise: nobody else's request changes it.
            prop_assert!(rests(before).is_some() || before.set == after.set);
        }
        let new = planned.plan.set.len();
        prop_assert_eq!(count.unwrap_or(new), new);
        let parts = after.iter().filter(|tenant| rests(tenant).is_some()).map(|tenant| tenant.set.len());
        match count {
            Some(count) if resting > 0 => assert_even(parts, free - count),
            Some(_) => {}
            None => assert_even(parts.chain([new]), free),
        }
        // When it leaves, the others have even parts of the rest again, and a second look changes
        // nothing.
        let stores = level(&topology, &after, rests).unwrap();
        let again = follow(&after, &stores);
        let parts = again.iter().filter(|tenant| rests(tenant).is_some()).map(|tenant| tenant.set.len());
        if resting > 0 {
            assert_even(parts, free);
        }
        prop_assert_eq!(level(&topology, &again, rests).unwrap(), []);
    }

    #[test]
    fn one_that_shrinks_keeps_tpcs_that_it_has(number in 1..20u32) {
        let topology = h200();
        let mut tenants: Vec<Present> = Vec::new();
        for i in 0..number {
            let part = Part::Even(Placement::Packed);
            let planned = plan_beside(&topology, &tenants, &part, |_| Some(Placement::Packed)).unwrap();
            let after = follow(&tenants, &planned.stores);
            for (before, after) in tenants.iter().zip(&after) {
                prop_assert!(after.set.is_subset(&before.set));
            }
            tenants = after;
            tenants.push(Present { name: std::format!("t{i}"), set: planned.plan.set });
        }
    }
}

#[test]
fn a_share_takes_named_tpcs_from_tenants_without_one() {
    let topology = h200();
    let all = [Present { name: "a".into(), set: topology.all() }];
    let ask = |text: &str| Ask::from(text.parse::<Share>().unwrap());
    let run = |text: &str| {
        let placed = promise(&topology, ask(text).share);
        plan_beside(&topology, &all, &Part::Share { name: None, plan: &placed }, |_| Some(Placement::Packed))
    };
    let planned = run("tpc:0-9").unwrap();
    assert_eq!(planned.plan.set, "0-9".parse().unwrap());
    assert_eq!(planned.stores.last().unwrap().set, "10-65".parse().unwrap());
    let refused = run("100%").unwrap_err().to_string();
    assert!(refused.contains("65 of 66 TPCs are free; tenant `a` holds 1 TPC (0)"), "{refused}");
    // With its own share, it is no longer divided.
    let placed = promise(&topology, Share::Percent(50_000));
    let part = Part::Share {
        name: Some("a"),
        plan: &|present: &[Present]| {
            assert_eq!(present.len(), 1);
            placed(&[])
        },
    };
    assert_eq!(plan_beside(&topology, &all, &part, |_| Some(Placement::Packed)).unwrap().plan.set.len(), 33);
}
