//! `partita chain` beside a daemon: its definitions are the daemon's.

use crate::common;

use std::fs;
use std::process::Command;

use common::World;
use partita_chain_host::Definition;
use serde_json::Value;

fn ok(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn definitions_are_kept_by_the_daemon_where_one_runs() {
    let world = World::new();
    let daemon = world.start();
    let config = world.dir().join("config");
    let partita = |words: &[&str]| {
        let mut command = world.partita(words);
        command.env("XDG_CONFIG_HOME", &config);
        command
    };
    let file = world.dir().join("cameras.toml");
    for period_ms in [100, 40] {
        let period = format!("period_ms = {period_ms}");
        fs::write(&file, Definition::example().replace("period_ms = 100", &period)).unwrap();
        ok(&mut partita(&["chain", "define", file.to_str().unwrap()]));
        assert_eq!(daemon.get("/v1/chains/cameras")["defined"]["definition"]["period_ms"], period_ms);
        let kept: Value =
            serde_json::from_str(&ok(&mut partita(&["chain", "define", "--print", "cameras"]))).unwrap();
        assert_eq!(kept["period_ms"], period_ms);
    }
    assert!(!config.exists());
    let rows: Value = serde_json::from_str(&ok(&mut partita(&["chain", "ps", "--json"]))).unwrap();
    assert_eq!((&rows[0]["name"], &rows[0]["running"]), (&"cameras".into(), &Value::Null));
    let refused = partita(&["chain", "start", "camera"]).output().unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(125) && told.contains("(defined: cameras)"), "{told}");
    ok(&mut partita(&["chain", "forget", "cameras"]));
    assert_eq!(daemon.get("/v1/chains"), Value::Array(Vec::new()));
    // Without one they are the user's files again.
    drop(daemon);
    ok(&mut partita(&["chain", "define", file.to_str().unwrap()]));
    let own = config.join("partita/chains/cameras.toml");
    assert!(own.exists());
    // Then a daemon stores no other one of that name, and leads to the file.
    let daemon = world.start();
    for words in [["define", file.to_str().unwrap()], ["start", "cameras"], ["forget", "cameras"]] {
        let refused = partita(&["chain"]).args(words).output().unwrap();
        let told = String::from_utf8(refused.stderr).unwrap();
        let remedy = format!("`mv {} .` and `partita chain define cameras.toml`\n", own.display());
        assert!(refused.status.code() == Some(125) && told.lines().count() == 1, "{told}");
        assert!(told.ends_with(&remedy), "{told}");
    }
    assert_eq!(daemon.get("/v1/chains"), Value::Array(Vec::new()));
    fs::rename(&own, world.dir().join("moved.toml")).unwrap();
    ok(&mut partita(&["chain", "define", file.to_str().unwrap()]));
}
