//! A simulated GPU of a test's own, and children of this test program that run on it.
//!
//! What a driver's structures are tried on may crash or be left in any state, so it is done in children: ignored tests of the same program,
//! which the others start with the environment of a simulated driver.

// Each test file uses a part of this.
#![allow(dead_code)]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use partita_abi::qmd::{self, QmdLayout};
use partita_core::{Topology, Tpc};
use partita_driver::{Cuda, Gpu, probe};

/// The directory of the simulator's library and programs, built if they are not up to date.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let executable = std::env::current_exe().unwrap();
        // TARGET/PROFILE/deps/TEST
        let profile = executable.ancestors().nth(2).expect("tests lie in a target directory").to_owned();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet"]);
        // The same packages as other tests build, so that none builds them anew.
        for package in ["partita-simcuda", "partita-simcuda-so", "partita-hook"] {
            cargo.args(["--package", package]);
        }
        cargo.arg("--target-dir").arg(profile.parent().expect("a profile is in the target directory"));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        cargo.arg("--manifest-path").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
        assert!(cargo.status().expect("cargo runs").success(), "the simulator is built");
        profile
    })
}

/// A simulated machine with a directory of its own.
pub struct Sim {
    dir: PathBuf,
    device: String,
}

impl Sim {
    /// A machine with this device.
    pub fn new(name: &str, device: &str) -> Self {
        // Short, because socket paths are.
        let dir = std::env::temp_dir().join(format!("pdr-{}-{name}", std::process::id()));
        let links = dir.join("lib");
        std::fs::create_dir_all(&links).unwrap();
        let library = built().join("libpartita_simcuda.so");
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            let _ = std::fs::remove_file(links.join(name));
            symlink(&library, links.join(name)).unwrap();
        }
        Self { dir, device: device.to_owned() }
    }

    /// Runs an ignored test of this program as a child on this machine.
    pub fn child(&self, test: &str, variables: &[(&str, String)]) -> Output {
        let mut command = Command::new(std::env::current_exe().unwrap());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("PARTITA_") || text.starts_with("CUDA_") {
                command.env_remove(&name);
            }
        }
        command
            .args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env("LD_LIBRARY_PATH", self.dir.join("lib"))
            .env("PARTITA_SIM_DIR", self.dir.join("board"))
            .env("PARTITA_SIM_DEVICE", &self.device)
            .env("PARTITA_SIMGPU", built().join("partita-simgpu"))
            .env("CUDA_MPS_PIPE_DIRECTORY", self.dir.join("no-mps"))
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .output()
            .unwrap()
    }

    /// As [`Sim::child`], expecting success. Returns the lines that the child printed for its parent.
    pub fn child_says(&self, test: &str, variables: &[(&str, String)]) -> Vec<String> {
        let output = self.child(test, variables);
        let out = String::from_utf8_lossy(&output.stdout);
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{test} {variables:?}: {}\n{out}{err}", output.status);
        out.lines().filter_map(|line| line.split_once("says: ")).map(|(_, said)| said.to_owned()).collect()
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        // The board ends with its last client and removes what is its own.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// In a child: tells the parent something.
pub fn say(what: impl std::fmt::Display) {
    // On a line of its own, whatever the harness has printed.
    println!("\nsays: {what}");
}

/// In a child: the driver of its environment.
pub fn cuda() -> Cuda {
    Cuda::load(None).unwrap()
}

/// In a child: what a calibration finds, and the layout of the launch descriptors.
pub fn board(gpu: &Gpu<'_>) -> (Topology, &'static QmdLayout) {
    let probe = probe(gpu).unwrap();
    let tpcs: Vec<Tpc> = probe.tpcs.iter().map(|tpc| Tpc { gpc: tpc.gpc, physical: tpc.physical }).collect();
    let layout = qmd::layout_for(probe.facts.compute_capability, probe.qmd_version).unwrap();
    (Topology::new(probe.sms_per_tpc, tpcs).unwrap(), layout)
}

/// How often the simulated driver saw its own state changed by somebody else, in this process; `None` on a real one.
pub fn corruptions(cuda: &Cuda) -> Option<u64> {
    let address = cuda.symbol(c"partita_sim_corruptions")?;
    // SAFETY: the simulated driver exports it with this prototype.
    let count =
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn() -> u64>(address.as_ptr()) };
    Some(count())
}
