//! Chains of real processes on a simulated machine.

// Each test file uses a part of this.
#![allow(dead_code)]

use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use std::time::Duration;

use partita_chain::{CHAIN_VARIABLE, COMPONENT_VARIABLE, Chain, ChainPlan, KEEPER_VARIABLE, Policy};
use partita_memory::client::Connection;
use partita_testing::{Machine, build, eventually, ignored_test, without_own_variables};

/// The owner of the frames' memory, and how it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// The first component's.
    Own,
    /// A keeper's, by handles.
    Handles,
    /// A keeper's, by descriptors.
    Descriptors,
}

/// A chain, and what its components run on.
pub struct World {
    machine: Machine,
    commands: Vec<Vec<String>>,
    keeper: Option<Process>,
    has_mps: bool,
}

/// A component's process; killed when dropped.
pub struct Process(Option<Child>);

impl Process {
    pub fn start(command: &mut Command) -> Self {
        Self(Some(command.stdin(Stdio::null()).spawn().unwrap()))
    }

    /// Its output, if that goes into a pipe.
    pub fn stdout(&mut self) -> ChildStdout {
        self.0.as_mut().unwrap().stdout.take().unwrap()
    }

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
        let machine = Machine::new(name);
        let world =
            Self { machine, commands: stages.iter().map(words).collect(), keeper: None, has_mps: false };
        let plan = ChainPlan {
            name: name.into(),
            roles: (0..stages.len()).map(|role| format!("role-{role}")).collect(),
            frame_bytes,
            frames,
            queue_max: 2,
            policy,
            role_gpus: Vec::new(),
        };
        Chain::create(&world.file(), &plan).unwrap();
        world
    }

    /// The same with this memory. A keeper is an ignored test of `processes.rs`.
    pub fn with(mut self, memory: Memory) -> Self {
        if memory != Memory::Own {
            let mut command = ignored_test("processes::child_keeps");
            self.surround(&mut command, 0);
            command.env("PARTITA_TEST_MEMORY", format!("{memory:?}")).env(KEEPER_VARIABLE, self.socket());
            self.keeper = Some(Process::start(command.stdout(Stdio::null())));
            eventually("the keeper serves", || {
                Connection::connect(&self.socket(), None, Duration::from_secs(60)).is_ok()
            });
        }
        self
    }

    /// The same with a Multi-Process Service, of which every program is a client.
    pub fn with_mps(mut self) -> Self {
        for dir in ["pipe", "log"] {
            std::fs::create_dir(self.machine.path(dir)).unwrap();
        }
        self.has_mps = true;
        assert!(self.mps_control().arg("-d").status().unwrap().success());
        self
    }

    fn mps_control(&self) -> Command {
        let mut command = Command::new(build().join("partita-sim-mps-control"));
        self.surround(&mut command, 0);
        command
    }

    fn socket(&self) -> PathBuf {
        self.machine.path("keeper")
    }

    /// A connection to the keeper, for queries.
    pub fn keeper(&self) -> Connection {
        Connection::connect(&self.socket(), None, Duration::from_secs(60)).unwrap()
    }

    /// At the end there are no leases, and the GPU has all memory back.
    pub fn keeper_is_clean_in_the_end(&self) {
        if self.keeper.is_none() {
            return;
        }
        let mut last = Default::default();
        eventually("all memory has gone back", || {
            last = self.keeper().status().unwrap().totals;
            (last.leases, last.resting, last.owners, last.slab_bytes) == (0, 0, 0, 0)
        });
        assert_eq!((last.leased_ever, last.slabs_made_ever), (last.given_back_ever, last.slabs_freed_ever));
        assert!(last.leased_ever > 0, "the frames were its");
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
        if self.has_mps {
            command.env("CUDA_MPS_PIPE_DIRECTORY", self.machine.path("pipe"));
            command.env("CUDA_MPS_LOG_DIRECTORY", self.machine.path("log"));
        }
        if self.keeper.is_some() {
            command.env(KEEPER_VARIABLE, self.socket());
        }
    }

    /// Starts a component.
    pub fn start(&self, role: usize) -> Process {
        let (program, arguments) = self.commands[role].split_first().unwrap();
        let mut command = Command::new(program);
        self.surround(command.args(arguments), role);
        Process::start(&mut command)
    }

    /// Starts all of them, each when the one before is ready: a process that opens memory needs the
    /// one that allocates it.
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

impl Drop for World {
    fn drop(&mut self) {
        if self.has_mps
            && let Ok(mut control) = self.mps_control().stdin(Stdio::piped()).stdout(Stdio::null()).spawn()
        {
            let told = std::io::Write::write_all(&mut control.stdin.take().unwrap(), b"quit -t 1\n");
            let ended = told.is_ok() && control.wait().is_ok_and(|status| status.success());
            assert!(ended || std::thread::panicking(), "the service does not end");
        }
    }
}
