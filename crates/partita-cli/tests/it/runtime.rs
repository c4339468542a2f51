//! Programs with the CUDA runtime linked in: there is no library of it to preload or to find.
//!
//! `PARTITA_TEST_CUDA` names a directory of NVIDIA's toolkit with `lib/libcudart_static.a` (the
//! wheel `nvidia-cuda-runtime` has one); on a real GPU the program is linked with that.

use crate::common;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{World, gpu_program, is_real, sms_of, text};
use partita_testing::succeed;

/// Compiles the program with a runtime.
fn program(world: &World, name: &str, runtime: impl AsRef<OsStr>) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hook/runtime.c");
    let program = world.dir().join(name);
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-o"]).arg(&program).arg(source).arg(runtime);
    succeed(cc.args(["-ldl", "-lpthread", "-lrt"]));
    program
}

/// Its memory and its launches belong to the tenant.
fn assert_held(world: &World, program: &Path) {
    let mut command = world.partita("run --isolation own --sm tpc:0-3 --mem 256MiB --".split_whitespace());
    let output = succeed(command.arg(program).arg(&gpu_program().1));
    assert_eq!(text(&output.stdout), format!("memory held\nsms {}\n", sms_of("0-3")));
}

/// The runtime's calls of the driver, in one of our programs.
#[test]
fn a_runtime_inside_the_program_is_held_by_what_it_asks_the_driver_for() {
    let world = World::new();
    let program = program(&world, "stand_in", "-DSTAND_IN");
    assert_held(&world, &program);
}

#[test]
fn nvidias_static_runtime_is_held() {
    let archive =
        std::env::var_os("PARTITA_TEST_CUDA").map(|dir| Path::new(&dir).join("lib/libcudart_static.a"));
    let Some(archive) = archive else {
        eprintln!("skipped: PARTITA_TEST_CUDA names no directory with lib/libcudart_static.a");
        return;
    };
    let world = World::new();
    let program = program(&world, "static", &archive);
    let needed = text(&succeed(Command::new("ldd").arg(&program)).stdout);
    assert!(!needed.contains("libcuda"), "{needed}");
    if !is_real() {
        // NVIDIA's runtime requests several undocumented tables of the driver; the simulated driver
        // has one of them. So the program does not start.
        eprintln!("linked, and not run: NVIDIA's runtime needs tables of the driver that are not simulated");
        return;
    }
    assert_held(&world, &program);
}
