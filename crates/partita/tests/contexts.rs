//! Pools of contexts with some SMs each, in a client of MPS, in none, and in a tenant with a mask.
//!
//! Each runs as a child of this test program on a simulated H200.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use partita::contexts::ContextPool;
use partita_driver::{Census, Cuda, Gpu, Grid};
use partita_testing::{build, ignored_test, succeed, without_own_variables};

struct World {
    temp: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        Self { temp: tempfile::Builder::new().prefix("pc").tempdir_in("/tmp").unwrap() }
    }

    fn surround(&self, command: &mut Command) {
        without_own_variables(command);
        let at = |name: &str| self.temp.path().join(name);
        command
            .env("PARTITA_RUN_DIR", at("run"))
            .env("PARTITA_CACHE_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"))
            .env("PARTITA_SIM_DIR", at("sim"))
            .env("PARTITA_GPU", "sim:h200");
    }

    fn partita(&self, line: &str) -> Command {
        let mut command = Command::new(build().join("partita"));
        command.args(line.split_whitespace());
        self.surround(&mut command);
        command
    }

    /// Runs a test of this file in the process that `around` starts.
    fn run(&self, mut around: Command, test: &str) {
        let program = ignored_test(test);
        around.arg(program.get_program()).args(program.get_args());
        let out = succeed(&mut around).stdout;
        assert!(String::from_utf8_lossy(&out).contains("1 passed"), "it ran");
    }

    /// A shell that puts a program on the simulated GPU, with these variables.
    fn bare(&self, variables: &[(&str, &str)]) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", "eval \"$(\"$0\" sim env --gpu sim:h200)\" && exec \"$@\""])
            .arg(build().join("partita"));
        self.surround(&mut command);
        command.envs(variables.iter().copied());
        command
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.partita("mps stop --force").output();
    }
}

#[test]
#[ignore = "run by the others as a program of its own"]
fn child_of_mps() {
    // The sizes of the guide, as an H200 rounds them.
    let pool = ContextPool::new(&[86, 1, 2, 43]).unwrap();
    assert_eq!(pool.sizes(), [8, 44, 86]);
    assert_eq!(pool.at_least(40).unwrap().sms(), 44);
    assert_eq!(pool.at_least(44).unwrap().sms(), 44);
    assert!(pool.at_least(87).is_none());
    assert_eq!(pool.largest().unwrap().sms(), 86);

    let cuda = Cuda::load(None).unwrap();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let grid = Grid { blocks: gpu.facts().sms * 4, threads: 1024, cluster_blocks: 1 };
    for sms in [8, 44, 86] {
        let place = gpu.place(pool.at_least(sms).unwrap().stream());
        let seen: BTreeSet<u32> = Census::at(&gpu, place, grid, 20_000).unwrap().sms().unwrap();
        assert_eq!(seen.len(), sms as usize);
    }
    let many: Vec<u32> = (4..60).map(|tpcs| 2 * tpcs).collect();
    let error = ContextPool::new(&many).unwrap_err().to_string();
    assert!(error.contains("56 contexts does not fit"), "{error}");
}

#[test]
#[ignore = "run by the others as a program of its own"]
fn child_outside() {
    let error = ContextPool::new(&[8]).unwrap_err().to_string();
    assert!(error.contains("this process is not one") && error.contains("partita mps status"), "{error}");
}

#[test]
#[ignore = "run by the others as a program of its own"]
fn child_with_a_mask() {
    let error = ContextPool::new(&[8]).unwrap_err().to_string();
    assert!(error.contains("a tenant with a mask") && error.contains("partita::restrict"), "{error}");
}

#[test]
fn a_client_of_mps_has_contexts_of_the_sizes_that_it_asked_for() {
    let world = World::new();
    succeed(&mut world.partita("mps start"));
    let status = succeed(&mut world.partita("mps status")).stdout;
    let status = String::from_utf8(status).unwrap();
    let pipe = status.lines().find_map(|line| line.trim().strip_prefix("CUDA_MPS_PIPE_DIRECTORY=")).unwrap();
    world.run(world.bare(&[("CUDA_MPS_PIPE_DIRECTORY", pipe)]), "child_of_mps");
}

#[test]
fn a_process_that_is_no_client_is_refused() {
    let world = World::new();
    world.run(world.bare(&[("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent")]), "child_outside");
}

#[test]
fn a_tenant_with_a_mask_is_refused() {
    let world = World::new();
    let run = world.partita("run --sm 50% --");
    world.run(run, "child_with_a_mask");
}
