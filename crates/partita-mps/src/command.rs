//! Commands to a running control daemon, as typed calls.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use crate::Pid;
use crate::binary::ControlBinary;
use crate::error::MpsError;
use crate::exec::{self, Outcome};
use crate::lock::lock_within;
use crate::reply::{self, ClientRow, DeviceClients, ServerStatus};
use crate::values::{ClientPriority, DeviceName, MemoryLimit};

/// The default time limit of a command. A daemon answers in milliseconds, but while it ends a
/// client it may delay others for a while.
pub const COMMAND_LIMIT: Duration = Duration::from_secs(10);

/// The control program's message if the daemon's socket exists and does not accept. Two control
/// programs at the same time caused it on an H200 (CUDA 13.0), and also exits without output: the
/// daemon serves one at a time.
const UNSENT: &str = "Cannot send command to MPS control daemon";
/// The pause after that.
const UNSENT_PAUSE: Duration = Duration::from_millis(20);
/// How long to repeat a command that exits without output before that counts as its answer.
const SILENCE_LIMIT: Duration = Duration::from_secs(1);

/// Sends commands to the daemon that listens in one pipe directory.
#[derive(Debug, Clone)]
pub struct Control {
    binary: ControlBinary,
    pipe: PathBuf,
    env: Vec<(String, OsString)>,
    limit: Duration,
    deadline: Option<Instant>,
}

impl Control {
    /// Commands go through `binary` to the daemon in `pipe`.
    pub fn new(binary: ControlBinary, pipe: &Path) -> Self {
        Self { binary, pipe: pipe.to_owned(), env: Vec::new(), limit: COMMAND_LIMIT, deadline: None }
    }

    /// Sets a variable in the control program's environment.
    pub fn with_env(mut self, key: &str, value: impl Into<OsString>) -> Self {
        self.env.push((key.to_owned(), value.into()));
        self
    }

    /// Sets the time limit of every later command.
    pub fn with_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Sets the deadline of every later command.
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// The servers of this daemon: one per user that has or had clients.
    ///
    /// # Errors
    /// See [`Control::command`].
    pub fn server_list(&self) -> Result<Vec<Pid>, MpsError> {
        self.read("get_server_list", reply::pids)
    }

    /// The state of a server.
    ///
    /// # Errors
    /// See [`Control::command`]; [`MpsError::NoSuchServer`].
    pub fn server_status(&self, server: Pid) -> Result<ServerStatus, MpsError> {
        self.read(&format!("get_server_status {server}"), ServerStatus::parse)
    }

    /// Starts a server for a user, and does not wait until it is ready. A server for another user
    /// needs root.
    ///
    /// # Errors
    /// See [`Control::command`]; [`MpsError::Refused`] if a server runs already.
    pub fn start_server(&self, user: u32) -> Result<(), MpsError> {
        self.order(&format!("start_server -uid {user}"))
    }

    /// Ends a server when its clients have left; with `force` at once, together with their work on
    /// the GPU.
    ///
    /// # Errors
    /// See [`Control::command`]; [`MpsError::NoSuchServer`].
    pub fn shutdown_server(&self, server: Pid, force: bool) -> Result<(), MpsError> {
        self.order(&format!("shutdown_server {server}{}", if force { " -f" } else { "" }))
    }

    /// The client processes of one server.
    ///
    /// # Errors
    /// See [`Control::command`]; [`MpsError::NoSuchServer`].
    pub fn client_list(&self, server: Pid) -> Result<Vec<Pid>, MpsError> {
        self.read(&format!("get_client_list {server}"), reply::pids)
    }

    /// The devices of one server, or of all, with the processes that use each.
    ///
    /// # Errors
    /// See [`Control::command`]; [`MpsError::NoSuchServer`].
    pub fn device_client_list(&self, server: Option<Pid>) -> Result<Vec<DeviceClients>, MpsError> {
        let server = server.map(|server| format!(" {server}")).unwrap_or_default();
        self.read(&format!("get_device_client_list{server}"), DeviceClients::parse_list)
    }

    /// The client processes of one server, or of all, with the device and the program of each.
    ///
    /// # Errors
    /// See [`Control::command`]; [`MpsError::NoSuchServer`].
    pub fn ps(&self, server: Option<Pid>) -> Result<Vec<ClientRow>, MpsError> {
        let server = server.map(|server| format!(" -p {server}")).unwrap_or_default();
        self.read(&format!("ps{server}"), ClientRow::parse_table)
    }

    /// Ends one client's work on the GPU and its contexts. The client's process lives on, and its
    /// next CUDA call fails with error 810. The other clients of the server are not affected;
    /// killing a client with work in flight does affect them.
    ///
    /// # Errors
    /// See [`Control::command`]; [`MpsError::NoSuchServer`], [`MpsError::NoSuchClient`].
    pub fn terminate_client(&self, server: Pid, client: Pid) -> Result<(), MpsError> {
        let command = format!("terminate_client {server} {client}");
        let reply = self.command(&command)?;
        match reply.trim() {
            "" | "0" => Ok(()),
            // CUDA_ERROR_INVALID_CONTEXT: the answer of a CUDA 13.0 driver for an unknown client.
            "201" => Err(MpsError::NoSuchClient { server, client }),
            message => Err(MpsError::Refused { command, message: message.to_owned() }),
        }
    }

