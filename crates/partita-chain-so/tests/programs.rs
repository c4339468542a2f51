//! C programs that are components, compiled as their users would.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use chain::{CHAIN_VARIABLE, COMPONENT_VARIABLE, Chain, ChainPlan, Policy};
use partita_testing::{Machine, eventually, succeed};

/// The directory of the built libraries.
fn built() -> &'static Path {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| partita_testing::build(&["partita-chain-so"]));
    &BUILT
}

fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Compiles the program; everything that a compiler complains about is an error.
fn compile(machine: &Machine, archive: bool) -> PathBuf {
    let program = machine.path("component");
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic", "-o"]).arg(&program);
    command.arg(sources().join("tests/c/component.c")).arg("-I").arg(sources().join("include"));
    if archive {
        command.arg(built().join("libpartita_chain.a")).args(["-lpthread", "-ldl", "-lm", "-lgcc_s"]);
    } else {
        command.arg("-L").arg(built()).arg("-lpartita_chain");
    }
    succeed(command.arg("-L").arg(machine.libraries()).arg("-lcuda"));
    program
}

fn three_components(archive: bool) {
    if partita_testing::needs_simulator("the program is linked with the simulated driver") {
        return;
    }
    let machine = Machine::new(built(), "chain-c");
    let program = compile(&machine, archive);
    let file = machine.path("chain");
    let roles = ["in", "through", "out"].map(str::to_owned).to_vec();
    let plan = ChainPlan {
        name: "c".into(),
        roles,
        frame_bytes: 4096,
        frames: 4,
        queue_max: 2,
        policy: Policy::Wait,
        gpu_uuid: [0; 16],
    };
    let chain = Chain::create(&file, &plan).unwrap();
    let start = |role: usize| {
        let mut command = Command::new(&program);
        machine.surround(&mut command, "h200");
        let libraries =
            std::env::join_paths([machine.libraries(), built().to_owned()]).expect("paths without colons");
        command.env("LD_LIBRARY_PATH", libraries);
        command.env(CHAIN_VARIABLE, &file).env(COMPONENT_VARIABLE, role.to_string());
        command.stdin(Stdio::null()).spawn().unwrap()
    };
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

#[test]
fn the_header_is_cpp_as_well() {
    let mut command = Command::new("c++");
    command.args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-pedantic", "-x", "c++"]);
    succeed(command.arg(sources().join("include/partita_chain.h")));
}

/// What C finds in the library is what the header declares.
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
        succeed(Command::new("nm").args(["-D", "--defined-only"]).arg(built().join("libpartita_chain.so")));
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let mut exported: Vec<_> =
        symbols.lines().filter_map(|line| line.rsplit(' ').next()).map(str::to_owned).collect();
    exported.retain(|name| name.starts_with("partita_"));
    exported.sort();
    assert_eq!(exported, declared);
}
