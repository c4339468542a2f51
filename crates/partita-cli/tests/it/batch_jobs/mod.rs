//! A node with jobs: calls the scripts of a batch system as it does.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::common::{self, World, gpu_program, text};

/// One Slurm job.
pub struct Job<'a> {
    pub world: &'a World,
    pub id: String,
    pub comment: String,
    pub user: u32,
    /// Further environment variables.
    pub variables: Vec<(String, String)>,
}

/// The result of a script: its exit code, its report, its stderr.
#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    pub report: Value,
    pub said: String,
}

impl Ended {
    pub fn of(output: &Output) -> Self {
        let code = output.status.code().unwrap_or_else(|| panic!("{output:?}"));
        let report = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        Self { code, report, said: text(&output.stderr) }
    }

    /// Asserts success without a message.
    pub fn ok(self) -> Self {
        assert!(self.code == 0 && self.said.is_empty(), "{self:?}");
        self
    }

    pub fn step(&self, name: &str) -> Option<&Value> {
        self.report["steps"].as_array()?.iter().find(|step| step["step"] == name)
    }

    pub fn has(self, name: &str) -> Self {
        assert!(self.step(name).is_some(), "no {name} in {self:?}");
        self
    }
}

impl<'a> Job<'a> {
    pub fn new(world: &'a World, id: u32, comment: &str) -> Self {
        Self {
            world,
            id: format!("{}{id}", number_of(world)),
            comment: comment.to_owned(),
            user: world.user(),
            variables: Vec::new(),
        }
    }

    /// The name of its files and of its tenant.
    pub fn name(&self) -> String {
        format!("slurm-{}", self.id)
    }

    /// `partita batch` as slurmd calls a script.
    pub fn script(&self, script: &str, options: &str) -> Command {
        let line = format!("batch {script} --json --grace 1 {options}");
        // In system mode it is root's, as a batch system's scripts are.
        let mut command = self.world.keeper(&line);
        command
            .env("PARTITA_BATCH_DIR", state_dir(self.world))
            .env("SLURM_JOB_ID", &self.id)
            .env("SLURM_JOB_UID", self.user.to_string())
            .env("SLURM_JOB_GPUS", "0")
            .env("SLURM_JOB_COMMENT", &self.comment)
            .env("SLURM_SCRIPT_CONTEXT", format!("{script}_slurmd"))
            .envs(self.variables.iter().map(|(key, value)| (key, value)));
        command
    }

    pub fn prolog(&self) -> Ended {
        self.run("prolog", "")
    }

    pub fn epilog(&self) -> Ended {
        self.run("epilog", "")
    }

    pub fn run(&self, script: &str, options: &str) -> Ended {
        Ended::of(&self.script(script, options).output().unwrap())
    }

    pub fn task_prolog(&self) -> Output {
        let mut command = self.world.partita(["batch", "task-prolog"]);
        command.env("PARTITA_BATCH_DIR", state_dir(self.world)).env("SLURM_JOB_ID", &self.id);
        command.output().unwrap()
    }

    /// A program of the job, with the environment of its TaskProlog.
    pub fn task(&self, program: &Path) -> Command {
        let output = self.task_prolog();
        assert!(output.status.success(), "{output:?}");
        let mut command = Command::new(program);
        partita_testing::without_own_variables(&mut command);
        command.env("SLURM_JOB_ID", &self.id).env("PARTITA_RUN_DIR", self.world.run_dir());
        self.world.as_its_user(&mut command);
        for line in text(&output.stdout).lines() {
            match line.split_once(' ').unwrap() {
                ("export", pair) => {
                    let (key, value) = pair.split_once('=').unwrap();
                    command.env(key, value)
                }
                ("unset", key) => command.env_remove(key),
                other => panic!("{other:?}"),
            };
        }
        command
    }

    /// The CUDA test program in the job, doing `what`.
    pub fn gpu(&self, what: &str) -> Command {
        let (program, kernels) = gpu_program();
        let mut command = self.task(program);
        command.arg(kernels).args(what.split_whitespace());
        command
    }

    pub fn record(&self) -> PathBuf {
        state_dir(self.world).join(format!("jobs/{}.json", self.name()))
    }
}

/// The machine has one set of job numbers: an epilog ends the processes of its job, whichever test
/// started them.
pub fn number_of(world: &World) -> u32 {
    // FNV-1a of a path that no other test has.
    let bytes = world.dir().as_os_str().as_encoded_bytes();
    1 + bytes.iter().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
        % 999_999_999
}

pub fn state_dir(world: &World) -> PathBuf {
    world.dir().join("batch")
}

/// Writes the settings of the batch system's scripts on this node, as in `/etc/default/partita`.
pub fn write_settings(world: &World, path: &Path) {
    let partita = world.keeper("");
    let mut values: BTreeMap<String, String> = partita
        .get_envs()
        .filter_map(|(key, value)| Some((key.to_str()?.to_owned(), value?.to_str()?.to_owned())))
        .collect();
    values.insert("PARTITA_LIB_DIR".to_owned(), partita_testing::build().display().to_string());
    values.insert("PARTITA_BATCH_DIR".to_owned(), state_dir(world).display().to_string());
    if common::is_system() {
        // The jobs of several users make files there.
        let shared = world.root().join("tmp");
        fs::create_dir_all(&shared).unwrap();
        fs::set_permissions(&shared, PermissionsExt::from_mode(0o1777)).unwrap();
        values.insert("TMPDIR".to_owned(), shared.display().to_string());
    }
    let lines: String = values.iter().map(|(key, value)| format!("{key}='{value}'\n")).collect();
    fs::write(path, lines).unwrap();
}

/// The files of all jobs, and their locks.
pub fn state_files(world: &World) -> Vec<PathBuf> {
    let dirs = ["jobs", "env", "locks"].map(|dir| state_dir(world).join(dir));
    let files = dirs.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten();
    // The empty lock of a service stays after a killed script, until the next job of its group.
    let is_lock = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("service-");
    files.map(|entry| entry.unwrap().path()).filter(|path| !is_lock(path)).collect()
}

/// Asserts that no job, no service, no process and no file is left.
pub fn assert_clean(world: &World) {
    world.assert_clean();
    let files = state_files(world);
    assert!(files.is_empty(), "left behind: {files:?}");
}

/// The MPS control daemons of this world.
pub fn daemons(world: &World) -> Vec<u32> {
    let mut pids: Vec<u32> = world
        .processes()
        .into_iter()
        .filter(|(_, name)| name.starts_with("nvidia-cuda-mps") || name.starts_with("partita-sim-mps"))
        .map(|(pid, _)| pid)
        .collect();
    pids.sort_unstable();
    pids
}
