//! The places of partitions: packed, spread, and with others making room.

use crate::common;

use std::collections::BTreeSet;

use common::{Tenant, World, tpcs};
use serde_json::Value;

fn set(row: &Value) -> BTreeSet<u32> {
    tpcs(row["tpcs"].as_str().unwrap()).into_iter().collect()
}

/// TPCs by GPC.
fn parts(row: &Value) -> Vec<u64> {
    row["gpcs"].as_array().unwrap().iter().map(|part| part["tpcs"].as_u64().unwrap()).collect()
}

fn dry_run(world: &World, options: &str) -> Value {
    serde_json::from_str(&world.ok(&format!("run {options} --dry-run --json"))).unwrap()
}

/// TPCs of the largest GPC, and how many the device has.
fn device(world: &World) -> (u64, u64) {
    let whole = dry_run(world, "--sm 100%");
    let sizes = whole["gpcs"].as_array().unwrap().iter().map(|part| part["tpcs_of_gpc"].as_u64().unwrap());
    (sizes.max().unwrap(), set(&whole).len() as u64)
}

#[test]
fn packed_and_spread_are_what_they_say() {
    let world = World::new();
    let packed = dry_run(&world, "--sm 50%");
    let spread = dry_run(&world, "--sm 50% --place spread");
    assert_eq!(packed, dry_run(&world, "--sm 50% --place packed"));
    assert_eq!(packed["sms"], spread["sms"]);
    assert!(parts(&spread).len() > parts(&packed).len(), "{spread}");
    // A GPC has one more than another, or all that it can have.
    let gpcs = spread["gpcs"].as_array().unwrap();
    let most = parts(&spread).into_iter().max().unwrap();
    for part in gpcs {
        assert!(
            part["tpcs"].as_u64().unwrap() + 1 >= most || part["tpcs"] == part["tpcs_of_gpc"],
            "{spread}"
        );
    }
    if packed["clusters"].is_null() {
        return;
    }
    let largest = |row: &Value| row["clusters"]["largest_sms"].as_u64().unwrap();
    assert!(largest(&packed) > largest(&spread));
    for row in [&packed, &spread] {
        for active in row["clusters"]["active"].as_array().unwrap() {
            let (blocks, clusters) =
                (active["blocks"].as_u64().unwrap(), active["clusters"].as_u64().unwrap());
            assert_eq!(clusters == 0, blocks > largest(row), "{row}");
            assert!(blocks * clusters <= row["sms"].as_u64().unwrap());
        }
    }
    // Nothing was made.
    assert!(world.ps().is_empty());
    let said = world.ok("run --sm 50% --dry-run");
    assert!(said.contains("GPCs (TPCs): ") && said.contains("clusters of up to"), "{said}");
}

#[test]
fn a_tenant_stays_spread_as_it_grows() {
    let world = World::new();
    let _tenant = world.idle("--name wide --sm 20% --place spread");
    let before = world.row("wide");
    assert_eq!((&before["place"], parts(&before).len() > 2), (&"spread".into(), true), "{before}");
    world.ok("set wide --sm 40%");
    let after = world.row("wide");
    assert!(set(&before).is_subset(&set(&after)));
    let (most, fewest) = (parts(&after).into_iter().max().unwrap(), parts(&after).into_iter().min().unwrap());
    assert!(most - fewest <= most.div_ceil(2), "{after}");
    let largest =
        parts(&after).into_iter().max().unwrap() * after["sms"].as_u64().unwrap() / set(&after).len() as u64;
    let clusters = &after["clusters"];
    assert!(clusters.is_null() || clusters["largest_sms"] == largest, "{after}");
}

