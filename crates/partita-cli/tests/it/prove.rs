//! `partita prove`: every block is counted, and a block outside its mask is found.

use crate::common;

use common::{World, needs_simulator, text};
use serde_json::Value;

fn report(world: &World, line: &str, code: i32) -> Value {
    let output = world.line(line);
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    assert_eq!(text(&output.stderr), "");
    serde_json::from_slice(&output.stdout).expect("prove prints JSON")
}

#[test]
fn masks_hold_by_every_route() {
    let world = World::new();
    let report = report(&world, "prove --blocks 50000 --masks 300 --seed 5 --json", 0);
    assert!(report["blocks"].as_u64().unwrap() >= 50_000, "{report}");
    assert_eq!((&report["masks"], &report["seed"]), (&300.into(), &5.into()));
    assert_eq!((&report["escaped_blocks"], &report["escapes"]), (&0.into(), &Value::Array(vec![])));
    assert_eq!(report["sms_used"], report["sms"]);
    let routes = report["routes"].as_array().unwrap();
    let sum = |key: &str| routes.iter().map(|row| row[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("blocks"), report["blocks"].as_u64().unwrap());
    assert_eq!(sum("launches"), report["launches"].as_u64().unwrap());
    for row in routes {
        assert!(row["launches"].as_u64().unwrap() >= 50, "{row}");
    }
    // 3 / n, and each mask's blocks belong together.
    let bound = report["escape_bound_per_block"].as_f64().unwrap() * report["blocks"].as_f64().unwrap();
    assert!((bound - 3.0).abs() < 1e-9, "{report}");
    assert_eq!(report["escape_bound_per_mask"], 0.01);
    assert!(report["changes_under_load"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn the_same_seed_is_the_same_proof() {
    let world = World::new();
    let [one, same, other] = ["8", "8", "9"].map(|seed| {
        report(&world, &format!("prove --blocks 5000 --masks 64 --seed {seed} --json"), 0)["routes"].clone()
    });
    assert_eq!(one, same);
    assert_ne!(one, other);
}

#[test]
fn a_mask_that_enables_too_much_is_found() {
    let world = World::new();
    let wrong = report(&world, "prove --blocks 20000 --masks 64 --seed 1 --fault-every 16 --json", 1);
    let escapes = wrong["escapes"].as_array().unwrap();
    assert!(!escapes.is_empty());
    assert!(wrong["escape_bound_per_block"].is_null() && wrong["escape_bound_per_mask"].is_null());
    let sms_per_tpc = wrong["sms"].as_u64().unwrap() / 66;
    for escape in escapes {
        assert_eq!(escape["mask"].as_u64().unwrap() % 16, 0, "only these are wrong: {escape}");
        let tpc = (escape["sm"].as_u64().unwrap() / sms_per_tpc.max(1)) as u32;
        assert!(!common::tpcs(escape["tpcs"].as_str().unwrap()).contains(&tpc), "{escape}");
    }
    let said = world.line("prove --blocks 20000 --masks 64 --seed 1 --fault-every 16");
    assert_eq!(said.status.code(), Some(1));
    let said = text(&said.stdout);
    assert!(
        said.contains("ESCAPED: ") && said.contains(" on SM ") && !said.contains("rule of three"),
        "{said}"
    );
}

#[test]
fn every_simulated_device_is_proved() {
    if needs_simulator("it has one device") {
        return;
    }
    let world = World::new();
    let known = world.refused("prove --gpu sim:nothing");
    // …, or sim:NAME (sim:h200, sim:a100, …)
    let list = known.rsplit_once('(').and_then(|(_, rest)| rest.split_once(')')).map(|(list, _)| list);
    let devices: Vec<&str> = list.unwrap_or_else(|| panic!("{known}")).split(", ").collect();
    assert!(devices.len() >= 3, "{known}");
    for device in devices.into_iter().filter(|device| !partita_testing::is_for_long_runs(device)) {
        // A quarter of the masks are single TPCs in turn, so that each TPC of the largest device
        // has its own.
        let report = report(&world, &format!("prove --gpu {device} --blocks 6400 --masks 320 --json"), 0);
        assert_eq!(report["sms_used"], report["sms"], "{device}");
    }
}

#[test]
fn the_table_reads() {
    let world = World::new();
    let said = world.ok("prove --blocks 2000 --masks 10 --seed 3");
    for part in ["seed 3", "cooperative", "escaped blocks        0", "rule of three", "SMs used"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    for line in ["prove --blocks 0", "prove --masks x", "prove --gpu sim:nothing"] {
        assert!(!world.refused(line).is_empty());
    }
}
