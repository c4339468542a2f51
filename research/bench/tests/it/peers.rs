//! A peer's library is measured in the same run: here a stand-in, which records its environment.

use std::path::{Path, PathBuf};
use std::process::Command;

use partita_testing::{succeed, without_own_variables};

fn hook_cost(built: &Path, dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hook-cost"));
    without_own_variables(&mut command);
    command
        .arg("--partita")
        .arg(built.join("partita"))
        .args(["--starts", "2", "--rounds", "3", "--burst", "4"])
        .env("PARTITA_RUN_DIR", dir.join("run"))
        .env("PARTITA_SIM_DIR", dir.join("sim"))
        .env("PARTITA_CACHE_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"))
        .env("PARTITA_LIB_DIR", built)
        .env("STAND_IN_LOG", dir.join("log"));
    command
}

fn stand_in(dir: &Path) -> PathBuf {
    let library = dir.join("libstandin.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand_in.c");
    succeed(Command::new("cc").args(["-shared", "-fPIC", "-O1", "-w", "-o"]).arg(&library).arg(source));
    library
}

#[test]
fn a_peer_takes_its_turns_with_the_same_limits() {
    let built = partita_testing::build();
    let dir = tempfile::Builder::new().prefix("pb").tempdir_in("/tmp").expect("a directory in /tmp");
    let library = stand_in(dir.path());
    for (of, call) in [("launch", "asked cuLaunchKernel"), ("memory", "asked cuMemAlloc_v2")] {
        let _ = std::fs::remove_file(dir.path().join("log"));
        let mut command = hook_cost(built, dir.path());
        command.args(["--of", of, "--peer"]).arg(format!("hami-core={}", library.display()));
        let output = succeed(&mut command);
        let table = String::from_utf8(output.stdout).expect("UTF-8");
        for row in [
            "| bare |",
            "| as a tenant |",
            "| added, by pairs |",
            "| added, medians of the starts |",
            "| under hami-core |",
            "| under hami-core: added, by pairs |",
            "| under hami-core: added, medians of the starts |",
        ] {
            assert_eq!(table.matches(row).count(), 1, "{row} in {table}");
        }
        assert!(table.contains("24 each way"), "{table}");
        let log = std::fs::read_to_string(dir.path().join("log")).expect("the stand-in wrote");
        let count = |line: &str| log.lines().filter(|found| *found == line).count();
        // `env` and the program of each start, and no other process.
        assert_eq!((count("loaded 1024m"), count("cores 50")), (2, 2), "{log}");
        assert_eq!(count("loaded -"), 0, "{log}");
        assert!(count(call) >= 2, "the program's calls went through it: {log}");
        let cache = log.lines().find_map(|line| line.strip_prefix("cache ")).expect("a cache");
        assert!(
            cache.contains("/hami-core")
                && cache.ends_with(".cache")
                && !Path::new(cache).parent().unwrap().exists(),
            "{cache}"
        );
    }
}

#[test]
fn a_peer_that_is_not_there_or_not_named_is_an_error_before_anything_is_measured() {
    let built = partita_testing::build();
    let dir = tempfile::tempdir().expect("a directory");
    for (peer, expected) in
        [("hami-core=/no/such/libvgpu.so", "No such file"), ("libvgpu.so", "NAME=PATH"), ("=x", "NAME=PATH")]
    {
        let output = hook_cost(built, dir.path()).args(["--peer", peer]).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
        assert!(said.contains(expected), "{said}");
    }
}
