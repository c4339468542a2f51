use std::string::ToString;
use std::vec::Vec;

use proptest::prelude::*;

use super::Access;
use crate::testing::{h200, occupied};
use crate::{PlanError, Present, Remedy, Share, Topology, all_free, plan, replan};

/// Follows the commands that make room.
fn follow(topology: &Topology, tenants: &mut [Present], remedy: &Remedy) {
    let Remedy::Shrink(all) = remedy else { return };
    for resize in all {
        let set = replan(topology, tenants, &resize.tenant, resize.share).unwrap().set;
        let mut named = tenants.iter_mut().filter(|tenant| tenant.name == resize.tenant);
        let tenant = named.next().unwrap();
        // A tenant that shrinks keeps running on TPCs that it has.
        assert!(set.is_subset(&tenant.set) && set.len() < tenant.set.len());
        tenant.set = set;
    }
}

fn remedy_of(error: &PlanError) -> Remedy {
    match error {
        PlanError::NotEnough(error) => error.remedy.clone(),
        PlanError::NoneFree(error) => error.remedy.clone(),
        PlanError::Taken(error) => error.remedy.clone(),
        other => panic!("{other}"),
    }
}

proptest! {
    #[test]
    fn the_commands_make_room_and_change_only_what_the_caller_may_change(
        (topology, tenants) in occupied(9, 8),
        form in 0..4u8,
        part in 1..=1000u32,
        may in prop::collection::vec(0..3u8, 12),
    ) {
        let count = (part * topology.tpc_count()).div_ceil(1000);
        let share = match form {
            0 => Share::Tpcs(count),
            1 => Share::Sms(count * topology.sms_per_tpc()),
            2 => Share::percent_of_tpcs(count, &topology).unwrap(),
            _ => Share::Exact(topology.all().lowest(count)),
        };
        let Err(error) = plan(&topology, &tenants, share) else { return Ok(()) };
        let access = |name: &str| match may[name[1..].parse::<usize>().unwrap()] {
            0 => Access::Nothing,
            1 => Access::End,
            _ => Access::Shrink,
        };
        let remedy = remedy_of(&error.clone().with_remedy(&topology, access, |_| "kill"));
        match &remedy {
            Remedy::Shrink(all) => {
                prop_assert!(all.iter().all(|resize| access(&resize.tenant) == Access::Shrink));
            }
            Remedy::End { tenant, .. } => prop_assert!(access(tenant) != Access::Nothing),
            Remedy::Ask => {}
            Remedy::Unknown | Remedy::Reserved => prop_assert!(false, "{error}"),
        }
        let mut after = tenants.clone();
        follow(&topology, &mut after, &remedy);
        let is_shrunk = matches!(remedy, Remedy::Shrink(_));
        prop_assert_eq!(plan(&topology, &after, share).is_ok(), is_shrunk);
        // Where smaller shares suffice, they are offered.
        let spare: u32 = tenants.iter().filter(|tenant| access(&tenant.name) == Access::Shrink)
            .map(|tenant| tenant.set.len().saturating_sub(1)).sum();
        let free = tenants.iter().fold(topology.all(), |free, tenant| free - tenant.set);
        if form < 3 {
            prop_assert_eq!(is_shrunk, free.len() + spare >= count);
        }
    }

    #[test]
    fn a_request_for_all_free_ones_gets_some((topology, mut tenants) in occupied(9, 8)) {
        match all_free(&topology, &tenants) {
            Ok(free) => prop_assert!(plan(&topology, &tenants, Share::Exact(free)).is_ok()),
            Err(error) => {
                let remedy = remedy_of(&error.with_remedy(&topology, |_| Access::Shrink, |_| "kill"));
                follow(&topology, &mut tenants, &remedy);
                prop_assert_eq!(all_free(&topology, &tenants).is_ok(), matches!(remedy, Remedy::Shrink(_)));
            }
        }
    }
}

#[test]
fn refusals_name_the_command_that_makes_room() {
    let h200 = h200();
    let all = [Present { name: "a".into(), set: h200.all() }];
    let says = |tenants: &[Present], asked: &str, may: Access| {
        let share: Share = asked.parse().unwrap();
        plan(&h200, tenants, share).unwrap_err().with_remedy(&h200, |_| may, |_| "kill").to_string()
    };
    let ends: Vec<(&str, Access, &str)> = [
        ("10%", Access::Shrink, "; make room with `partita set a --sm 92%`"),
        ("20tpc", Access::Shrink, "; make room with `partita set a --sm 46tpc`"),
        ("20sm", Access::Shrink, "; make room with `partita set a --sm 112sm`"),
        ("100%", Access::Shrink, "; end a tenant with `partita kill a`"),
        ("10%", Access::Nothing, "; ask the owner of a tenant to shrink or end it"),
        ("10%", Access::Reserved, "; a holds 66 TPCs (0-65); have root change the reservation"),
        ("10%", Access::End, "; end a tenant with `partita kill a`"),
        ("tpc:0-1", Access::Shrink, "; make room with `partita set a --sm tpc:2-65`"),
        ("tpc:0-65", Access::Shrink, "; end a tenant with `partita kill a`"),
    ]
    .into();
    for (asked, may, end) in ends {
        let said = says(&all, asked, may);
        assert!(said.ends_with(end), "{said}");
    }
    let none =
        all_free(&h200, &all).unwrap_err().with_remedy(&h200, |_| Access::Shrink, |_| "kill").to_string();
    assert_eq!(
        none,
        "none of 66 TPCs is free; tenant `a` holds 66 TPCs (0-65); make room with `partita set a --sm 50%`"
    );
    let two =
        ["0-32", "33-65"].map(|set| Present { name: set.replace('-', "to"), set: set.parse().unwrap() });
    let said = says(&two, "40tpc", Access::Shrink);
    assert!(said.ends_with("`partita set 0to32 --sm 1tpc` and `partita set 33to65 --sm 25tpc`"), "{said}");
}