#[test]
fn tenants_move_only_on_request_and_as_few_as_possible() {
    let world = World::new();
    let (largest, count) = device(&world);
    let mut wide =
        Tenant::start(&mut world.gpu("--name wide --sm 50% --place spread --isolation own", "loop"));
    wide.next_line();
    let before = world.row("wide");
    let wanted = largest - 1;
    // Every GPC is half full.
    let plain = dry_run(&world, &format!("--sm {wanted}tpc"));
    assert!(parts(&plain).len() > 1 && plain["moves"] == Value::Array(vec![]), "{plain}");
    let compact = dry_run(&world, &format!("--sm {wanted}tpc --compact"));
    assert_eq!(parts(&compact), [wanted], "{compact}");
    let moved: u64 =
        compact["moves"].as_array().unwrap().iter().map(|made| made["tpcs"].as_u64().unwrap()).sum();
    let taken = set(&compact).intersection(&set(&before)).count() as u64;
    assert_eq!(moved, taken, "only the one in the way");
    assert_eq!(world.row("wide")["tpcs"], before["tpcs"], "a dry run moves no tenant");

    let _narrow = world.idle(&format!("--name narrow --sm {wanted}tpc --compact"));
    let (wide_row, narrow) = (world.row("wide"), world.row("narrow"));
    assert_eq!(narrow["tpcs"], compact["tpcs"]);
    assert!(set(&wide_row).is_disjoint(&set(&narrow)));
    assert_eq!(set(&wide_row).len(), set(&before).len());
    // The tenant that moved obeys at its next launch.
    let sms: Vec<u32> = set(&wide_row).into_iter().flat_map(|tpc| [2 * tpc, 2 * tpc + 1]).collect();
    let mut lines = 0;
    while common::sms(&wide.next_line()) != sms {
        lines += 1;
        assert!(lines < 10_000, "it never moves");
    }
    for _ in 0..3 {
        assert_eq!(common::sms(&wide.next_line()), sms);
    }
    assert!(count > largest);
    world.ok("kill wide");
}

#[test]
fn named_tpcs_are_cleared_and_never_moved() {
    let world = World::new();
    let _first = world.idle("--name first --sm 6tpc");
    let held = world.row("first");
    let one = set(&held).into_iter().next().unwrap();
    let error = world.refused(&format!("run --sm tpc:{one} --dry-run"));
    assert!(error.contains("first"), "{error}");
    let plan = dry_run(&world, &format!("--sm tpc:{one} --compact"));
    assert_eq!(plan["moves"][0]["from"], one.to_string());
    let _named = world.idle(&format!("--name named --sm tpc:{one} --compact"));
    assert_eq!(world.row("named")["tpcs"], one.to_string());
    assert_eq!(set(&world.row("first")).len(), 6);
    // TPCs promised by number stay.
    let error = world.refused(&format!("run --sm tpc:{one} --compact -- true"));
    assert!(error.contains("named"), "{error}");
    // `set` gets them too, in an order without overlap.
    let other = set(&world.row("first")).into_iter().next().unwrap();
    let said = world.ok(&format!("set named --sm tpc:{other} --compact"));
    assert!(said.contains("first: 1 TPC moved from"), "{said}");
    assert!(set(&world.row("first")).is_disjoint(&set(&world.row("named"))));
}

#[test]
fn tenants_are_brought_back_together() {
    let world = World::new();
    let (largest, count) = device(&world);
    let mut big = world.idle(&format!("--name big --sm {}tpc", count - largest));
    let _small = world.idle("--name small");
    // The rest of the other lies in several GPCs.
    world.ok(&format!("set small --sm {}tpc", largest - 1));
    assert!(parts(&world.row("small")).len() > 1, "{}", world.row("small"));
    world.ok("kill big");
    big.exit_code();
    let said = world.ok("set --compact");
    assert!(said.starts_with("small: ") && said.contains("moved from"), "{said}");
    assert_eq!(parts(&world.row("small")).len(), 1);
    assert!(world.ok("set --compact").contains("nothing to move"));
    assert!(world.ok("set small --compact").starts_with("small: "));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let world = World::new();
    for (line, part) in [
        ("run --sm gpc:0 --place spread --dry-run", "--place"),
        ("run --sm tpc:0 --place packed --dry-run", "--place"),
        ("run --sm 10% --place sideways --dry-run", "packed"),
        ("set --compact --sm 10%", "without a tenant"),
        ("run --sm 10% --json -- true", "--dry-run"),
        ("run --sm 200tpc --compact --dry-run", "does not fit"),
    ] {
        let error = world.refused(line);
        assert!(error.contains(part), "{line}: {error}");
    }
}
