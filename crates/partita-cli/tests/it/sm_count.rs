//! `--sm-count partition`: programs get the SM count of their partition, and libraries that compute
//! wrong results with it get the count of the device.

use crate::common;

use std::path::Path;
use std::process::Command;

use common::{Answering, World, compile, gpu_program, sms_of};
use partita_testing::succeed;

/// Compiles a shared object that queries it.
fn library(world: &World, name: &str, arguments: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hook/sm_count_asker.c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-w", "-shared", "-fPIC", "-pthread", "-o"]).arg(world.dir().join(name)).arg(source);
    cc.arg(format!("-Wl,-soname,{name}")).args(arguments).arg("-ldl");
    succeed(&mut cc);
}

fn start(world: &World, options: &str) -> Answering {
    library(world, "libcudart.so.13", &["-DRUNTIME"]);
    let runtime = world.dir().join("libcudart.so.13").display().to_string();
    // The name of a wheel's repaired file, and an unknown one.
    for name in ["libcublasLt-4f1c.so.13", "libcoolkernels.so"] {
        library(world, name, &[&runtime, "-Wl,-rpath,$ORIGIN"]);
    }
    let mut command = world.partita("run --name counted --isolation own".split_whitespace());
    command.args(options.split_whitespace()).arg("--").arg(compile(world, "sm_count"));
    let mut program = Answering::start(command.arg(&gpu_program().1).arg(world.dir()));
    assert_eq!(program.tenant.next_line(), "ready");
    program
}

/// The answers to all that query, if the program gets `program` SMs and the device has `device`.
fn told(program: u32, device: u32) -> Vec<String> {
    let mut lines = Vec::new();
    let mut say = |who: &str, ways: &[&str], sms| {
        lines.extend(ways.iter().map(|way| format!("{who} {way} {sms}")));
    };
    say("program", &["driver", "runtime", "thread"], program);
    say("listed", &["own runtime", "shared runtime", "thread", "caller"], device);
    say("other", &["own runtime", "shared runtime", "thread", "caller"], program);
    lines.push(String::from("threads of an SM 2048"));
    lines
}

#[test]
fn programs_see_their_partition_and_listed_libraries_the_device() {
    let world = World::new();
    let mut program = start(&world, "--sm tpc:0-7 --sm-count partition");
    assert_eq!(world.row("counted")["sm_count"], "partition");
    assert_eq!(program.ask("ask"), told(16, 132));
    assert_eq!(program.ask("potential"), ["potential 16", "potential 16"]);
    // The present number.
    world.ok("set counted --sm tpc:8-32");
    assert_eq!(program.ask("ask"), told(50, 132));
    assert_eq!(program.ask("potential"), ["potential 50", "potential 50"]);
    world.ok("set counted --sm 100%");
    assert_eq!(program.ask("ask"), told(132, 132));
    drop(program.input);
    assert_eq!(program.tenant.exit_code(), 0);
}

#[test]
fn a_cooperative_grid_of_the_reported_sm_count_fits() {
    let world = World::new();
    let mut program = start(&world, "--sm tpc:0-7 --sm-count partition");
    assert_eq!(program.line("cooperative"), format!("cooperative 0 sms {} blocks 32", sms_of("0-7")));
}

#[test]
fn by_default_programs_see_the_device() {
    let world = World::new();
    let mut program = start(&world, "--sm tpc:0-7");
    assert_eq!(world.row("counted")["sm_count"], "device");
    assert_eq!(program.ask("ask"), told(132, 132));
    assert_eq!(program.ask("potential"), ["potential 132", "potential 132"]);
    assert_eq!(program.line("cooperative"), "cooperative 720 sms blocks 0");
    let said = program.complaints();
    assert_eq!(
        said,
        "partita: sm_count: a cooperative launch of 264 blocks of 1024 threads was refused: this partition (16 of 132 SMs) runs at most \
         32 of them at once; use --sm-count partition if the program sizes its grid by the number of SMs, --on-misfit widen to run such \
         launches on the whole GPU, or a larger --sm\n"
    );
}
