//! The control daemon of one GPU: start, identify and stop it.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::Pid;
use crate::binary::ControlBinary;
use crate::command::{COMMAND_LIMIT, Control};
use crate::dirs::ServiceDirs;
use crate::error::MpsError;
use crate::lock::{lock_within, state_of};

/// The time limit for a daemon to start or to end. Both take some 10 ms, but the first contact with
/// a cold driver takes seconds.
const CHANGE_LIMIT: Duration = Duration::from_secs(20);
/// How long to wait for another process that starts or stops the daemon.
const LOCK_LIMIT: Duration = Duration::from_secs(30);
/// The time limit for a running daemon's answer to the check.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long to wait for a daemon's exit before the next harder means.
const SIGNAL_LIMIT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(5);

/// The variables of its starter's environment that the daemon may see. They do not limit or
/// redirect it, and preload no library.
const ENVIRONMENT_KEPT: [&str; 8] =
    ["PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH"];

/// Control programs of R615 and newer use a third version of their language if this variable, or a
/// later default, says so. Partita uses the classic one, which they support too.
const CLASSIC: (&str, &str) = ("CUDA_MPS_PROTOCOL_VERSION", "2");

/// The state of a service's daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// None runs, and none left files.
    Stopped,
    /// The process in the pid file is gone, or is not this daemon.
    Stale {
        /// The number in the pid file.
        pid: Pid,
    },
    /// The daemon's process exists and was started for this directory.
    Running {
        /// The daemon.
        pid: Pid,
    },
}

/// The outcome of [`Service::ensure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ensured {
    /// The daemon.
    pub pid: Pid,
    /// Whether this call started it. A caller that fails afterwards should stop it again if it is
    /// unused by then: [`Service::stop_if_unused`].
    pub started: bool,
}

/// One GPU's control daemon in a directory of Partita.
#[derive(Debug, Clone)]
pub struct Service {
    binary: ControlBinary,
    dirs: ServiceDirs,
    gpu_uuid: String,
    env: Vec<(String, OsString)>,
    launcher: Vec<OsString>,
    command_limit: Duration,
    deadline: Option<Instant>,
    is_for_all: bool,
    is_static: bool,
}

impl Service {
    /// The service of the GPU with this UUID (`GPU-…`). Not an index: the daemon renumbers the
    /// devices that it sees.
    pub fn new(binary: ControlBinary, dirs: ServiceDirs, gpu_uuid: &str) -> Self {
        Self {
            binary,
            dirs,
            gpu_uuid: gpu_uuid.to_owned(),
            env: Vec::new(),
            launcher: Vec::new(),
            command_limit: COMMAND_LIMIT,
            deadline: None,
            is_for_all: false,
            is_static: false,
        }
    }

    /// Sets a variable in the environment of the daemon and of its commands.
    pub fn with_env(mut self, key: &str, value: impl Into<OsString>) -> Self {
        self.env.push((key.to_owned(), value.into()));
        self
    }

    /// Starts the daemon through this program and its arguments, followed by the daemon's own
    /// command. It should call [`detach_and_exec`](crate::detach::detach_and_exec). Without one the
    /// daemon inherits all descriptors that the starter's parent left open.
    pub fn with_launcher(mut self, argv: Vec<OsString>) -> Self {
        self.launcher = argv;
        self
    }

    /// Sets the time limit of each command, [`COMMAND_LIMIT`] by default: for callers that cannot
    /// wait for a daemon that does not answer.
    pub fn with_command_limit(mut self, limit: Duration) -> Self {
        self.command_limit = limit;
        self
    }

    /// Sets the deadline of every command.
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Serves every user's programs: one server of root's for all of them, which then share its
    /// faults and its logs. Root starts it; other users' [`Service::ensure`] joins it if it runs.
    pub fn for_all_users(mut self) -> Self {
        self.is_for_all = true;
        self.dirs = self.dirs.open_to_all();
        self
    }

    /// Starts the daemon with static SM partitions: every client then needs one. Control programs
    /// have them from CUDA 13.1 on; an older one refuses to start this way.
    pub fn with_static_partitions(mut self) -> Self {
        self.is_static = true;
        self
    }

