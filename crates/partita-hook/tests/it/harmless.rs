//! The library in programs that have nothing to do with CUDA, and in the company of tools and
//! sandboxes.

use crate::common;
mod traced;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::{Fixture, limits};
use partita_testing::succeed;

const GUEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/guest.c");

/// Whether a command exists; prints that a test is skipped if not.
fn has(command: &str) -> bool {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|directory| directory.join(command).is_file());
    if !found {
        eprintln!("skipped: there is no {command} here");
    }
    found
}

/// Compiles the guest with another compiler or other options.
fn compile(compiler: &str, options: &[&str], directory: &Path) -> Option<PathBuf> {
    let program = directory.join(format!("guest{}", options.concat()));
    let done = Command::new(compiler)
        .args(["-O1", "-g", "-w", "-pthread", GUEST, "-o"])
        .arg(&program)
        .args(options)
        .arg("-ldl")
        .stderr(Stdio::null())
        .status();
    let is_done = done.is_ok_and(|status| status.success());
    if !is_done {
        eprintln!("skipped: {compiler} {options:?} cannot compile here");
    }
    is_done.then_some(program)
}

/// A tenant's program with the arguments of a shell's words before it, as `gdb --args`.
fn within(fixture: &Fixture, before: &[&str], program: &Path, place: &str) -> Command {
    let words: Vec<&str> = before.iter().copied().chain([program.to_str().expect("UTF-8"), place]).collect();
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .env("LD_PRELOAD", common::library())
        .env("LD_LIBRARY_PATH", fixture.path(""))
        .env("PARTITA_LEDGER", fixture.path(""));
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The output of a program that used the GPU, without other lines.
fn uses(output: &Output) -> Vec<String> {
    text(&output.stdout).lines().filter(|line| *line == "0 0").map(str::to_owned).collect()
}

#[test]
fn a_program_of_musl_runs_as_without_the_library() {
    if !has("musl-gcc") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = compile("musl-gcc", &[], directory.path()) else { return };
    for ledger in [None, Some("/nowhere")] {
        let run = |preload: Option<PathBuf>| {
            let mut command = Command::new(&program);
            command.arg("none").env_remove("LD_PRELOAD").env_remove("PARTITA_LEDGER");
            command.envs(preload.map(|library| ("LD_PRELOAD", library)));
            command.envs(ledger.map(|ledger| ("PARTITA_LEDGER", ledger)));
            let output = command.output().expect("it starts");
            (output.status.code(), text(&output.stdout), text(&output.stderr))
        };
        let bare = run(None);
        assert_eq!(run(Some(common::library())), bare, "{ledger:?}");
        assert_eq!(bare.2, "");
    }
}

/// A library with nothing in it, which the loader treats like any other.
fn empty_library(directory: &Path) -> PathBuf {
    let library = directory.join("libempty.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-x", "c", "/dev/null", "-o"]);
    succeed(compiler.arg(&library));
    library
}

#[test]
fn nothing_happens_in_a_process_that_never_loads_libcuda() {
    let directory = tempfile::tempdir().expect("a directory");
    let empty = empty_library(directory.path());
    let guest = compile("cc", &[], directory.path()).expect("cc compiles");
    let mut programs = vec![
        (PathBuf::from("/bin/true"), vec![]),
        (guest, vec!["none"]),
        (PathBuf::from("/bin/sh"), vec!["-c", ":"]),
    ];
    let python = Path::new("/usr/bin/python3");
    if python.exists() {
        programs.push((python.into(), vec!["-I", "-S", "-c", "pass"]));
    }
    for (program, arguments) in &programs {
        let calls = |library: &Path, ledger: Option<&Path>| {
            let mut command = Command::new(program);
            command.args(arguments).env_clear().env("LD_PRELOAD", library);
            command.envs(ledger.map(|ledger| ("PARTITA_LEDGER", ledger)));
            command.stdin(Stdio::null());
            let (calls, code) = traced::trace(&mut command);
            assert_eq!(code, 0, "{program:?}");
            traced::without_loading(&calls).to_vec()
        };
        let bare = calls(&empty, None);
        assert!(!bare.is_empty());
        for ledger in [None, Some(directory.path()), Some(Path::new("/nowhere"))] {
            assert_eq!(calls(&common::library(), ledger), bare, "{program:?} {ledger:?}");
        }
    }
}

