//! Chains as [`partita_chain_host`] runs them: each in a tenant, by a process that knows nothing of
//! the daemon.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use partita::gpu::Selector;
use partita::gpus::Selectors;
use partita::registry::Registry;
use partita_chain_host::{self as chain, ChainRun, Definition, Steering};
use std::os::unix::process::CommandExt;

use super::{Chains, Running};
use crate::problem::{Kind, Problem};

/// The hidden subcommand that starts a chain and lasts as long as it.
pub const START_SUBCOMMAND: &str = "internal-start-chain";
/// How often a chain that starts is looked at.
const POLL: Duration = Duration::from_millis(50);
/// How much of the log of a chain that did not start is reported, in bytes.
const LAST_WORDS_BYTES: u64 = 600;

/// The chains of this machine.
#[derive(Debug)]
pub struct Facade {
    registry: Registry,
    program: PathBuf,
    /// Where what chains print goes.
    logs: PathBuf,
    /// The GPU of chains that name none; none for the default one.
    gpu: Option<String>,
}

impl Facade {
    /// The chains of a registry; those that `program`, this one, starts print into files in `logs`,
    /// and run on the first of the daemon's GPUs unless they name one.
    pub fn new(registry: Registry, program: PathBuf, logs: PathBuf, gpus: Option<&Selectors>) -> Self {
        let gpu = match gpus {
            Some(Selectors::List(gpus)) => gpus.first().map(Selector::to_string),
            _ => None,
        };
        Self { registry, program, logs, gpu }
    }

    fn log(&self, name: &str) -> std::io::Result<(PathBuf, File)> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.logs)?;
        let path = self.logs.join(format!("{name}.log"));
        let file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&path)?;
        Ok((path, file))
    }
}

impl Chains for Facade {
    fn running(&self) -> Result<Vec<Running>, Problem> {
        let mut running: Vec<Running> =
            chain::running(&self.registry)?.into_iter().map(Running::from).collect();
        running.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(running)
    }

    fn steer(&self, name: &str, steering: &Steering, user: u32) -> Result<(), Problem> {
        // The facade asks whether the daemon's user may, and not the one who asks it.
        for part in self.registry.lock()?.tenant(name)? {
            part.check_of(user)?;
        }
        Ok(chain::steer(&self.registry, name, steering)?)
    }

    fn start(&self, definition: &Definition, patience: Duration) -> Result<Running, Problem> {
        let name = &definition.name;
        let failed = |reason: String| Problem::new(Kind::Internal, format!("chain {name}: {reason}"));
        let gpu = definition.gpu.clone().or_else(|| self.gpu.clone());
        let order =
            ChainRun { definition: Definition { gpu, ..definition.clone() }, log: None, gpus: Vec::new() };
        let order = serde_json::to_string(&order).map_err(|error| failed(error.to_string()))?;
        // One whose process has died makes room for the new one.
        let before = self.look(name)?.map(|running| (running.supervisor_pid, running.started_unix_s));
        let (path, file) =
            self.log(name).map_err(|error| failed(format!("its log: {error}; see --state")))?;
        let errors = file.try_clone().map_err(|error| failed(error.to_string()))?;
        let mut command = Command::new(&self.program);
        command
            .arg(START_SUBCOMMAND)
            .arg(order)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors);
        // A signal to the daemon's group must not reach the chain, and the chain must not notify
        // the service manager.
        command
            .process_group(0)
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC")
            .env_remove("WATCHDOG_PID");
        let mut child = command
            .spawn()
            .map_err(|error| failed(format!("{} cannot be started: {error}", self.program.display())))?;
        let deadline = Instant::now() + patience;
        let outcome = loop {
            // The chain shows itself before it starts its programs.
            let has_begun = |running: &Running| {
                running.components.iter().all(|one| one.pid.is_some() || one.incarnation > 0)
            };
            let is_new = |running: &Running| {
                running.supervised
                    && Some((running.supervisor_pid, running.started_unix_s)) != before
                    && has_begun(running)
            };
            if let Some(running) = self.look(name)?.filter(is_new) {
                break Ok(running);
            }
            match child.try_wait().map_err(|error| failed(error.to_string()))? {
                None if Instant::now() < deadline => std::thread::sleep(POLL),
                None => {
                    break Err(Problem::new(
                        Kind::TimedOut,
                        format!(
                            "chain {name} has not begun within {} s; GET /v1/chains/{name} tells whether it will",
                            patience.as_secs()
                        ),
                    ));
                }
                Some(status) => {
                    let words = last_words(&path).unwrap_or_default();
                    return Err(Problem::new(
                        Kind::Conflict,
                        format!(
                            "chain {name} did not start ({status}): {words}; all of it is in {}",
                            path.display()
                        ),
                    ));
                }
            }
        };
        // Without a wait it would stay as a zombie.
        let _ = std::thread::Builder::new().name("chain".to_owned()).spawn(move || child.wait());
        outcome
    }
}

fn last_words(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LAST_WORDS_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LAST_WORDS_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}
