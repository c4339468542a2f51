//! A simulated GPU for a test, and children of the test program that run on it.
//!
//! Tests on a driver's structures can crash or leave it in any state, so they run in children:
//! ignored tests of the same program, which the other tests start with the environment of a
//! simulated driver.

use std::process::Command;

use partita_abi::qmd::{self, QmdLayout};
use partita_core::{Topology, Tpc};
use partita_driver::{Cuda, Gpu, probe};
use partita_testing::{Machine, ignored_test, succeed};

/// A simulated machine with a device.
pub struct Sim {
    machine: Machine,
    device: String,
}

impl Sim {
    /// A machine with this device.
    pub fn new(name: &str, device: &str) -> Self {
        Self { machine: Machine::new(name), device: device.to_owned() }
    }

    /// Runs an ignored test of the caller's file as a child on this machine. Returns the lines that
    /// the child printed for its parent.
    #[track_caller]
    pub fn child_says(&self, test: &str, variables: &[(&str, String)]) -> Vec<String> {
        let mut command = ignored_test(test);
        self.machine.surround(&mut command, &self.device);
        says(command.envs(variables.iter().map(|(name, value)| (name, value))))
    }
}

/// Runs a child that succeeds. Returns the lines that it printed for its parent.
pub fn says(command: &mut Command) -> Vec<String> {
    let out = succeed(command).stdout;
    let out = String::from_utf8_lossy(&out);
    out.lines().filter_map(|line| line.split_once("says: ")).map(|(_, said)| said.to_owned()).collect()
}

/// In a child: prints a line for the parent.
pub fn say(what: impl std::fmt::Display) {
    // On a separate line, whatever the harness has printed.
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

/// How many times the simulated driver found its own state changed by other code, in this process;
/// `None` on a real one.
pub fn corruptions(cuda: &Cuda) -> Option<u64> {
    let address = cuda.symbol(c"partita_sim_corruptions")?;
    // SAFETY: the simulated driver exports it with this prototype.
    let count =
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn() -> u64>(address.as_ptr()) };
    Some(count())
}