#[test]
fn a_tenants_program_runs_in_unusual_places() {
    let fixture = Fixture::new(&limits());
    let guest = compile("cc", &[], &fixture.path("")).expect("cc compiles");
    let places = [
        ("here", 1),
        ("thread", 1),
        ("fork", 2),
        ("vfork", 1),
        ("spawn", 1),
        ("closed", 1),
        ("strict", 1),
        ("limited", 1),
    ];
    for (place, said) in places {
        let output = within(&fixture, &[], &guest, place).output().expect("it starts");
        assert_eq!(uses(&output).len(), said, "{place}: {output:?}");
        assert!(output.status.success(), "{place}: {output:?}");
        assert_eq!(text(&output.stderr), "", "{place}");
        assert_eq!(text(&output.stdout).lines().count(), said, "{place}");
    }
}

#[test]
fn an_environment_of_thousands_of_variables_is_no_hindrance() {
    let fixture = Fixture::new(&limits());
    let guest = compile("cc", &[], &fixture.path("")).expect("cc compiles");
    for place in ["here", "none"] {
        let mut command = within(&fixture, &[], &guest, place);
        command.envs((0..4096).map(|number| (format!("VARIABLE_{number}"), "x".repeat(number % 100))));
        let output = command.output().expect("it starts");
        assert!(output.status.success() && output.stderr.is_empty(), "{place}: {output:?}");
        assert_eq!(uses(&output).len(), usize::from(place == "here"), "{output:?}");
    }
}

#[test]
fn a_directory_that_is_longer_than_a_path_is_refused_in_one_line() {
    let fixture = Fixture::new(&limits());
    let guest = compile("cc", &[], &fixture.path("")).expect("cc compiles");
    for directory in [String::new(), format!("/{}", "x".repeat(5000))] {
        let output = within(&fixture, &[], &guest, "here")
            .env("PARTITA_LEDGER", &directory)
            .output()
            .expect("it starts");
        let said = text(&output.stderr);
        assert_eq!(text(&output.stdout), "101 3\n", "no GPU");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("PARTITA_LEDGER is empty or too long"), "{said}");
    }
}

#[test]
fn a_tenants_program_runs_behind_another_root() {
    if !has("chroot") || !has("unshare") {
        return;
    }
    let fixture = Fixture::new(&limits());
    let guest = compile("cc", &[], &fixture.path("")).expect("cc compiles");
    let as_root = ["unshare", "--user", "--map-root-user", "chroot", "/"];
    if !Command::new(as_root[0]).args(&as_root[1..]).arg("true").status().is_ok_and(|done| done.success()) {
        eprintln!("skipped: no chroot is allowed here");
        return;
    }
    let output = within(&fixture, &as_root, &guest, "here").output().expect("it starts");
    assert_eq!((uses(&output).len(), text(&output.stderr)), (1, String::new()), "{output:?}");
}

#[test]
fn a_tenants_program_runs_with_sanitizers() {
    let fixture = Fixture::new(&limits());
    for option in ["-fsanitize=thread", "-fsanitize=address", "-fsanitize=undefined"] {
        let Some(program) = compile("cc", &[option], &fixture.path("")) else { continue };
        for place in ["here", "thread", "none"] {
            // A sanitizer that wants another layout of addresses than this kernel gives cannot run
            // at all.
            let bare = Command::new(&program).arg("none").output().expect("it starts");
            if !bare.status.success() {
                eprintln!("skipped: {option} does not run here: {}", text(&bare.stderr));
                break;
            }
            let mut command = within(&fixture, &[], &program, place);
            // As `partita run` sets it.
            command.env("ASAN_OPTIONS", "verify_asan_link_order=0");
            // Leaks of the stub driver are not tested here.
            command.env("LSAN_OPTIONS", "detect_leaks=0");
            let output = command.output().expect("it starts");
            assert!(output.status.success(), "{option} {place}: {output:?}");
            assert_eq!(uses(&output).len(), usize::from(place != "none"), "{option} {place}: {output:?}");
            assert_eq!(text(&output.stderr), "", "{option} {place}");
        }
    }
}

#[test]
fn a_tenants_program_runs_under_tools_that_watch_it() {
    let fixture = Fixture::new(&limits());
    let guest = compile("cc", &[], &fixture.path("")).expect("cc compiles");
    let tools: [&[&str]; 4] = [
        &["valgrind", "-q", "--error-exitcode=9"],
        &["valgrind", "-q", "--tool=helgrind", "--error-exitcode=9"],
        &["gdb", "-q", "-batch", "-nx", "-ex", "run", "--args"],
        &["strace", "-f", "-o", "/dev/null"],
    ];
    for tool in tools {
        if !has(tool[0]) {
            continue;
        }
        for place in ["here", "thread", "none"] {
            let output = within(&fixture, tool, &guest, place).output().expect("it starts");
            assert!(output.status.success(), "{tool:?} {place}: {output:?}");
            assert_eq!(uses(&output).len(), usize::from(place != "none"), "{tool:?} {place}: {output:?}");
        }
    }
}
