//! `research/bench/compat`: the tests of its Python, and a program of the CUDA driver that it runs
//! on the simulated GPU, in every mode.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use partita_testing::{Machine, executable, has_python, succeed, unittest};
use serde_json::Value;

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("compat")
}

#[test]
fn the_tests_of_the_compatibility_benchmark_pass() {
    unittest(Command::new("python3"), &scripts());
}

/// A suite of one program, which launches by every route, including a cooperative grid that fills
/// the whole GPU; and the list that names it.
fn suite(machine: &Machine) -> (PathBuf, PathBuf) {
    let (suite, lists) = (machine.path("suite"), machine.path("lists"));
    let home = suite.join("launches");
    fs::create_dir_all(&home).unwrap();
    fs::create_dir(&lists).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/partita-cli/tests/hook/launches.c");
    succeed(
        Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(home.join("launches")).arg(source).arg("-ldl"),
    );
    fs::write(home.join("kernels.ptx"), partita_abi::kernels::PTX_MODULE.to_bytes()).unwrap();
    fs::write(lists.join("cuda-samples.txt"), "launches kernels.ptx 264 0\n").unwrap();
    (suite, lists)
}

/// A directory with the programs that give the benchmark the GPU's name.
fn tools(machine: &Machine) -> PathBuf {
    let dir = machine.path("bin");
    fs::create_dir(&dir).unwrap();
    let script = b"#!/bin/sh\necho 'NVIDIA H200, 580.159.04, 143771, GPU-0'\n";
    executable(&dir.join("nvidia-smi"), script);
    dir
}

#[test]
fn a_cooperative_grid_of_the_whole_gpu_differs_in_every_partition_and_in_no_other_tenant() {
    if !has_python() {
        return;
    }
    let built = partita_testing::build();
    let machine = Machine::new("compat");
    let (suite, lists) = suite(&machine);
    let out = machine.path("out");
    // Priorities and shares of time need the tenants' pages in memory.
    let tenants = tempfile::Builder::new().prefix("pc").tempdir_in("/dev/shm").unwrap();
    let mut command = Command::new("python3");
    machine.surround(&mut command, "h200");
    let path = std::env::var("PATH").unwrap();
    command
        .arg("-B")
        .arg(scripts().join("run.py"))
        .arg("--partita")
        .arg(built.join("partita"))
        .arg("--suite")
        .arg(format!("cuda-samples={}", suite.display()))
        .arg("--lists")
        .arg(&lists)
        .arg("--out")
        .arg(&out)
        .env("PATH", format!("{}:{path}", tools(&machine).display()))
        .env("PARTITA_GPU", "sim:h200")
        .env("PARTITA_LIB_DIR", built)
        .env("PARTITA_RUN_DIR", tenants.path())
        .env("PARTITA_CACHE_DIR", machine.path("cache"));
    succeed(&mut command);

    let result: Value = serde_json::from_slice(&fs::read(out.join("compat_h200.json")).unwrap()).unwrap();
    let mut modes = Vec::new();
    for row in result["rows"].as_array().unwrap() {
        assert_eq!((row["run"].as_u64(), row["pass_bare"].as_u64()), (Some(1), Some(1)), "{row}");
        assert_eq!((row["unexplained"].as_u64(), row["not_run"].as_u64()), (Some(0), Some(0)), "{row}");
        modes.push((row["mode"].as_str().unwrap(), row["differ"].as_u64().unwrap()));
    }
    // A share of time leaves a tenant the whole GPU.
    let wanted =
        [("mask", 1), ("priority", 1), ("four", 1), ("own", 1), ("time", 0), ("hami", 1), ("share", 1)];
    assert_eq!(modes, wanted, "{result:#}");
    for difference in result["differences"].as_array().unwrap() {
        assert!(
            difference["only_tenant"].to_string().contains("cooperative-too-large error 720"),
            "{difference}"
        );
        assert!(difference["reason"].as_str().unwrap().contains("cooperative grid"), "{difference}");
    }
    let page = fs::read_to_string(out.join("compat.md")).unwrap();
    assert!(page.contains("| cuda-samples | time | 1 | 1 | 1 | 0 | 0 | 0 | 0 | 0 | 0 |"), "{page}");
}
