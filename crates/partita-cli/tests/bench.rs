//! `partita bench`: experiments and configurations of one's own, on the model.

mod common;

use std::path::Path;

use common::{World, text};
use serde_json::Value;

/// Every file below a directory with its bytes, by name.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(next) = left.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else {
                let name = path.strip_prefix(dir).unwrap().display().to_string();
                found.push((name, std::fs::read(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn experiments_are_listed_and_unknown_ones_refused() {
    let world = World::new();
    let output = world.line("bench --list --json");
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<&str> = list.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert!(names.len() >= 10 && names.contains(&"figure-12") && names.contains(&"table-3"), "{names:?}");
    let refused = world.refused("bench figure-99 --gpu sim");
    assert!(refused.contains("\"figure-99\"") && refused.contains("figure-12"), "{refused}");
    world.refused("bench --gpu sim");
    world.refused("bench figure-3 --config x.json");
}

#[test]
fn an_experiment_leaves_the_same_files_each_time() {
    let world = World::new();
    let mut seen = Vec::new();
    for turn in ["one", "two"] {
        let out = world.dir().join(turn);
        let output = world.line(&format!("bench figure-12 --gpu sim --json --out {}", out.display()));
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(text(&output.stderr), "");
        seen.push((output.stdout, files(&out)));
    }
    assert_eq!(seen[0], seen[1]);
    let names: Vec<&str> = seen[0].1.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "README.md",
            "figure-12/blocks.png",
            "figure-12/blocks.svg",
            "figure-12/config.json",
            "figure-12/result.json"
        ]
    );
    let reports: Value = serde_json::from_slice(&seen[0].0).unwrap();
    assert_eq!(reports[0]["verdict"], "reproduced");
    assert!(reports[0]["model_against_hardware"].is_null(), "nothing was measured");
    let page = String::from_utf8(seen[0].1[0].1.clone()).unwrap();
    assert!(page.contains("| paper | here |") && page.contains("(figure-12/blocks.png)"), "{page}");
}

#[test]
fn what_an_experiment_ran_runs_again_as_a_configuration() {
    let world = World::new();
    let out = world.dir().join("out");
    world.line(&format!("bench figure-3 --gpu sim --out {}", out.display()));
    let config = out.join("figure-3/config.json");
    let logs = world.dir().join("logs");
    let line =
        format!("bench --config {} --gpu sim:gtx1060-3gb --json --out {}", config.display(), logs.display());
    let output = world.line(&line);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let again: Value = serde_json::from_slice(&output.stdout).unwrap();
    let result: Value =
        serde_json::from_slice(&std::fs::read(out.join("figure-3/result.json")).unwrap()).unwrap();
    assert_eq!(again, result["scenarios"]);
    // The original's log: an empty object, the iteration, its kernel.
    let log: Value = serde_json::from_slice(&std::fs::read(logs.join("K1.json")).unwrap()).unwrap();
    assert_eq!(log["times"][0], serde_json::json!({}));
    assert_eq!(log["times"].as_array().unwrap().len(), 3);
    assert_eq!(log["times"][2]["block_smids"].as_array().unwrap().len(), 20);
    assert!(logs.join("scenario-2/K2.json").exists() && logs.join("blocks.png").exists());
}

#[test]
fn wrong_configurations_are_told_where() {
    let world = World::new();
    let file = world.dir().join("wrong.json");
    std::fs::write(&file, "{\n\"name\": \"x\",\n\"max_iterations\": 1,\n\"max_tme\": 0}").unwrap();
    let refused = world.refused(&format!("bench --config {} --gpu sim", file.display()));
    assert!(
        refused.contains("wrong.json: line 1: max_time is missing: seconds, 0 for no limit"),
        "{refused}"
    );
    std::fs::write(
        &file,
        r#"{"name": "x", "max_iterations": 1, "max_time": 0, "cuda_device": 0, "benchmarks": [
{"filename": "timer_spin.so", "label": "A", "thread_count": 32, "block_count": 1, "data_size": 0, "additional_info": 1, "partition": "gpc:77"}]}"#,
    )
    .unwrap();
    let refused = world.refused(&format!("bench --config {} --gpu sim:a100", file.display()));
    assert!(refused.contains("x: A: ") && refused.contains("no GPC"), "{refused}");
    let refused = world.refused("bench --config /nowhere/x.json --gpu sim");
    assert!(refused.contains("/nowhere/x.json: "), "{refused}");
}
