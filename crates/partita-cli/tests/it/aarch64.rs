//! A tenant's program for aarch64, in an emulator: library and driver are built for aarch64; the
//! ledger, the GPU and the commands are this machine's.

use crate::common;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use common::{World, succeeds};
use partita_testing::{Aarch64, aarch64, needs_simulator, succeed};

fn compile(world: &World, machine: &Aarch64, source: &str, name: &str, options: &[&str]) -> PathBuf {
    let (source, made) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source), world.dir().join(name));
    succeed(machine.cc().args(["-O1", "-o"]).arg(&made).arg(source).args(options));
    made
}

#[test]
fn a_program_for_aarch64_is_held_to_its_partition() {
    if needs_simulator("the emulated program has no real driver") {
        return;
    }
    let Some(machine) = aarch64() else { return };
    let world = World::new();
    let program = compile(&world, machine, "it/common/gpu.c", "gpu", &["-ldl"]);
    let calls = compile(&world, machine, "hook/own_memory.c", "own_memory.so", &["-shared", "-fPIC"]);
    for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        symlink(machine.built("libpartita_simcuda.so"), world.dir().join(name)).unwrap();
    }
    let options = "--sm 50% --mem 1GiB";
    let emulated = |what: &str| {
        let variables = [
            ("LD_PRELOAD", format!("{}:{}", calls.display(), machine.built("libpartita.so").display())),
            ("LD_LIBRARY_PATH", world.dir().display().to_string()),
            ("PARTITA_SIM_RESERVED_GIB", "4".to_owned()),
        ];
        let inside = machine.command(&program, &variables);
        let mut command = world.partita(["run"].into_iter().chain(options.split_whitespace()));
        // The emulator itself is linked statically, and would be refused.
        command
            .args(["--", "sh", "-c", r#"exec "$@""#, "sh"])
            .arg(inside.get_program())
            .args(inside.get_args());
        succeeds(command.arg(&common::gpu_program().1).args(what.split_whitespace()))
    };
    let own = |what: &str| succeeds(&mut world.gpu(options, what));
    assert_eq!(emulated("total"), "total 1073741824\n");
    assert_eq!(emulated("alloc 600000000 600000000"), "alloc 0\nalloc 2\n");
    let sms = emulated("census");
    assert_eq!(sms.split_whitespace().count(), 1 + 66, "{sms}");
    assert_eq!(sms, own("census"), "the SMs of a program for this machine");
}
