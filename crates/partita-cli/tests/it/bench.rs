//! `partita bench`: experiments and the user's configurations, on the model, on the simulated
//! driver or a GPU.

use crate::common;

use std::path::Path;

use common::{World, is_real, text};
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
fn wrong_configurations_are_refused_with_their_place() {
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
    // The field, its line, and its valid values.
    for (member, told) in [
        (r#""stream_priorty": 1"#, ["stream_priorty", "the nearest is \"stream_priority\""]),
        (r#""sm_mask": "0xzz""#, ["sm_mask", "\"0x1f\" with a bit for each TPC that is off"]),
        (r#""partition": "many""#, ["partition", "30%"]),
        (r#""release_time": -1"#, ["release_time", "a number of seconds, 0 and above"]),
        (r#""mps_thread_percentage": 30"#, ["mps_thread_percentage", "set use_processes to true"]),
        (r#""thread_count": 2048"#, ["thread_count", "1024"]),
    ] {
        let text = format!(
            "{{\"name\": \"x\", \"max_iterations\": 1, \"max_time\": 0, \"cuda_device\": 0, \"benchmarks\": [\n\n{{{}{member}}}]}}",
            r#""filename": "timer_spin.so", "block_count": 1, "data_size": 0, "additional_info": 1, "#
        );
        let text = if member.contains("thread_count") {
            text
        } else {
            text.replace("\"block_count\"", "\"thread_count\": 32, \"block_count\"")
        };
        std::fs::write(&file, text).unwrap();
        let refused = world.refused(&format!("bench --config {} --gpu sim", file.display()));
        let [field, accepted] = told;
        assert!(refused.contains(&format!("benchmarks[0].{field}, line 3: ")), "{refused}");
        assert!(refused.contains(accepted), "{refused}");
    }
    let refused = world.refused("bench --config /nowhere/x.json --gpu sim");
    assert!(refused.contains("/nowhere/x.json: "), "{refused}");
}

/// The GPU of a test that launches: a simulated driver, or a real one.
fn launching() -> &'static str {
    if is_real() { "--gpu 0" } else { "--gpu sim:h200 --on driver" }
}

/// Runs a configuration on it and returns each log by its name.
fn run_configuration(world: &World, config: &str) -> impl Fn(&str) -> Value + use<> {
    let (file, out) = (world.dir().join("own.json"), world.dir().join("logs"));
    std::fs::write(&file, config).unwrap();
    let line = format!("bench --config {} {} --out {}", file.display(), launching(), out.display());
    let output = world.line(&line);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(text(&output.stderr), "");
    move |name| serde_json::from_slice(&std::fs::read(out.join(name)).unwrap()).unwrap()
}

/// The SMs of a log's kernel.
fn sms(kernel: &Value) -> Vec<u64> {
    let mut sms: Vec<u64> =
        kernel["block_smids"].as_array().unwrap().iter().map(|sm| sm.as_u64().unwrap()).collect();
    sms.sort_unstable();
    sms.dedup();
    sms
}

#[test]
fn threads_launch_with_their_masks_and_leave_every_block() {
    let world = World::new();
    let log = run_configuration(
        &world,
        r#"{"name": "threads", "max_iterations": 2, "max_time": 0, "cuda_device": 0, "sync_every_iteration": true, "do_warmup": true, "benchmarks": [
        {"filename": "timer_spin.so", "log_name": "a.json", "label": "A", "thread_count": 1024, "block_count": 24, "data_size": 0,
         "additional_info": 3000000, "sm_mask": "~0x7", "stream_priority": -1},
        {"filename": "multikernel.so", "log_name": "b.json", "label": "B", "thread_count": 1024, "block_count": 1, "data_size": 0, "release_time": 0.002,
         "additional_info": [
            {"kernel_label": "B1", "duration": 1000000, "block_count": 8, "thread_count": 256, "sm_mask": "~0x10", "copy_in_count": 65536},
            {"kernel_label": "B2", "duration": 1000000, "block_count": 8, "thread_count": 256, "sm_mask": "~0x21", "shared_memory_size": 4096}]},
        {"filename": "counter_spin.so", "log_name": "/dev/null", "thread_count": 64, "block_count": 2, "data_size": 0, "additional_info": 1000}]}"#,
    );
    let (a, b) = (log("a.json"), log("b.json"));
    let times = a["times"].as_array().unwrap();
    assert_eq!(times.len(), 5, "an empty object, and twice an iteration and its kernel: {a}");
    for kernel in [&times[2], &times[4]] {
        assert_eq!(sms(kernel), [0, 1, 2, 3, 4, 5], "three TPCs hold twelve blocks");
        let spans = kernel["block_times"].as_array().unwrap();
        assert_eq!(spans.len(), 48);
        for span in spans.chunks(2) {
            let [start, stop] = [&span[0], &span[1]].map(|time| time.as_f64().unwrap());
            assert!(stop - start > 0.002_999 && start > 0.0, "{start} to {stop}");
        }
    }
    let times = b["times"].as_array().unwrap();
    assert_eq!(sms(&times[2]), [8, 9], "the mask of this launch alone");
    assert!(sms(&times[3]).iter().all(|sm| [0, 1, 10, 11].contains(sm)), "{b}");
    assert_eq!(times[3]["shared_memory"], 16384);
    assert!(times[1]["cpu_times"][0].as_f64().unwrap() >= 0.002, "it is released later");
    assert!(!world.dir().join("logs/counter_spin_2.json").exists());
}

#[test]
fn processes_begin_together_and_end_with_the_terminator() {
    let world = World::new();
    let config = |mps: bool| {
        format!(
            r#"{{"name": "processes", "max_iterations": 0, "max_time": 0, "cuda_device": 0, "use_processes": true, "mps": {mps}, "benchmarks": [
            {{"filename": "matrix_multiply.so", "log_name": "product.json", "thread_count": [16, 16], "block_count": 1, "data_size": 0,
              "additional_info": {{"matrix_width": 64, "skip_copy": false}}, "max_iterations": 3, "terminator": true, "partition": "50%"}},
            {{"filename": "random_walk.so", "log_name": "walk.json", "thread_count": 32, "block_count": 4, "data_size": 65536,
              "additional_info": 100, "partition": "25%"}}]}}"#
        )
    };
    for mps in [false, true] {
        let log = run_configuration(&world, &config(mps));
        let (product, walk) = (log("product.json"), log("walk.json"));
        assert_eq!(product["times"].as_array().unwrap().len(), 1 + 3 * 2);
        assert_ne!(product["PID"], walk["PID"]);
        assert!(product["TID"].is_null(), "a process each");
        let walks = walk["times"].as_array().unwrap();
        assert!(
            walks.len() >= 3 && walks.len() % 2 == 1,
            "it went on until the product had ended: {}",
            walks.len()
        );
        assert_eq!(product["times"][2]["block_smids"].as_array().unwrap().len(), 16);
        assert_eq!(product["times"][2]["thread_count"], 256);
    }
}