    /// The percentage of the SMs for clients of servers started from now on.
    ///
    /// # Errors
    /// See [`Control::command`].
    pub fn default_active_thread_percentage(&self) -> Result<f64, MpsError> {
        self.read("get_default_active_thread_percentage", reply::percent)
    }

    /// Sets the value of [`Control::default_active_thread_percentage`]. Less than 100 makes
    /// libraries see fewer SMs than the device has, with which some compute wrong results.
    ///
    /// # Errors
    /// See [`Control::command`]; [`MpsError::Reply`] if the daemon reports another value
    /// afterwards.
    pub fn set_default_active_thread_percentage(&self, percent: f64) -> Result<(), MpsError> {
        let command = format!("set_default_active_thread_percentage {percent}");
        let reply = self.command(&command)?;
        same_percent(command, &reply, percent, self.default_active_thread_percentage()?)
    }

    /// The percentage of the SMs for a server's clients that connect from now on.
    ///
    /// # Errors
    /// See [`Control::command`]; [`MpsError::NoSuchServer`].
    pub fn active_thread_percentage(&self, server: Pid) -> Result<f64, MpsError> {
        self.read(&format!("get_active_thread_percentage {server}"), reply::percent)
    }

    /// Sets the value of [`Control::active_thread_percentage`]. Connected clients keep theirs: no
    /// command changes it.
    ///
    /// # Errors
    /// As [`Control::set_default_active_thread_percentage`]; [`MpsError::NoSuchServer`].
    pub fn set_active_thread_percentage(&self, server: Pid, percent: f64) -> Result<(), MpsError> {
        let command = format!("set_active_thread_percentage {server} {percent}");
        let reply = self.command(&command)?;
        same_percent(command, &reply, percent, self.active_thread_percentage(server)?)
    }

    /// The limit of device memory for each client of servers started from now on, in bytes, as set
    /// under this name of the device; `None` for no limit.
    ///
    /// # Errors
    /// See [`Control::command`].
    pub fn default_device_memory_limit(&self, device: &DeviceName) -> Result<Option<u64>, MpsError> {
        self.memory_limit(&format!("get_default_device_pinned_mem_limit {device}"))
    }

    /// Sets the value of [`Control::default_device_memory_limit`]. The daemon does not check that
    /// the device exists.
    ///
    /// # Errors
    /// See [`Control::command`]; [`MpsError::Reply`] if the daemon reports another limit
    /// afterwards.
    pub fn set_default_device_memory_limit(
        &self,
        device: &DeviceName,
        limit: MemoryLimit,
    ) -> Result<(), MpsError> {
        let command = format!("set_default_device_pinned_mem_limit {device} {limit}");
        let reply = self.command(&command)?;
        same_limit(command, &reply, limit, self.default_device_memory_limit(device)?)
    }

    /// The limit of device memory for each client of a server that connects from now on, in bytes;
    /// `None` for no limit.
    ///
    /// # Errors
    /// See [`Control::command`]; [`MpsError::NoSuchServer`].
    pub fn device_memory_limit(&self, server: Pid, device: &DeviceName) -> Result<Option<u64>, MpsError> {
        self.memory_limit(&format!("get_device_pinned_mem_limit {server} {device}"))
    }

    /// Sets the value of [`Control::device_memory_limit`]; it may be above the default.
    ///
    /// # Errors
    /// As [`Control::set_default_device_memory_limit`]; [`MpsError::NoSuchServer`].
    pub fn set_device_memory_limit(
        &self,
        server: Pid,
        device: &DeviceName,
        limit: MemoryLimit,
    ) -> Result<(), MpsError> {
        let command = format!("set_device_pinned_mem_limit {server} {device} {limit}");
        let reply = self.command(&command)?;
        same_limit(command, &reply, limit, self.device_memory_limit(server, device)?)
    }

    /// The priority of clients that connect from now on.
    ///
    /// # Errors
    /// See [`Control::command`].
    pub fn default_client_priority(&self) -> Result<ClientPriority, MpsError> {
        self.read("get_default_client_priority", ClientPriority::parse)
    }

    /// Sets the value of [`Control::default_client_priority`].
    ///
    /// # Errors
    /// See [`Control::command`]; [`MpsError::Reply`] if the daemon reports another priority
    /// afterwards.
    pub fn set_default_client_priority(&self, priority: ClientPriority) -> Result<(), MpsError> {
        let command = format!("set_default_client_priority {}", priority.level());
        let reply = self.command(&command)?;
        match self.default_client_priority()? {
            now if now == priority => Ok(()),
            now => {
                Err(MpsError::Reply { command, reply: format!("{} and then {}", reply.trim(), now.level()) })
            }
        }
    }

