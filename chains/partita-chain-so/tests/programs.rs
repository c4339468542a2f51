//! C programs as components, compiled as users would.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use chain::{CHAIN_VARIABLE, COMPONENT_VARIABLE, Chain, ChainPlan, Policy};
use partita_testing::{Machine, eventually, is_long, succeed};

/// The directory of the library. In a long run it is built so that its panics unwind as in the
/// installed one, with a function that panics: that compiles every dependency once more.
fn library() -> &'static Path {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        let built = partita_testing::build();
        if !is_long() {
            return built.to_owned();
        }
        let target = built.parent().expect("a profile is in the target directory");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--profile", "dev-unwinding", "--features", "panics"]);
        cargo.arg("--manifest-path").arg(sources().join("Cargo.toml"));
        succeed(cargo.arg("--target-dir").arg(target));
        target.join("dev-unwinding")
    });
    &BUILT
}

fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Compiles the program; every warning of the compiler is an error.
fn compile(machine: &Machine, source: &str, archive: bool) -> PathBuf {
    let program = machine.path("component");
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic", "-o"]).arg(&program);
    command.arg(sources().join("tests/c").join(source)).arg("-I").arg(sources().join("include"));
    if archive {
        command.arg(library().join("libpartita_chain.a")).args(["-lpthread", "-ldl", "-lm", "-lgcc_s"]);
    } else {
        command.arg("-L").arg(library()).arg("-lpartita_chain");
    }
    succeed(command.arg("-L").arg(machine.libraries()).arg("-lcuda"));
    program
}

fn chain(machine: &Machine) -> Chain {
    let plan = ChainPlan {
        name: "c".into(),
        roles: ["in", "through", "out"].map(str::to_owned).to_vec(),
        frame_bytes: 4096,
        frames: 4,
        queue_max: 2,
        policy: Policy::Wait,
        role_gpus: Vec::new(),
    };
    Chain::create(&machine.path("chain"), &plan).unwrap()
}

fn component(machine: &Machine, program: &Path, role: usize) -> Command {
    let mut command = Command::new(program);
    machine.surround(&mut command, "h200");
    let libraries = std::env::join_paths([machine.libraries(), library().to_owned()]);
    command.env("LD_LIBRARY_PATH", libraries.expect("paths without colons"));
    command.env(CHAIN_VARIABLE, machine.path("chain")).env(COMPONENT_VARIABLE, role.to_string());
    command.stdin(Stdio::null());
    command
}

fn three_components(archive: bool) {
    if partita_testing::needs_simulator("the program is linked with the simulated driver") {
        return;
    }
    let machine = Machine::new("chain-c");
    let program = compile(&machine, "component.c", archive);
    let chain = chain(&machine);
    let start = |role| component(&machine, &program, role).spawn().unwrap();
    let mut children = [0, 1, 2].map(start);
    eventually("ten frames have gone through", || {
        let failed =
            children.iter_mut().any(|child| child.try_wait().unwrap().is_some_and(|end| !end.success()));
        assert!(!failed, "a component failed");
        chain.frames_finished() >= 10
    });
    chain.stop();
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    let status = chain.status().unwrap();
    assert_eq!(
        status.iter().map(|role| role.dropped_by_owner).sum::<u64>(),
        1,
        "the one with the wrong call"
    );
    assert_eq!((chain.census().total(), chain.census().lost), (4, 0));
}

#[test]
fn a_chain_of_programs_with_the_shared_library() {
    three_components(false);
}

#[test]
fn a_chain_of_programs_with_the_archive() {
    three_components(true);
}

/// A bug of the library ends no program of a user, and its memory is returned when the program
/// ends.
#[test]
fn a_panic_is_an_error_of_the_call() {
    if partita_testing::needs_simulator("the program is linked with the simulated driver") {
        return;
    }
    if !is_long() {
        eprintln!("skipped without PARTITA_TEST_LONG=1: the library would be compiled again");
        return;
    }
    for archive in [false, true] {
        let machine = Machine::new("chain-panics");
        let program = compile(&machine, "panics.c", archive);
        let chain = chain(&machine);
        let output = component(&machine, &program, 0).output().unwrap();
        let told = [output.stdout, output.stderr].concat();
        assert!(
            output.status.success() && told.is_empty(),
            "{}: {}",
            output.status,
            String::from_utf8_lossy(&told)
        );
        assert_eq!(chain.census().held, [1, 0, 0]);
        assert_eq!(chain.recover(0).unwrap().map(|recovered| recovered.dropped), Some(1));
    }
}

#[test]
fn the_header_is_cpp_as_well() {
    let mut command = Command::new("c++");
    command.args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-pedantic", "-x", "c++"]);
    succeed(command.arg(sources().join("include/partita_chain.h")));
}

/// The library exports exactly what the header declares.
#[test]
fn the_library_exports_the_header() {
    let header = std::fs::read_to_string(sources().join("include/partita_chain.h")).unwrap();
    let declared = header.lines().filter(|line| !line.starts_with([' ', '/', '*', '#'])).filter_map(|line| {
        let name = line.split('(').next().filter(|_| line.contains('('))?;
        Some(name.rsplit([' ', '*']).next()?.to_owned())
    });
    let mut declared: Vec<_> = declared.collect();
    declared.sort();
    assert!(declared.len() > 15, "{declared:?}");
    let symbols =
        succeed(Command::new("nm").args(["-D", "--defined-only"]).arg(library().join("libpartita_chain.so")));
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let mut exported: Vec<_> =
        symbols.lines().filter_map(|line| line.rsplit(' ').next()).map(str::to_owned).collect();
    exported.retain(|name| name.starts_with("partita_"));
    // Only for tests.
    exported.retain(|name| name != "partita_chain_panic");
    exported.sort();
    assert_eq!(exported, declared);
}