    /// Whether the running daemon was started with static partitions.
    ///
    /// # Errors
    /// As [`Service::state`].
    pub fn has_static_partitions(&self) -> Result<bool, MpsError> {
        let State::Running { pid } = self.state()? else { return Ok(false) };
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        Ok(words.split(|&byte| byte == 0).any(|word| word == b"-S" || word == b"--static-partitioning"))
    }

    /// Whether it serves every user's programs.
    pub fn is_for_all_users(&self) -> bool {
        self.is_for_all
    }

    /// The control program.
    pub fn binary(&self) -> &ControlBinary {
        &self.binary
    }

    /// The service's directories.
    pub fn dirs(&self) -> &ServiceDirs {
        &self.dirs
    }

    /// Sends commands to the daemon.
    pub fn control(&self) -> Control {
        let control = Control::new(self.binary.clone(), &self.dirs.pipe()).with_limit(self.command_limit);
        let control = control.with_env(CLASSIC.0, CLASSIC.1);
        let control = self.deadline.into_iter().fold(control, Control::with_deadline);
        self.env.iter().fold(control, |control, (key, value)| control.with_env(key, value))
    }

    /// The variables that make a program a client of this service.
    pub fn client_env(&self) -> Vec<(&'static str, OsString)> {
        vec![
            ("CUDA_MPS_PIPE_DIRECTORY", self.dirs.pipe().into()),
            ("CUDA_MPS_LOG_DIRECTORY", self.dirs.log().into()),
        ]
    }

