//! The benchmarks of bad neighbours and of violent deaths, on the simulated GPU.

use std::path::{Path, PathBuf};
use std::process::Command;

use partita_testing::{succeed, without_own_variables};
use tempfile::TempDir;

/// A simulated machine, whose MPS service ends with it.
struct World {
    dir: TempDir,
    partita: PathBuf,
}

impl World {
    fn new(place: &str) -> Self {
        let partita = partita_testing::build().join("partita");
        let dir = tempfile::Builder::new().prefix("pb").tempdir_in(place).expect("a directory");
        partita_testing::make_boards(&dir.path().join("sim"));
        Self { dir, partita }
    }

    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        without_own_variables(&mut command);
        command
            .env("PARTITA_RUN_DIR", self.dir.path().join("run"))
            .env("PARTITA_SIM_DIR", self.dir.path().join("sim"))
            .env("PARTITA_CACHE_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"))
            .env("PARTITA_LIB_DIR", partita_testing::build());
        command
    }

    fn bench(&self, program: &str) -> Command {
        let mut command = self.command(program);
        command.arg("--partita").arg(&self.partita).args(["--rounds", "1"]);
        command
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.command(&self.partita).args(["mps", "stop", "--force", "--gpu", "sim:h200"]).output();
    }
}

fn neighbours(world: &World) -> Command {
    let mut command = world.bench(env!("CARGO_BIN_EXE_neighbours"));
    command.args(["--ms", "20"]);
    command
}

#[test]
fn a_page_has_each_neighbour_in_each_setting() {
    let world = World::new("/tmp");
    let mut command = neighbours(&world);
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
    let world = World::new("/tmp");
    let refused = neighbours(&world).args(["--kinds", "noise"]).output().expect("it starts");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && text.contains("--kinds noise: no such kind"), "{text}");
    assert!(text.contains("streams-1000"), "{text}");
}

#[test]
fn tenants_that_die_are_shown_and_released_and_the_victim_goes_on() {
    let world = World::new("/dev/shm");
    let mut command = world.bench(env!("CARGO_BIN_EXE_deaths"));
    let page = String::from_utf8(succeed(&mut command).stdout).expect("UTF-8");
    assert!(page.contains("18 deaths; the victim broke in 0 of 1 rounds"), "{page}");
    // Without a holder the same deaths break it.
    let page = String::from_utf8(succeed(command.args(["--holder", "off"])).stdout).expect("UTF-8");
    assert!(page.contains("the victim broke in 1 of 1 rounds"), "{page}");
}