    /// Asks the daemon to exit. It does so when its servers have no clients left.
    ///
    /// # Errors
    /// See [`Control::command`].
    pub fn quit(&self) -> Result<(), MpsError> {
        self.command("quit").map(drop)
    }

    /// Makes the daemon exit, with or without clients, after this many seconds.
    ///
    /// # Errors
    /// See [`Control::command`].
    pub fn quit_within(&self, limit_s: u64) -> Result<(), MpsError> {
        self.command(&format!("quit -t {limit_s}")).map(drop)
    }

    /// Sends one line and returns the answer.
    ///
    /// # Errors
    /// [`MpsError::NotRunning`] if no daemon listens; [`MpsError::NoSuchServer`],
    /// [`MpsError::NoSuchClient`], [`MpsError::UnknownCommand`] or [`MpsError::Refused`] if the
    /// daemon refuses; [`MpsError::Timeout`], [`MpsError::Cut`], and [`MpsError::Spawn`] if the
    /// control program cannot be run.
    pub fn command(&self, line: &str) -> Result<String, MpsError> {
        self.exchange(line)
    }

    /// Waits until no other process of Partita sends commands to this daemon, with a limit: one of
    /// them may hang.
    fn turn(&self, limit: Duration) -> Option<File> {
        // A directory, or nothing: opening a pipe would wait for its other end.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = File::from(rustix::fs::open(&self.pipe, flags, Mode::empty()).ok()?);
        lock_within(&directory, limit).is_ok_and(|locked| locked).then_some(directory)
    }

    fn exchange(&self, line: &str) -> Result<String, MpsError> {
        let start = Instant::now();
        let limit =
            self.deadline.map_or(self.limit, |end| self.limit.min(end.saturating_duration_since(start)));
        let deadline = start + limit;
        let late = || MpsError::Timeout { command: line.to_owned(), waited_s: limit.as_secs() };
        if limit.is_zero() {
            return Err(late());
        }
        let _turn = self.turn(limit / 2);
        loop {
            let mut command = Command::new(self.binary.path());
            command.env_remove("LD_PRELOAD").env("CUDA_MPS_PIPE_DIRECTORY", &self.pipe);
            command.envs(self.env.iter().map(|(key, value)| (key, value)));
            let left = deadline.saturating_duration_since(Instant::now());
            let outcome = exec::run(&mut command, &format!("{line}\n"), left)
                .map_err(|source| MpsError::Spawn { binary: self.binary.path().to_owned(), source })?;
            let (status, output) = match outcome {
                Outcome::TimedOut => return Err(late()),
                Outcome::Done { status, output } => (status, output),
            };
            if status.success() || !output.trim().is_empty() {
                // Half of `100.0` is `10`: the output of a failing program without the end of its
                // last line is not an answer.
                if !status.success() && !output.ends_with('\n') {
                    return Err(MpsError::Cut { command: line.to_owned(), reply: output });
                }
                if !output.contains(UNSENT) {
                    return self.check(line, output);
                }
            } else if start.elapsed() >= SILENCE_LIMIT {
                return Err(MpsError::Refused { command: line.to_owned(), message: status.to_string() });
            }
            // The daemon has not received it, so it may be sent again.
            if Instant::now() + UNSENT_PAUSE >= deadline {
                return Err(late());
            }
            thread::sleep(UNSENT_PAUSE);
        }
    }

    /// Distinguishes an answer from a refusal. The exit status does not: a driver of CUDA 13.0
    /// gives 0 for every answered command, refusals included.
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

    /// Sends a line and reads the answer.
    pub(crate) fn read<T>(&self, line: &str, parse: impl FnOnce(&str) -> Option<T>) -> Result<T, MpsError> {
        let reply = self.command(line)?;
        parse(&reply)
            .ok_or_else(|| MpsError::Reply { command: line.to_owned(), reply: reply.trim().to_owned() })
    }

    /// Sends a line whose success has no output.
    fn order(&self, line: &str) -> Result<(), MpsError> {
        self.read(line, |reply| ["", "0"].contains(&reply.trim()).then_some(()))
    }

    fn memory_limit(&self, line: &str) -> Result<Option<u64>, MpsError> {
        match self.read(line, reply::memory_limit) {
            // If the value was not set before, a refusal says so.
            Err(MpsError::Refused { message, .. }) if message.to_lowercase().contains("limit") => Ok(None),
            other => other,
        }
    }
}

fn same_percent(command: String, reply: &str, wanted: f64, now: f64) -> Result<(), MpsError> {
    if (now - wanted).abs() < 0.05 {
        Ok(())
    } else {
        Err(MpsError::Reply { command, reply: format!("{} and then {now}", reply.trim()) })
    }
}

fn same_limit(command: String, reply: &str, wanted: MemoryLimit, now: Option<u64>) -> Result<(), MpsError> {
    if now == Some(wanted.bytes()) {
        return Ok(());
    }
    let now = now.map_or_else(|| "no limit".to_owned(), |bytes| format!("{bytes} bytes"));
    Err(MpsError::Reply { command, reply: format!("{} and then {now}", reply.trim()) })
}
