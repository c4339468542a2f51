//! `partita topology`: several sources that agree place every unit, and a drawing shows them.

use crate::common;

use std::collections::BTreeSet;
use std::fs;

use common::{World, needs_simulator, text};
use serde_json::Value;

fn chart(world: &World, options: &str) -> Value {
    serde_json::from_str(&world.ok(&format!("topology --json {options}"))).expect("topology prints JSON")
}

fn numbers(array: &Value) -> Vec<u64> {
    array.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

/// Each source that is not silent, in the order of the report.
fn speaking(chart: &Value) -> Vec<&str> {
    let sources = chart["sources"].as_array().unwrap().iter();
    sources
        .filter(|source| source["state"] != "silent")
        .map(|source| {
            assert_eq!(source["state"], "agrees", "{source}");
            assert_eq!(source["sms"], chart["sms"], "{source}");
            source["source"].as_str().unwrap()
        })
        .collect()
}

/// Checks what holds of every device, and returns the TPCs of each GPC of the picture.
fn check(chart: &Value) -> Vec<Vec<u64>> {
    let (sms, tpcs) = (chart["sms"].as_u64().unwrap(), chart["tpcs"].as_u64().unwrap());
    assert_eq!(chart["schema"], 1);
    assert_eq!(chart["agree"], true, "{}", chart["disagreements"]);
    assert_eq!(chart["disagreements"].as_array().unwrap().len(), 0);
    assert_eq!(chart["confirmed_sms"].as_u64(), Some(sms), "{}", chart["sources"]);
    let units = chart["units"].as_array().unwrap();
    let all: Vec<u64> = units.iter().flat_map(|unit| numbers(&unit["sms"])).collect();
    assert_eq!(all, (0..sms).collect::<Vec<_>>());
    let bits: BTreeSet<u64> = units.iter().map(|unit| unit["bit"].as_u64().unwrap()).collect();
    assert_eq!(bits.len() as u64, tpcs);
    let mut holes = 0;
    let mut rows = Vec::new();
    for row in chart["gpcs"].as_array().unwrap() {
        let places: Vec<&Value> = (row["cpcs"].as_array().unwrap().iter())
            .flat_map(|cpc| cpc["places"].as_array().unwrap())
            .collect();
        assert_eq!(places.len() as u64, chart["places_per_gpc"].as_u64().unwrap(), "{row}");
        holes += places.iter().filter(|place| place.is_null()).count() as u64;
        let tpcs: Vec<u64> = places.into_iter().filter_map(Value::as_u64).collect();
        let singletons = numbers(&row["singletons"]);
        for &tpc in tpcs.iter().filter(|tpc| !singletons.contains(tpc)) {
            assert_eq!(units[tpc as usize]["gpc"], row["gpc"], "{row}");
        }
        rows.push(tpcs);
    }
    assert_eq!(chart["holes"].as_u64(), Some(holes));
    let drawn: BTreeSet<u64> = rows.iter().flatten().copied().collect();
    assert_eq!(drawn, (0..tpcs).collect());
    rows
}

#[test]
fn every_sm_of_this_gpu_is_placed_by_sources_that_agree() {
    let world = World::plan().on(|dir| vec![("PARTITA_CACHE_DIR", dir.join("cache").into())]);
    let chart = chart(&world, "--fresh");
    check(&chart);
    let speaking = speaking(&chart);
    assert!(speaking.contains(&"control") && speaking.contains(&"probe"), "{}", chart["sources"]);
    assert_eq!(chart["fresh"], true);
    assert_eq!(self::chart(&world, "")["fresh"], false, "it was kept");
}

#[test]
fn an_h200_has_eight_gpcs_of_three_cpcs_and_three_sources_agree() {
    if needs_simulator("it is about one board") {
        return;
    }
    let world = World::new();
    let chart = chart(&world, "--gpu sim:h200");
    let rows = check(&chart);
    assert_eq!(speaking(&chart), ["control", "probe", "clusters"]);
    assert_eq!((&chart["sms"], &chart["holes"]), (&132.into(), &6.into()));
    assert_eq!(chart["gpcs_proved_by"], "clusters");
    let mut sizes: Vec<usize> = rows.iter().map(Vec::len).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [8, 8, 8, 8, 8, 8, 9, 9]);
    for unit in chart["units"].as_array().unwrap() {
        assert_eq!(unit["control"]["predicted_bit"], unit["bit"], "{unit}");
    }
    // Four TPCs of one GPC are scheduled alone, and are GPCs of their own.
    let alone: Vec<u64> =
        chart["gpcs"].as_array().unwrap().iter().flat_map(|row| numbers(&row["singletons"])).collect();
    let gpcs: BTreeSet<u64> =
        alone.iter().map(|&tpc| chart["units"][tpc as usize]["gpc"].as_u64().unwrap()).collect();
    assert_eq!((alone.len(), gpcs), (4, (8..12).collect()));
}