#[test]
fn what_was_measured_is_laid_beside_the_model_and_replayed() {
    let world = World::new();
    let (out, again) = (world.dir().join("out"), world.dir().join("again"));
    let output = world.line(&format!("bench figure-3 {} --json --out {}", launching(), out.display()));
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    let reports: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = reports[0]["model_against_hardware"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6, "the ends of two kernels and of all, twice");
    for row in rows {
        let off = row["error_percent"].as_f64().unwrap();
        assert!(off.is_finite() && row["measured_ms"].as_f64().unwrap() > 200.0, "{row}");
    }
    // The kernels never leave their partitions, however long anything took.
    assert_eq!(reports[0]["findings"][2]["holds"], true, "{reports}");
    let replayed =
        world.line(&format!("bench figure-3 --replay {} --json --out {}", out.display(), again.display()));
    assert_eq!(replayed.stdout, output.stdout);
    assert_eq!(files(&out.join("figure-3")), files(&again.join("figure-3")));
    let file = out.join("figure-3/measured.json");
    let kept = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, kept.replacen("250000000", "250000001", 1)).unwrap();
    let refused = world.refused(&format!("bench figure-3 --replay {}", out.display()));
    assert!(refused.contains("another configuration"), "{refused}");
}

#[test]
fn what_a_gpu_cannot_run_is_refused() {
    let world = World::new();
    let file = world.dir().join("refused.json");
    let config = |filename: &str, threads: &str| {
        format!(
            r#"{{"name": "x", "max_iterations": 1, "max_time": 0, "cuda_device": 0, "benchmarks": [
            {{"filename": "{filename}", "label": "A", "thread_count": {threads}, "block_count": 1, "data_size": 0, "additional_info": 1000}}]}}"#
        )
    };
    std::fs::write(&file, config("timer_spin_default_stream.so", "32")).unwrap();
    let line = format!("bench --config {} {}", file.display(), launching());
    let refused = world.refused(&line);
    assert!(refused.contains("A: default streams") && refused.contains("use timer_spin"), "{refused}");
}

/// Gives a directory to the user who runs the commands, with all that is in it.
fn give_all(world: &World, dir: &Path) {
    world.give(dir);
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { give_all(world, &path) } else { world.give(&path) }
    }
}

#[test]
fn the_committed_page_and_results_are_what_the_tool_makes() {
    if !partita_testing::is_long() {
        eprintln!("skipped without PARTITA_TEST_LONG=1: it makes every experiment again");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let committed = root.join("research/bench/results/experiments");
    let world = World::new();
    let (results, page) =
        (world.dir().join("research/bench/results/experiments"), world.dir().join("docs/experiments.md"));
    // Measurements cannot be repeated here; everything else can.
    for (name, bytes) in files(&committed) {
        if name.ends_with("/measured.json") {
            std::fs::create_dir_all(results.join(&name).parent().unwrap()).unwrap();
            std::fs::write(results.join(&name), bytes).unwrap();
        }
    }
    std::fs::create_dir_all(page.parent().unwrap()).unwrap();
    ["research", "docs"].iter().for_each(|dir| give_all(&world, &world.dir().join(dir)));
    let line = format!("bench all --gpu sim --out {} --page {}", results.display(), page.display());
    let output = world.line(&line);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    assert_eq!(text(&output.stderr), "");
    let again = "make it again: partita bench all --gpu sim --out research/bench/results/experiments --page \
        docs/experiments.md";
    let stale = |name: &str| panic!("{name} is stale; {again}");
    let (made, kept) = (files(&results), files(&committed));
    for ((one, bytes), (other, others)) in made.iter().zip(&kept) {
        if one != other || bytes != others {
            stale(other);
        }
    }
    assert_eq!(made.len(), kept.len(), "{again}");
    if std::fs::read(&page).unwrap() != std::fs::read(root.join("docs/experiments.md")).unwrap() {
        stale("docs/experiments.md");
    }
}
