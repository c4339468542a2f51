//! The benchmarks of bad neighbours and of violent deaths, on the simulated GPU.

use std::path::Path;
use std::process::Command;

use partita_testing::{succeed, without_own_variables};

fn neighbours(built: &Path, dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_neighbours"));
    in_world(&mut command, built, dir).args(["--rounds", "1", "--ms", "20"]);
    command
}

fn in_world<'command>(command: &'command mut Command, built: &Path, dir: &Path) -> &'command mut Command {
    without_own_variables(command);
    command
        .arg("--partita")
        .arg(built.join("partita"))
        .env("PARTITA_RUN_DIR", dir.join("run"))
        .env("PARTITA_SIM_DIR", dir.join("sim"))
        .env("PARTITA_CACHE_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"))
        .env("PARTITA_LIB_DIR", built)
}

#[test]
fn a_page_has_each_neighbour_in_each_setting() {
    let built = partita_testing::build();
    let dir = tempfile::Builder::new().prefix("pb").tempdir_in("/tmp").expect("a directory in /tmp");
    let mut command = neighbours(built, dir.path());
    command.args(["--kinds", "streams-16,graph-wide,stopped", "--settings", "nothing,masks"]);
    let page = String::from_utf8(succeed(&mut command).stdout).expect("UTF-8");
    assert!(page.contains("| neighbour | nothing | masks |"), "{page}");
    for kind in ["streams-16", "graph-wide", "stopped"] {
        let row = page.lines().find(|line| line.starts_with(&format!("| {kind} |")));
        let cells = row.map(|row| row.split('|').skip(2).take(2).collect::<Vec<_>>());
        let is_ratio = |cell: &&str| cell.trim().split(' ').next().is_some_and(|r| r.parse::<f64>().is_ok());
        assert!(cells.is_some_and(|cells| cells.iter().all(is_ratio)), "{kind}: {page}");
    }
}

#[test]
fn an_unknown_kind_is_refused_with_the_known_ones() {
    let built = partita_testing::build();
    let dir = tempfile::Builder::new().prefix("pb").tempdir_in("/tmp").expect("a directory in /tmp");
    let refused = neighbours(built, dir.path()).args(["--kinds", "noise"]).output().expect("it starts");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && text.contains("--kinds noise: no such kind"), "{text}");
    assert!(text.contains("streams-1000"), "{text}");
}

#[test]
fn tenants_that_die_are_shown_and_released_and_the_victim_goes_on() {
    let built = partita_testing::build();
    let dir = tempfile::Builder::new().prefix("pb").tempdir_in("/dev/shm").expect("a directory in /dev/shm");
    let mut command = Command::new(env!("CARGO_BIN_EXE_deaths"));
    in_world(&mut command, built, dir.path()).args(["--rounds", "1"]);
    let page = String::from_utf8(succeed(&mut command).stdout).expect("UTF-8");
    assert!(page.contains("12 deaths; the victim broke in 0 of 1 rounds"), "{page}");
    // Without a holder the same deaths break it.
    let page = String::from_utf8(succeed(command.args(["--holder", "off"])).stdout).expect("UTF-8");
    assert!(page.contains("the victim broke in 1 of 1 rounds"), "{page}");
}