#[test]
fn gpcs_are_proved_where_there_are_no_clusters() {
    if needs_simulator("it is about the catalogue") {
        return;
    }
    for (device, sms_per_tpc, sizes) in
        [("sim:a100", 2, vec![8, 8, 8, 8, 8, 7, 7]), ("sim:gtx1060-3gb", 1, vec![5, 4])]
    {
        let world = World::new();
        let chart = chart(&world, &format!("--gpu {device}"));
        let rows = check(&chart);
        assert_eq!(rows.iter().map(Vec::len).collect::<Vec<_>>(), sizes, "{device}");
        assert_eq!(speaking(&chart), ["control", "probe"]);
        assert_eq!(chart["gpcs_proved_by"], "control");
        assert_eq!(chart["sms_per_tpc"], sms_per_tpc);
        assert_eq!(chart["places_known"], false);

        // So a share by GPC is possible, and has those TPCs.
        let tenant = world.idle(&format!("--gpu {device} --name whole --sm gpc:1 --isolation own"));
        let held = world.row("whole")["tpcs"].as_str().unwrap().to_owned();
        assert_eq!(common::tpcs(&held), rows[1].iter().map(|&tpc| tpc as u32).collect::<Vec<_>>());
        drop(tenant);
    }
}

#[test]
fn every_simulated_device_is_placed_by_sources_that_agree() {
    if needs_simulator("it is about the catalogue") {
        return;
    }
    let world = World::new();
    // The refusal of an unknown name lists those that are known.
    let known = world.refused("topology --gpu sim:none");
    let devices: Vec<&str> = known
        .split([' ', ',', ')', '('])
        .filter(|word| word.starts_with("sim:") && !word.contains("NAME"))
        .collect();
    assert!(devices.contains(&"sim:h200") && devices.len() >= 3, "{known}");
    for device in devices {
        let chart = chart(&world, &format!("--gpu {device}"));
        check(&chart);
        let by_clusters = speaking(&chart).contains(&"clusters");
        assert_eq!(chart["gpcs_proved_by"], if by_clusters { "clusters" } else { "control" }, "{device}");
    }
}

#[test]
fn tenants_are_drawn_with_their_letters() {
    let world = World::new();
    let serve = world.idle("--name serve --sm 4tpc");
    let train = world.idle("--name train --sm 2tpc");
    let chart = chart(&world, "");
    let tenants = chart["tenants"].as_array().unwrap();
    assert_eq!(tenants.len(), 2);
    for (tenant, (letter, name, tpcs)) in tenants.iter().zip([("A", "serve", 4), ("B", "train", 2)]) {
        assert_eq!((&tenant["letter"], &tenant["name"]), (&letter.into(), &name.into()));
        let set = common::tpcs(tenant["tpcs"].as_str().unwrap());
        assert_eq!(set.len(), tpcs);
        assert_eq!(tenant["tpcs"], world.row(name)["tpcs"]);
        for tpc in set {
            assert_eq!(chart["units"][tpc as usize]["tenant"], name);
        }
    }
    let text = world.ok("topology");
    for part in ["A serve: 4 TPCs, 8 SMs", "B train: 2 TPCs, 4 SMs"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(text.matches(" A ").count(), 4 + 1, "{text}");
    drop((serve, train));
}

#[test]
fn the_drawing_fits_a_terminal_and_the_picture_is_written() {
    let world = World::new();
    let devices = if common::is_real() { vec!["0"] } else { vec!["sim:h200", "sim:a100", "sim:gtx1060-3gb"] };
    for device in devices {
        let svg = world.dir().join("gpu.svg");
        let drawing = world.ok(&format!("topology --gpu {device} --svg {}", svg.display()));
        assert!(drawing.lines().all(|line| line.chars().count() <= 100), "{drawing}");
        assert!(!drawing.contains('\x1b'), "colours are for terminals");
        let frame: BTreeSet<usize> = (drawing.lines().filter(|line| line.ends_with(['│', '┤', '┐', '┘'])))
            .map(|line| line.chars().count())
            .collect();
        assert_eq!(frame.len(), 1, "{drawing}");
        let picture = fs::read_to_string(&svg).unwrap();
        assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    }
    let line = world.refused("topology --svg /nowhere/at/all.svg");
    assert!(line.starts_with("/nowhere/at/all.svg: ") && line.contains("--svg"), "{line}");
    assert!(world.ok("topology --help").contains("gpcs_proved_by"), "the JSON is documented");
}

#[test]
fn sources_that_disagree_are_named_and_fail() {
    if needs_simulator("a kept calibration is damaged") {
        return;
    }
    let world = World::new();
    let cache = world.dir().join("cache");
    let run = |line: &str| {
        world.partita(line.split_whitespace()).env("PARTITA_CACHE_DIR", &cache).output().unwrap()
    };
    assert!(run("topology").status.success());
    let path = fs::read_dir(&cache).unwrap().next().unwrap().unwrap().path();
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    // The control interface would have SM 7 in the TPC of SM 20, and that one in SM 7's.
    record["measured"]["evidence"]["control"]["Ok"]["sms"].as_array_mut().unwrap().swap(7, 20);
    fs::write(&path, serde_json::to_vec(&record).unwrap()).unwrap();

    let output = run("topology");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let drawing = text(&output.stdout);
    for tpc in [3, 10] {
        let named =
            format!("! TPC {tpc}: one-bit probing finds the SMs {}-{} in one TPC", 2 * tpc, 2 * tpc + 1);
        assert!(drawing.contains(&named), "{named}: {drawing}");
    }
    assert!(drawing.contains("they agree on 128 of 132 SMs"), "{drawing}");
    let output = run("topology --json");
    let chart: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&chart["agree"], &chart["confirmed_sms"]), (&false.into(), &128.into()));
    assert_eq!(chart["units"][3]["confirmed"], false);
    // Clusters are an independent proof.
    assert_eq!(chart["gpcs_proved_by"], "clusters");
    assert!(run("topology --fresh").status.success());
}
