//! Containers in HAMi's setup: the library preloaded, and an environment.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use partita_testing::{succeed, without_own_variables};

use super::{World, compile, is_real, text};

pub const CACHE: &str = "CUDA_DEVICE_MEMORY_SHARED_CACHE";
pub const MEMORY: &str = "CUDA_DEVICE_MEMORY_LIMIT";
pub const CORES: &str = "CUDA_DEVICE_SM_LIMIT";

/// A container with a file that names its tenant.
pub struct Container<'w> {
    pub world: &'w World,
    pub dir: PathBuf,
    pub variables: Vec<(String, String)>,
}

impl<'w> Container<'w> {
    pub fn new(world: &'w World, name: &str) -> Self {
        let dir = world.make_dir(name);
        let cache = dir.join("pod.cache").display().to_string();
        let container = Self { world, dir, variables: Vec::new() };
        container.with(CACHE, &cache)
    }

    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.retain(|(known, _)| known != name);
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The directory of its tenants.
    pub fn root(&self) -> PathBuf {
        self.dir.join("partita")
    }

    /// A program in it: with the library preloaded and no other setting of Partita's.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = bare(self.world, program);
        command.env("LD_PRELOAD", partita_testing::build().join("libpartita.so"));
        command.env("PARTITA_CACHE_DIR", self.world.dir().join("nothing-proved"));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs `tests/hook/spill.c` with its commands; returns its answers, and its other output.
    pub fn allocates(&self, commands: &str) -> (Vec<String>, String) {
        self.answers(self.command(&program(self.world, "spill")), commands)
    }

    pub fn answers(&self, mut command: Command, commands: &str) -> (Vec<String>, String) {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        // A refused program reads nothing.
        let _ = child.stdin.take().unwrap().write_all(commands.as_bytes());
        let output = child.wait_with_output().unwrap();
        let lines = text(&output.stdout);
        let lines = lines.lines().filter(|&line| line != "done").map(str::to_owned).collect();
        (lines, text(&output.stderr))
    }

    /// The one line with the reason that the program has no GPU: it continues, with an error that
    /// cuInit documents and nothing on stdout.
    pub fn refused(&self) -> String {
        let (lines, said) = self.allocates("a 1\n");
        assert!(lines.is_empty(), "{lines:?}");
        let (reason, of_program) = said.trim_end().split_once('\n').unwrap_or_else(|| panic!("{said:?}"));
        assert_eq!(of_program, "cuInit: 101", "{said}");
        reason.strip_prefix("partita: ").unwrap_or_else(|| panic!("{said}")).to_owned()
    }

    /// `partita`, looking at its tenants.
    pub fn partita(&self, line: &str) -> Output {
        let mut command = self.world.partita(line.split_whitespace());
        command.env("PARTITA_RUN_DIR", self.root()).output().expect("partita runs")
    }

    pub fn rows(&self) -> Vec<serde_json::Value> {
        let output = self.partita("ps --json");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|wrong| panic!("{wrong}: {output:?}"))
    }

    /// The directories of present tenants.
    pub fn tenants(&self) -> Vec<PathBuf> {
        let gpus = directories(&self.root());
        gpus.iter().flat_map(|gpu| directories(gpu)).collect()
    }
}

pub fn directories(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// A program outside any container.
pub fn bare(world: &World, program: &Path) -> Command {
    let mut command = Command::new(program);
    without_own_variables(&mut command);
    command.envs(driver(world)).stdin(Stdio::null());
    world.as_its_user(&mut command);
    command
}

/// The environment that makes programs use the driver under test.
pub fn driver(world: &World) -> Vec<(String, String)> {
    if is_real() {
        return Vec::new();
    }
    let told = text(&succeed(&mut world.partita(["sim", "env", "--gpu", "sim:h200"])).stdout);
    let variable = |line: &str| {
        let (name, value) = line.strip_prefix("export ")?.split_once('=')?;
        Some((name.to_owned(), value.trim_matches('\'').to_owned()))
    };
    told.lines().filter_map(variable).collect()
}

pub fn program(world: &World, name: &str) -> PathBuf {
    let path = world.dir().join(name);
    if path.exists() { path } else { compile(world, name) }
}

/// The directory of a calibration, proved by the command and not by the program.
pub fn proved(world: &World) -> String {
    succeed(&mut world.partita(["run", "--dry-run", "--sm", "50%", "--", "true"]));
    world.cache().display().to_string()
}

/// A new container with one variable.
pub fn container_of<'w>(world: &'w World, name: &str, variable: &str, value: &str) -> Container<'w> {
    let _ = fs::remove_dir_all(world.dir().join(name));
    Container::new(world, name).with(variable, value)
}