    /// Reads the pid file and examines its process.
    ///
    /// # Errors
    /// [`MpsError::Foreign`] if the process belongs to another user.
    pub fn state(&self) -> Result<State, MpsError> {
        let Some(pid) = self.dirs.recorded_pid() else {
            return Ok(State::Stopped);
        };
        if self.is_anothers() {
            // Its environment is not readable; the directory is root's, so the process must be
            // root's too.
            let owner = std::fs::metadata(format!("/proc/{pid}")).ok().map(|meta| meta.uid());
            let runs = owner == Some(0) && !is_dead(pid);
            return Ok(if runs { State::Running { pid } } else { State::Stale { pid } });
        }
        match std::fs::read(format!("/proc/{pid}/environ")) {
            // A zombie has an empty environment: it counts as gone.
            Ok(environment) if self.is_ours(&environment) => Ok(State::Running { pid }),
            Ok(_) => Ok(State::Stale { pid }),
            // The kernel shows the environment of an ended process only to root.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !is_dead(pid) => {
                Err(MpsError::Foreign { pipe: self.dirs.pipe(), pid })
            }
            Err(_) => Ok(State::Stale { pid }),
        }
    }

    /// Whether it is root's and this process is not.
    fn is_anothers(&self) -> bool {
        self.is_for_all && !rustix::process::geteuid().is_root()
    }

    fn is_ours(&self, environment: &[u8]) -> bool {
        let pipe = self.dirs.pipe();
        environment
            .split(|&byte| byte == 0)
            .filter_map(|entry| entry.strip_prefix(b"CUDA_MPS_PIPE_DIRECTORY="))
            .any(|value| value == pipe.as_os_str().as_bytes())
    }

    /// Makes sure that the daemon runs, answers, and gives every client all SMs; starts it if none
    /// runs. Of several callers one starts it and the others wait for it.
    ///
    /// # Errors
    /// Any [`MpsError`]; a daemon that this call started is ended again if it is not in order.
    pub fn ensure(&self) -> Result<Ensured, MpsError> {
        if self.is_anothers() {
            let State::Running { pid } = self.state()? else {
                return Err(MpsError::NotRunning { pipe: self.dirs.pipe() });
            };
            return self.check(pid).map(|()| Ensured { pid, started: false });
        }
        self.dirs.create()?;
        let _lock = self.lock()?;
        let ensured = match self.state()? {
            State::Running { pid } => Ensured { pid, started: false },
            State::Stale { .. } | State::Stopped => {
                self.dirs.sweep()?;
                Ensured { pid: self.start()?, started: true }
            }
        };
        let checked = self.check(ensured.pid);
        if checked.is_err() && ensured.started {
            self.end(ensured.pid);
        }
        checked.map(|()| ensured)
    }

    fn check(&self, pid: Pid) -> Result<(), MpsError> {
        let control = self.control().with_limit(ANSWER_LIMIT);
        let silent = |error| match error {
            MpsError::Timeout { .. } | MpsError::NotRunning { .. } => {
                MpsError::NotAnswering { pid, waited_s: ANSWER_LIMIT.as_secs(), log: self.dirs.control_log() }
            }
            other => other,
        };
        let mut least = control.default_active_thread_percentage().map_err(silent)?;
        for server in control.server_list().map_err(silent)? {
            match control.active_thread_percentage(server) {
                Ok(percent) => least = least.min(percent),
                // It ended meanwhile, is not ready, or this driver does not report it.
                Err(
                    MpsError::NoSuchServer { .. }
                    | MpsError::UnknownCommand { .. }
                    | MpsError::Refused { .. },
                ) => {}
                Err(error) => return Err(silent(error)),
            }
        }
        if least < 100.0 {
            return Err(MpsError::ThreadPercentage { pipe: self.dirs.pipe(), found: least });
        }
        Ok(())
    }

    /// Starts the daemon and waits until it answers. The caller holds the lock.
    fn start(&self) -> Result<Pid, MpsError> {
        if self.is_anothers() {
            return Err(MpsError::NeedsRoot);
        }
        let output = self.dirs.start_output();
        let refuse =
            |error: io::Error| MpsError::Directory { path: output.clone(), reason: error.to_string() };
        // Drivers write the option in two ways and refuse the other.
        let ways: &[&[&str]] =
            if self.is_for_all { &[&["-d", "-multiuser-server"], &["-d", "-M"]] } else { &[&["-d"]] };
        let mut started = false;
        let mut reasons = Vec::new();
        for way in ways {
            // A file, not a pipe: the daemon may keep it open for its whole life.
            let file = File::create(&output).map_err(refuse)?;
            let mut way = way.to_vec();
            if self.is_static {
                way.insert(1, "-S");
            }
            let status = self
                .start_command(&way)
                .stdin(Stdio::null())
                .stdout(file.try_clone().map_err(refuse)?)
                .stderr(file.try_clone().map_err(refuse)?)
                .spawn()
                .and_then(|mut child| wait_until(&mut child, CHANGE_LIMIT))
                .map_err(|source| MpsError::Spawn { binary: self.binary.path().to_owned(), source })?;
            started = status.is_some_and(|status| status.success());
            if started {
                break;
            }
            // One of the two ways is wrong for any driver: the messages show which one failed for
            // another reason.
            reasons.push(self.start_reason());
            if status.is_none() {
                break;
            }
        }
        if !started {
            reasons.dedup();
            return Err(MpsError::StartFailed { reason: reasons.join("; ") });
        }
        let deadline = Instant::now() + CHANGE_LIMIT;
        loop {
            if let State::Running { pid } = self.state()?
                && self.control().with_limit(ANSWER_LIMIT).server_list().is_ok()
            {
                return Ok(pid);
            }
            if Instant::now() >= deadline {
                if let State::Running { pid } = self.state()? {
                    self.end(pid);
                }
                return Err(MpsError::StartFailed { reason: self.start_reason() });
            }
            thread::sleep(POLL);
        }
    }

    fn start_command(&self, arguments: &[&str]) -> Command {
        let mut daemon = vec![self.binary.path().as_os_str().to_owned()];
        daemon.extend(arguments.iter().map(OsString::from));
        let mut argv = self.launcher.iter().chain(&daemon);
        let mut command = Command::new(argv.next().expect("the daemon's own command is never empty"));
        command.args(argv).env_clear();
        for key in ENVIRONMENT_KEPT {
            if let Some(value) = std::env::var_os(key) {
                command.env(key, value);
            }
        }
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", self.dirs.pipe())
            .env("CUDA_MPS_LOG_DIRECTORY", self.dirs.log())
            .env("CUDA_VISIBLE_DEVICES", &self.gpu_uuid)
            .env(CLASSIC.0, CLASSIC.1)
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .current_dir("/")
            .process_group(0);
        command
    }

    /// The daemon's own message about its failure to start.
    fn start_reason(&self) -> String {
        for path in [self.dirs.start_output(), self.dirs.control_log()] {
            if let Ok(text) = std::fs::read_to_string(&path)
                && let Some(line) = text.lines().rev().find(|line| !line.trim().is_empty())
            {
                return format!("{} (from {})", line.trim(), path.display());
            }
        }
        format!("it printed no message; see {}", self.dirs.control_log().display())
    }

    /// Every client process of the daemon with its server, as `(server, client)`.
    ///
    /// # Errors
    /// [`MpsError::NotRunning`] and the errors of the two commands.
    pub fn clients(&self) -> Result<Vec<(Pid, Pid)>, MpsError> {
        let control = self.control();
        let mut clients = Vec::new();
        for server in control.server_list()? {
            clients.extend(control.client_list(server)?.into_iter().map(|client| (server, client)));
        }
        Ok(clients)
    }

    /// Ends the daemon and waits until it is gone. Returns whether one ran.
    ///
    /// With `force`, signals end a daemon that does not obey, together with its servers and their
    /// clients' work on the GPU.
    ///
    /// # Errors
    /// [`MpsError::StillRunning`] without `force`; [`MpsError::Foreign`];
    /// [`MpsError::Locked`].
    pub fn stop(&self, force: bool) -> Result<bool, MpsError> {
        if self.is_anothers() {
            return match self.state()? {
                State::Running { pid } => Err(MpsError::Foreign { pipe: self.dirs.pipe(), pid }),
                State::Stopped | State::Stale { .. } => Ok(false),
            };
        }
        if !self.dirs.root().exists() {
            return Ok(false);
        }
        self.dirs.create()?;
        let _lock = self.lock()?;
        self.stop_locked(force)
    }

    /// Ends the daemon if it has no clients, for a caller that no longer needs it.
    ///
    /// # Errors
    /// As [`Service::stop`].
    pub fn stop_if_unused(&self) -> Result<bool, MpsError> {
        if self.is_anothers() {
            return Ok(false);
        }
        let _lock = self.lock()?;
        if self.clients()?.is_empty() { self.stop_locked(false) } else { Ok(false) }
    }

    fn stop_locked(&self, force: bool) -> Result<bool, MpsError> {
        let State::Running { pid } = self.state()? else {
            self.dirs.sweep()?;
            return Ok(false);
        };
        let asked = self.control().quit();
        let patience = if force { SIGNAL_LIMIT } else { CHANGE_LIMIT };
        if asked.is_ok() && self.gone_within(pid, patience) {
            self.dirs.sweep()?;
            return Ok(true);
        }
        if !force {
            asked?;
            return Err(MpsError::StillRunning { pid, waited_s: CHANGE_LIMIT.as_secs() });
        }
        self.end(pid);
        self.dirs.sweep()?;
        Ok(true)
    }

    fn gone_within(&self, pid: Pid, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            if !self.lives(pid) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(POLL);
        }
    }

    /// Whether `pid` is a process, not a zombie, and was started for this directory.
    fn lives(&self, pid: Pid) -> bool {
        std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| self.is_ours(&environment))
    }

    /// Ends the daemon by signals, SIGTERM first.
    fn end(&self, pid: Pid) {
        let Some(process) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) else {
            return;
        };
        for signal in [Signal::TERM, Signal::KILL] {
            if !self.lives(pid) {
                return;
            }
            let _ = rustix::process::kill_process(process, signal);
            if self.gone_within(pid, SIGNAL_LIMIT) {
                return;
            }
        }
    }

    /// Waits until no other process tests whether the service runs kernels. The lock ends with the
    /// file.
    ///
    /// # Errors
    /// [`MpsError::Locked`]; [`MpsError::Directory`].
    pub fn lock_canary(&self) -> Result<File, MpsError> {
        self.lock_file(&self.dirs.canary_lock())
    }

    fn lock(&self) -> Result<File, MpsError> {
        self.lock_file(&self.dirs.start_lock())
    }

    fn lock_file(&self, path: &Path) -> Result<File, MpsError> {
        let refuse =
            |error: io::Error| MpsError::Directory { path: path.to_owned(), reason: error.to_string() };
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path).map_err(refuse)?;
        if lock_within(&file, LOCK_LIMIT).map_err(refuse)? {
            return Ok(file);
        }
        Err(MpsError::Locked { file: path.to_owned(), waited_s: LOCK_LIMIT.as_secs() })
    }
}

/// Whether a process has ended, even if it has not been waited for.
fn is_dead(pid: Pid) -> bool {
    state_of(pid).is_none_or(|state| matches!(state, 'Z' | 'X'))
}

/// The exit status of `child`, or `None` (and the child is ended) after `limit`.
fn wait_until(
    child: &mut std::process::Child,
    limit: Duration,
) -> io::Result<Option<std::process::ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(POLL);
    }
}
