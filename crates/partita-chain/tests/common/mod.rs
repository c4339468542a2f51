//! Chains of real processes on a simulated machine.

// Each test file uses a part of this.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;

use partita_chain::{CHAIN_VARIABLE, COMPONENT_VARIABLE, Chain, ChainPlan, Policy};
use partita_testing::{Machine, eventually, without_own_variables};

/// The directory of the simulated driver.
fn built() -> &'static Path {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| partita_testing::build(&[]));
    &BUILT
}

/// A chain, and what its components run on.
pub struct World {
    machine: Machine,
    commands: Vec<Vec<String>>,
}

/// A component's process; killed when dropped.
pub struct Process(Option<Child>);

impl Process {
    pub fn wait(mut self) -> ExitStatus {
        self.0.take().unwrap().wait().unwrap()
    }

    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.0.as_mut().unwrap().try_wait().unwrap()
    }

    pub fn kill(&mut self) {
        let mut child = self.0.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Ends with 0.
    pub fn succeeds(self, what: &str) {
        let status = self.wait();
        assert!(status.success(), "{what}: {status}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl World {
    /// A chain of `partita-stage` with these arguments each.
    pub fn of_stages(name: &str, frame_bytes: u64, frames: u32, policy: Policy, stages: &[&str]) -> Self {
        let program = env!("CARGO_BIN_EXE_partita-stage");
        let words = |stage: &&str| [program].into_iter().chain(stage.split(' ')).map(str::to_owned).collect();
        let world =
            Self { machine: Machine::new(built(), name), commands: stages.iter().map(words).collect() };
        let plan = ChainPlan {
            name: name.into(),
            roles: (0..stages.len()).map(|role| format!("role-{role}")).collect(),
            frame_bytes,
            frames,
            queue_max: 2,
            policy,
            gpu_uuid: [0; 16],
        };
        Chain::create(&world.file(), &plan).unwrap();
        world
    }

    pub fn file(&self) -> PathBuf {
        self.machine.path("chain")
    }

    pub fn chain(&self) -> Chain {
        Chain::open(&self.file()).unwrap()
    }

    /// Gives a program this machine, and its place in the chain.
    pub fn surround(&self, command: &mut Command, role: usize) {
        if partita_testing::is_real() {
            without_own_variables(command);
        } else {
            self.machine.surround(command, "h200");
        }
        command.env(CHAIN_VARIABLE, self.file()).env(COMPONENT_VARIABLE, role.to_string());
        command.env("PARTITA_CACHE_DIR", self.machine.path("cache"));
    }

    /// Starts a component.
    pub fn start(&self, role: usize) -> Process {
        let (program, arguments) = self.commands[role].split_first().unwrap();
        let mut command = Command::new(program);
        self.surround(command.args(arguments), role);
        Process(Some(command.stdin(Stdio::null()).spawn().unwrap()))
    }

    /// Starts all of them, each when the one before is there: whoever opens memory wants the one who allocates it.
    pub fn start_all(&self) -> Vec<Process> {
        (0..self.commands.len()).map(|role| self.start(role)).collect()
    }

    /// Waits until the last component has finished so many frames.
    pub fn finishes(&self, frames: u64, processes: &mut [Process]) {
        let chain = self.chain();
        eventually(&format!("{frames} frames have gone through"), || {
            for (role, process) in processes.iter_mut().enumerate() {
                let failed = process.has_ended().filter(|status| !status.success());
                assert_eq!(failed, None, "component {role}");
            }
            chain.frames_finished() >= frames
        });
    }
}
