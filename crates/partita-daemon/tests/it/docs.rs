//! The examples of docs/partitad.md, run as they stand.

use crate::common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::World;
use partita_testing::is_real;

/// The blocks of shell that begin with "```sh" and these words, in their order, with what follows
/// on that line.
fn blocks(text: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(words) = line.strip_prefix("```sh test") {
            let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push((words.trim().to_owned(), body.join("\n")));
        }
    }
    blocks
}

#[test]
fn the_examples_work() {
    let text =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/partitad.md")).unwrap();
    let blocks = blocks(&text);
    assert!(blocks.len() >= 6, "{blocks:?}");
    if common::lacks_curl() {
        return;
    }
    let world = World::new();
    let daemon = world.start();
    for (words, body) in blocks {
        if words == "gpu" && is_real() {
            eprintln!("skipped on a real GPU: it would share it with the chain of the example");
            continue;
        }
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", &body]).env("PARTITAD", daemon.socket());
        let output = shell.output().unwrap();
        assert!(output.status.success(), "{body}\n{output:?}\n{}", daemon.log());
    }
    assert_eq!(daemon.get("/v1/chains"), serde_json::json!([]));
}

#[test]
fn units_start_what_there_is() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    for name in ["partitad.service", "partitad-user.service"] {
        let unit = fs::read_to_string(dir.join(name)).unwrap();
        let value = |key: &str| {
            unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default()
        };
        assert_eq!((value("Type"), value("KillMode")), ("notify", "process"), "{name}");
        let mut words = value("ExecStart").split_whitespace();
        assert!(words.next().unwrap().ends_with("/partitad"), "{name}");
        let output = Command::new(common::program()).args(words).arg("--help").output().unwrap();
        assert!(output.status.success(), "{name}: {output:?}");
    }
}
