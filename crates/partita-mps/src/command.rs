//! Commands to a running control daemon, as typed calls.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::Pid;
use crate::binary::ControlBinary;
use crate::error::MpsError;
use crate::exec::{self, Outcome};

/// How long a command may take unless told otherwise. A daemon answers in
/// milliseconds; while it ends a client it may keep others waiting for a while.
pub const COMMAND_LIMIT: Duration = Duration::from_secs(10);

/// A way to command the daemon that listens in one pipe directory.
#[derive(Debug, Clone)]
pub struct Control {
    binary: ControlBinary,
    pipe: PathBuf,
    env: Vec<(String, std::ffi::OsString)>,
    limit: Duration,
}

impl Control {
    /// Commands go through `binary` to the daemon in `pipe`.
    pub fn new(binary: ControlBinary, pipe: &Path) -> Self {
        Self { binary, pipe: pipe.to_owned(), env: Vec::new(), limit: COMMAND_LIMIT }
    }

    /// Sets a variable in the control program's environment.
    pub fn with_env(mut self, key: &str, value: impl Into<std::ffi::OsString>) -> Self {
        self.env.push((key.to_owned(), value.into()));
        self
    }

    /// Gives every later command this much time.
    pub fn with_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The servers of this daemon: one per user that has or had clients.
    ///
    /// # Errors
    /// See [`Control::command`].
    pub fn server_list(&self) -> Result<Vec<Pid>, MpsError> {
        self.pids("get_server_list")
    }

    /// The client processes of one server.
    ///
    /// # Errors
    /// See [`Control::command`]; [`MpsError::NoSuchServer`].
    pub fn client_list(&self, server: Pid) -> Result<Vec<Pid>, MpsError> {
        self.pids(&format!("get_client_list {server}"))
    }

    /// Ends one client's work on the GPU and its contexts. The client's process
    /// lives on, and its next CUDA call fails with error 810. The other clients
    /// of the server are unhurt, which they are not when a client with work in
    /// flight is killed outright.
    ///
    /// # Errors
    /// See [`Control::command`]; [`MpsError::NoSuchServer`], [`MpsError::NoSuchClient`].
    pub fn terminate_client(&self, server: Pid, client: Pid) -> Result<(), MpsError> {
        let command = format!("terminate_client {server} {client}");
        let reply = self.command(&command)?;
        match reply.trim() {
            "" | "0" => Ok(()),
            // CUDA_ERROR_INVALID_CONTEXT: how a driver of CUDA 13.0 answers for an unknown client.
            "201" => Err(MpsError::NoSuchClient { server, client }),
            message => Err(MpsError::Refused { command, message: message.to_owned() }),
        }
    }

    /// The percentage of the SMs that servers started from now on give to a client.
    ///
    /// # Errors
    /// See [`Control::command`].
    pub fn default_active_thread_percentage(&self) -> Result<f64, MpsError> {
        let command = "get_default_active_thread_percentage";
        let reply = self.command(command)?;
        let value = reply.trim().trim_end_matches('%').trim_end();
        match value.parse::<f64>() {
            Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
            _ => Err(MpsError::Reply { command: command.to_owned(), reply: reply.trim().to_owned() }),
        }
    }

    /// Sets what [`Control::default_active_thread_percentage`] tells. Partita itself only
    /// ever sets 100: less makes libraries see fewer SMs than there are.
    ///
    /// # Errors
    /// See [`Control::command`]; [`MpsError::Reply`] if the daemon does not tell
    /// the same value afterwards.
    pub fn set_default_active_thread_percentage(&self, percent: f64) -> Result<(), MpsError> {
        let command = format!("set_default_active_thread_percentage {percent}");
        let reply = self.command(&command)?;
        let now = self.default_active_thread_percentage()?;
        if (now - percent).abs() < 0.05 {
            Ok(())
        } else {
            Err(MpsError::Reply { command, reply: format!("{} and then {now}", reply.trim()) })
        }
    }

    /// Asks the daemon to end. It does so when its servers have no clients left.
    ///
    /// # Errors
    /// See [`Control::command`].
    pub fn quit(&self) -> Result<(), MpsError> {
        self.command("quit").map(drop)
    }

    /// Sends one line and returns the answer.
    ///
    /// # Errors
    /// [`MpsError::NotRunning`] if no daemon listens, [`MpsError::NoSuchServer`],
    /// [`MpsError::NoSuchClient`], [`MpsError::UnknownCommand`] or [`MpsError::Refused`]
    /// if the answer is one of the daemon's refusals, [`MpsError::Timeout`], and
    /// [`MpsError::Spawn`] if the control program cannot be run.
    pub fn command(&self, line: &str) -> Result<String, MpsError> {
        let mut command = Command::new(self.binary.path());
        command.env_remove("LD_PRELOAD").env("CUDA_MPS_PIPE_DIRECTORY", &self.pipe);
        command.envs(self.env.iter().map(|(key, value)| (key, value)));
        let outcome = exec::run(&mut command, &format!("{line}\n"), self.limit)
            .map_err(|source| MpsError::Spawn { binary: self.binary.path().to_owned(), source })?;
        match outcome {
            Outcome::TimedOut => {
                Err(MpsError::Timeout { command: line.to_owned(), waited_s: self.limit.as_secs() })
            }
            Outcome::Done { status, output } if output.trim().is_empty() && !status.success() => {
                Err(MpsError::Refused { command: line.to_owned(), message: status.to_string() })
            }
            Outcome::Done { output, .. } => self.check(line, output),
        }
    }

    /// Tells an answer from a refusal. The exit status does not: a driver of
    /// CUDA 13.0 gives 0 to every command that a daemon answers, refusals included.
    fn check(&self, line: &str, output: String) -> Result<String, MpsError> {
        let lower = output.to_lowercase();
        let command = || line.to_owned();
        if lower.contains("cannot find mps control daemon") {
            return Err(MpsError::NotRunning { pipe: self.pipe.clone() });
        }
        if lower.contains("unknown command") || lower.contains("unrecognized") {
            return Err(MpsError::UnknownCommand { command: command() });
        }
        let numbers: Vec<Pid> =
            line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
        if let Some(&server) = numbers.first()
            && lower.contains(&format!("server {server} not found"))
        {
            return Err(MpsError::NoSuchServer { server });
        }
        if let [server, client] = numbers[..]
            && lower.contains(&format!("client {client} not found"))
        {
            return Err(MpsError::NoSuchClient { server, client });
        }
        const REFUSALS: [&str; 6] = ["not found", "not exist", "invalid", "failed", "permission", "usage:"];
        if REFUSALS.iter().any(|refusal| lower.contains(refusal)) {
            let message = output.split_whitespace().collect::<Vec<_>>().join(" ");
            return Err(MpsError::Refused { command: command(), message });
        }
        Ok(output)
    }

    fn pids(&self, line: &str) -> Result<Vec<Pid>, MpsError> {
        let reply = self.command(line)?;
        reply
            .split_whitespace()
            .map(|word| word.parse().ok().filter(|&pid| pid > 0))
            .collect::<Option<Vec<Pid>>>()
            .ok_or_else(|| MpsError::Reply { command: line.to_owned(), reply: reply.trim().to_owned() })
    }
}
