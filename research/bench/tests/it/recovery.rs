//! `research/bench/mps/recovery.py`, run on the simulated GPU from its first tenant to its page,
//! and the tests of its computations.

use std::path::{Path, PathBuf};
use std::process::Command;

use partita_testing::{has_python, unittest, without_own_variables};
use serde_json::Value;

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("mps")
}

#[test]
fn the_tests_of_the_recovery_benchmark_pass() {
    unittest(Command::new("python3"), &scripts());
}

#[test]
fn faults_on_two_gpus_are_measured_and_nothing_is_left() {
    if !has_python() {
        return;
    }
    if !partita_testing::is_long() {
        eprintln!("skipped without PARTITA_TEST_LONG=1: its programs wait for their restarts");
        return;
    }
    let built = partita_testing::build();
    let dir = tempfile::Builder::new().prefix("pb").tempdir_in("/tmp").expect("a directory in /tmp");
    let mut command = Command::new("python3");
    without_own_variables(&mut command);
    command
        .arg("-B")
        .arg(scripts().join("recovery.py"))
        .arg("--partita")
        .arg(built.join("partita"))
        .args("--gpus sim:h200:0,1 --repetitions 2 --series 2 --torch 0 --settle 0.1".split(' '))
        .arg("--out")
        .arg(dir.path())
        .env("PARTITA_SIM_GPUS", "2")
        .env("PARTITA_SIM_DIR", dir.path().join("sim"))
        .env("PARTITA_CACHE_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"))
        .env("PARTITA_LIB_DIR", built);
    let output = command.output().expect("python3 runs");
    assert!(output.status.success(), "{output:?}");

    let text = std::fs::read_to_string(dir.path().join("recovery.json")).expect("a result");
    let facts: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(facts["complete"], true, "{facts:#}");
    let phases = facts["phases"].as_array().expect("phases");
    let keys: Vec<&str> = phases.iter().filter_map(|phase| phase["key"].as_str()).collect();
    assert_eq!(keys, ["one", "both", "series"]);
    for phase in phases {
        let repetitions = phase["repetitions"].as_array().expect("repetitions");
        assert_eq!(repetitions.len(), 2);
        for one in repetitions {
            let time = |key: &str| one[key].as_f64().unwrap_or_else(|| panic!("{key}: {one:#}"));
            assert!(time("neighbour_error_ms") > 0.0 && time("culprit_error_ms") > 0.0, "{one:#}");
            assert!(
                time("serve_error_ms") < time("start_ms") && time("start_ms") < time("back_ms"),
                "{one:#}"
            );
            assert!(
                time("active_ms") > 0.0 && time("log_fault_ms") >= 0.0 && time("restarted_ms") > 0.0,
                "{one:#}"
            );
            assert_eq!(one["exit_codes"], serde_json::json!([91, 91]));
        }
    }
    // The second fault within two minutes makes it wait for a second.
    assert!(phases[2]["repetitions"][1]["restarted_ms"].as_f64().unwrap() >= 1000.0, "{}", phases[2]);
    let spared: Vec<(&String, &Value)> =
        phases.iter().flat_map(|phase| phase["spared"].as_object().expect("rows")).collect();
    assert_eq!(spared.len(), 3, "{spared:?}");
    for (who, told) in spared {
        assert_eq!(
            (&told["errors"], &told["starts"], &told["faults"]),
            (&Value::Array(vec![]), &1.into(), &2.into()),
            "{who}"
        );
        assert!(told["gap_max_ms_during"]["most"].as_f64().unwrap() > 0.0, "{who}");
    }

    let page = std::fs::read_to_string(dir.path().join("recovery.md")).expect("a page");
    assert_eq!(page.matches("2 of 2 repetitions came to work again").count(), 3, "{page}");
    assert!(page.contains("its work on the GPU was lost by a fault"), "{page}");
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!complaints.contains("was left") && !complaints.contains("partita"), "{complaints}");
}

#[test]
fn without_a_gpu_it_says_so_and_leaves_nothing() {
    if !has_python() {
        return;
    }
    let built = partita_testing::build();
    let mut command = Command::new("python3");
    without_own_variables(&mut command);
    let output = command
        .arg("-B")
        .arg(scripts().join("recovery.py"))
        .arg("--partita")
        .arg(built.join("partita"))
        .args(["--gpus", "sim:none"])
        .output()
        .expect("python3 runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(told.contains("sim:none"), "{told}");
}
