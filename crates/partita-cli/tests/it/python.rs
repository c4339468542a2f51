//! The Python package, and the file of `run --info` by which it learns of a program's start.

use std::fs;
use std::path::Path;

use partita_testing::{build, needs_simulator, unittest};
use serde_json::{Value, json};

use crate::common::{World, refusal, succeeds, text};

#[test]
fn the_package_and_its_examples_do_what_their_pages_say() {
    if needs_simulator("its tests know the numbers of the simulated H200") {
        return;
    }
    let world = World::plan().in_memory().on(|_| vec![("PARTITA_SIM_GPUS", "2".into())]);
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integrations/python");
    let mut python = world.bare(Path::new("python3"));
    python.env("PYTHONPATH", &package).env("PARTITA_LIB_DIR", build()).env("PARTITA_SIM_GPUS", "1");
    unittest(python, &package.join("tests"));
}

#[test]
fn info_has_the_start_or_the_refusal() {
    let world = World::new();
    let file = world.make_dir("of-info").join("info");
    let option = format!("--info={}", file.display());
    let line = || -> Value { serde_json::from_slice(&fs::read(&file).unwrap()).unwrap() };

    let mut run = world.partita(["run", "--name", "told", "--sm", "10%", "--mem", "1GiB", &option]);
    let said = succeeds(run.args(["--", "sh", "-c", "echo $$; ls -l /proc/self/fd"]));
    let (pid, open) = said.split_once('\n').unwrap();
    assert_eq!(line(), json!({ "name": "told", "pid": pid.parse::<u32>().unwrap() }));
    assert!(!open.contains("of-info"), "the program has the file: {open}");

    for (words, reason) in [(["--sm", "200%"], "200%"), (["--name", "a/b"], "a/b")] {
        let mut run = world.partita(["run", &option]);
        let refused = refusal(run.args(words).args(["--", "true"]));
        assert!(refused.contains(reason), "{refused}");
        assert_eq!(line(), json!({ "error": refused }));
    }

    let nowhere = format!("--info={}", world.dir().join("none/info").display());
    let refused = refusal(&mut world.partita(["run", &nowhere, "--", "true"]));
    assert!(refused.contains("none/info: ") && refused.contains("name a file"), "{refused}");
    // A mistake in the words comes before any run.
    let mut run = world.partita(["run", &option, "--priority", "mid", "--", "true"]);
    let refused = refusal(&mut run);
    assert!(refused.contains("--priority"), "{refused}");
    assert_eq!(line(), json!({ "error": refused }));
    let output = world.partita(["run", &option, "--dry-run"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{}", text(&output.stderr));
}
