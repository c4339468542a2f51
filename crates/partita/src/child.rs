//! Risky jobs in child processes.
//!
//! Loading a driver can hang, crash or change the process that loads it, and
//! the proofs of `partita doctor` do all three on purpose. So every job that
//! touches a GPU runs in a child: the `partita` program itself with a hidden
//! subcommand, an environment made for the job and a time limit. The job's
//! result comes back as one marked line of JSON on its stdout, so that what a
//! driver prints does no harm.

use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::install::Install;
use crate::signals;

/// The hidden subcommand of `partita` that runs a job.
pub const SUBCOMMAND: &str = "internal-job";
/// What a line with a job's result begins with.
pub const MARK: &str = "partita-job-result ";
/// The most that is read of a job's output unless it is allowed more, in bytes.
const OUTPUT_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// How long an ended job's last lines are waited for.
const LAST_LINES_LIMIT: Duration = Duration::from_secs(2);

/// The variables of our own environment that a job sees. Nothing that limits
/// or redirects CUDA: a job is to see the bare device.
const ENVIRONMENT_KEPT: [&str; 9] =
    ["PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PARTITA_LIB_DIR"];
/// What the names of the simulator's variables begin with: a job sees those too.
const SIMULATOR_PREFIX: &[u8] = b"PARTITA_SIM";

/// What a job prints: its result, or one line on why it has none.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome<T> {
    /// It did its work.
    Done(T),
    /// It could not.
    Failed(String),
}

/// How a job failed to give a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobError {
    /// It ran for longer than its limit and was ended.
    TimedOut {
        /// The limit in seconds.
        limit_s: u64,
    },
    /// It ended without a result.
    Died {
        /// Its exit status and the last line of its stderr.
        how: String,
    },
    /// It said why it could not do its work.
    Failed {
        /// Its words.
        reason: String,
    },
    /// A signal asked this process to end while the job ran.
    Interrupted {
        /// The signal's number.
        signal: i32,
    },
}

impl JobError {
    /// The error of a call that cannot go on without the job's result.
    pub fn or(self, error: impl FnOnce(String) -> Error) -> Error {
        match self {
            Self::Interrupted { signal } => Error::Interrupted { signal },
            other => error(other.to_string()),
        }
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut { limit_s } => write!(f, "no result within {limit_s} s (it was ended)"),
            Self::Died { how } => write!(f, "it ended without a result: {how}"),
            Self::Failed { reason } => f.write_str(reason),
            Self::Interrupted { signal } => write!(f, "ended by signal {signal}"),
        }
    }
}

/// A job that is about to run in a child process.
#[derive(Debug)]
pub struct Job {
    name: &'static str,
    command: Command,
    limit: Duration,
    orders: Stdio,
    output_bytes_max: u64,
}

impl Job {
    /// The job `name` with `request` as its parameters.
    ///
    /// # Errors
    /// Never for the requests of this crate, which all serialise.
    pub fn new(install: &Install, name: &'static str, request: &impl Serialize) -> Result<Self, Error> {
        let request = serde_json::to_string(request)
            .map_err(|error| Error::Child { job: name.to_owned(), reason: error.to_string() })?;
        let mut command = Command::new(install.program());
        command.arg(SUBCOMMAND).arg(name).arg(request).env_clear();
        for (key, value) in std::env::vars_os() {
            if ENVIRONMENT_KEPT.iter().any(|kept| key == *kept)
                || key.as_encoded_bytes().starts_with(SIMULATOR_PREFIX)
            {
                command.env(key, value);
            }
        }
        Ok(Self {
            name,
            command,
            limit: Duration::from_secs(60),
            orders: Stdio::null(),
            output_bytes_max: OUTPUT_BYTES_MAX,
        })
    }

    /// Sets variables in the job's environment.
    pub fn envs(
        mut self,
        variables: impl IntoIterator<Item = (impl Into<OsString>, impl Into<OsString>)>,
    ) -> Self {
        for (key, value) in variables {
            self.command.env(key.into(), value.into());
        }
        self
    }

    /// Runs the job as this user with this group and no others. For root alone.
    pub fn as_user(mut self, user: u32, group: u32) -> Self {
        self.command.uid(user).gid(group).current_dir("/");
        self
    }

    /// Gives the job this much time; a minute by default.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Lets the job print more than the usual 16 MiB.
    pub fn output_bytes_max(mut self, bytes: u64) -> Self {
        self.output_bytes_max = bytes;
        self
    }

    /// Lets the job be told more while it runs: [`RunningJob::order`].
    pub fn with_orders(mut self) -> Self {
        self.orders = Stdio::piped();
        self
    }

    /// Starts the job and leaves it running.
    ///
    /// # Errors
    /// [`Error::Child`] if the program cannot be started.
    pub fn start(mut self) -> Result<RunningJob, Error> {
        // A group of its own: ending a job ends what it started, and a signal
        // from the terminal reaches the jobs through us and not beside us.
        self.command.stdin(self.orders).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = self
            .command
            .spawn()
            .map_err(|error| Error::Child { job: self.name.to_owned(), reason: error.to_string() })?;
        let (lines, received) = mpsc::channel();
        if let Some(stream) = child.stdout.take() {
            read_lines(stream, true, self.output_bytes_max, lines.clone());
        }
        if let Some(stream) = child.stderr.take() {
            read_lines(stream, false, self.output_bytes_max, lines);
        }
        Ok(RunningJob {
            child: Some(child),
            lines: received,
            complaint: String::new(),
            ended: None,
            deadline: Instant::now() + self.limit,
            limit: self.limit,
        })
    }

    /// Runs the job to its end.
    ///
    /// # Errors
    /// The outer error if it cannot be started, the inner one if it gives no result.
    pub fn run<T: DeserializeOwned>(self) -> Result<Result<T, JobError>, Error> {
        self.start().map(RunningJob::finish)
    }

    /// Runs the job to its end, any failure being an [`Error::Child`].
    ///
    /// # Errors
    /// [`Error::Child`].
    pub fn run_flat<T: DeserializeOwned>(self) -> Result<T, Error> {
        let job = self.name;
        self.run()?.map_err(|error| error.or(|reason| Error::Child { job: job.to_owned(), reason }))
    }
}

/// Sends each line of `stream`, marked with whether it is stdout's.
fn read_lines(
    stream: impl Read + Send + 'static,
    is_out: bool,
    bytes_max: u64,
    lines: mpsc::Sender<(bool, String)>,
) {
    thread::spawn(move || {
        let mut reader = BufReader::new(stream.take(bytes_max));
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if lines.send((is_out, text)).is_err() {
                break;
            }
            line.clear();
        }
    });
}

/// A job in its child process. Dropping it ends the process.
#[derive(Debug)]
pub struct RunningJob {
    child: Option<Child>,
    lines: mpsc::Receiver<(bool, String)>,
    /// The last line of its stderr.
    complaint: String,
    /// When it was first seen to have ended.
    ended: Option<Instant>,
    deadline: Instant,
    limit: Duration,
}

impl RunningJob {
    /// The job's process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Tells the job something: one line of JSON on its stdin.
    ///
    /// # Errors
    /// [`JobError::Died`] if it does not listen any more.
    pub fn order(&mut self, order: &impl Serialize) -> Result<(), JobError> {
        let died = |how: String| JobError::Died { how };
        let line = serde_json::to_string(order).map_err(|error| died(error.to_string()))?;
        let stdin = self.child.as_mut().and_then(|child| child.stdin.as_mut());
        let stdin = stdin.ok_or_else(|| died("it takes no orders".to_owned()))?;
        writeln!(stdin, "{line}").map_err(|error| died(error.to_string()))
    }

    /// Tells the job that there are no more orders.
    pub fn no_more_orders(&mut self) {
        if let Some(child) = &mut self.child {
            child.stdin = None;
        }
    }

    /// Waits for the next line of the job's stdout that begins with `prefix` and returns its rest.
    ///
    /// # Errors
    /// [`JobError`] if the job ends or its time is up first.
    pub fn wait_for(&mut self, prefix: &str) -> Result<String, JobError> {
        loop {
            let line = self.next_line()?;
            if let Some(rest) = line.strip_prefix(prefix) {
                return Ok(rest.to_owned());
            }
            if let Some(json) = line.strip_prefix(MARK) {
                // The result came before what was waited for: it is a failure.
                let reason = match serde_json::from_str::<Outcome<serde_json::Value>>(json) {
                    Ok(Outcome::Failed(reason)) => reason,
                    _ => format!("it ended before it said {:?}", prefix.trim_end()),
                };
                return Err(JobError::Failed { reason });
            }
        }
    }

    /// Waits for the job's result.
    ///
    /// # Errors
    /// [`JobError`].
    pub fn finish<T: DeserializeOwned>(self) -> Result<T, JobError> {
        self.finish_hearing(MARK, |_| {})
    }

    /// As [`RunningJob::finish`]; `hear` gets the rest of each line before it that begins with `prefix`.
    ///
    /// # Errors
    /// [`JobError`].
    pub fn finish_hearing<T: DeserializeOwned>(
        mut self,
        prefix: &str,
        mut hear: impl FnMut(&str),
    ) -> Result<T, JobError> {
        loop {
            let line = self.next_line()?;
            let Some(json) = line.strip_prefix(MARK) else {
                if let Some(rest) = line.strip_prefix(prefix) {
                    hear(rest);
                }
                continue;
            };
            self.reap();
            return match serde_json::from_str(json) {
                Ok(Outcome::Done(result)) => Ok(result),
                Ok(Outcome::Failed(reason)) => Err(JobError::Failed { reason }),
                Err(error) => Err(JobError::Died { how: format!("its result is not understood: {error}") }),
            };
        }
    }

    /// The next line of the job's stdout. Remembers what it says on stderr.
    fn next_line(&mut self) -> Result<String, JobError> {
        loop {
            if let Some(line) = self.line_within(Duration::from_millis(50))? {
                return Ok(line);
            }
        }
    }

    /// The next line of the job's stdout, if it comes in that time: for whoever listens to several jobs.
    ///
    /// # Errors
    /// [`JobError`] if the job ends or its own time is up first.
    pub fn line_within(&mut self, patience: Duration) -> Result<Option<String>, JobError> {
        let until = Instant::now() + patience;
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let wait = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left.min(wait)) {
                Ok((true, line)) => return Ok(Some(line)),
                Ok((false, line)) if line.is_empty() => {}
                Ok((false, line)) => self.complaint = line,
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(self.died()),
                Err(mpsc::RecvTimeoutError::Timeout) if left.is_zero() => {
                    self.end();
                    return Err(JobError::TimedOut { limit_s: self.limit.as_secs() });
                }
                Err(mpsc::RecvTimeoutError::Timeout) if let Some(signal) = signals::ending() => {
                    self.end();
                    return Err(JobError::Interrupted { signal });
                }
                Err(mpsc::RecvTimeoutError::Timeout) if self.has_ended() => {
                    // Its last lines may still be on their way to us. But a descendant
                    // may hold its streams open for as long as it likes.
                    let ended = *self.ended.get_or_insert_with(Instant::now);
                    if ended.elapsed() >= LAST_LINES_LIMIT {
                        return Err(self.died());
                    }
                    return Ok(None);
                }
                Err(mpsc::RecvTimeoutError::Timeout) => return Ok(None),
            }
        }
    }

    /// Lets a job that has said its last leave by itself.
    pub fn leave(mut self) {
        self.reap();
    }

    fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// Lets a job that gave its result leave by itself: it may still have to
    /// give back what it holds on the GPU.
    fn reap(&mut self) {
        let patience = (Instant::now() + Duration::from_secs(5)).min(self.deadline + Duration::from_secs(1));
        while let Some(child) = &mut self.child {
            if !matches!(child.try_wait(), Ok(None)) {
                self.child = None;
            } else if Instant::now() >= patience {
                self.end();
            } else {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn died(&mut self) -> JobError {
        let status = self.child.take().and_then(|mut child| {
            // Before it is waited for, so that its number is still its own.
            kill_group(&child);
            child.wait().ok()
        });
        let mut how = status.map_or("its exit status is unknown".to_owned(), describe);
        if !self.complaint.is_empty() {
            how = format!("{how}: {}", self.complaint);
        }
        JobError::Died { how }
    }

    /// Ends the job and everything in its process group.
    pub fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            kill_group(&child);
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        self.end();
    }
}

/// Ends what is left of the group that a job and all that it started are in.
fn kill_group(child: &Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
}

/// How a process has ended: by its exit code, or by a signal.
pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "its exit status is unknown".to_owned(),
    }
}

/// The line that a job prints as its result.
///
/// # Errors
/// Never for the results of this crate, which all serialise.
pub fn result_line<T: Serialize>(outcome: &Outcome<T>) -> Result<String, serde_json::Error> {
    serde_json::to_string(outcome).map(|json| format!("{MARK}{json}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A stand-in for the `partita` program, which gets `internal-job NAME REQUEST`.
    const PROGRAM: &str = r#"#!/bin/sh
case "$2" in
noise) echo hello; echo "partita-job-result {\"done\": 5}"; echo more ;;
fails) echo "partita-job-result {\"failed\": \"no luck\"}" ;;
dies) echo one >&2; echo two >&2; exit 3 ;;
crashes) kill -SEGV $$ ;;
hangs) sleep 1000 ;;
leaks) sleep 1000 & exit 3 ;;
babbles) echo "partita-job-result {" ;;
takes) echo ready; read -r order; echo "partita-job-result {\"done\": $order}" ;;
request) echo "partita-job-result {\"done\": $3}" ;;
environment) env | grep -q '^PARTITA_RUN_DIR=' || echo "partita-job-result {\"done\": $MINE}" ;;
esac
"#;

    struct Fixture {
        _temp: tempfile::TempDir,
        install: Install,
    }

    impl Fixture {
        fn new() -> Self {
            let temp = tempfile::tempdir().unwrap();
            let program = temp.path().join("partita");
            std::fs::write(&program, PROGRAM).unwrap();
            std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
            Self { _temp: temp, install: Install::of(program, None) }
        }

        fn job(&self, name: &'static str) -> Job {
            Job::new(&self.install, name, &7).unwrap()
        }

        fn run(&self, name: &'static str) -> Result<u32, JobError> {
            self.job(name).run().unwrap()
        }
    }

    #[test]
    fn results_come_through_noise() {
        let fixture = Fixture::new();
        assert_eq!(fixture.run("noise"), Ok(5));
        assert_eq!(fixture.run("request"), Ok(7));
        assert_eq!(fixture.job("environment").envs([("MINE", "9")]).run_flat::<u32>().unwrap(), 9);
    }

    #[test]
    fn failures_say_how() {
        let fixture = Fixture::new();
        assert_eq!(fixture.run("fails").unwrap_err().to_string(), "no luck");
        let died = |name| fixture.run(name).unwrap_err().to_string();
        assert!(died("dies").ends_with("exit code 3: two"), "{}", died("dies"));
        assert!(died("crashes").ends_with("signal 11"), "{}", died("crashes"));
        assert!(died("babbles").contains("not understood"), "{}", died("babbles"));
        assert!(died("unknown").ends_with("exit code 0"), "{}", died("unknown"));
    }

    #[test]
    fn what_hangs_is_ended_with_all_that_it_started() {
        let fixture = Fixture::new();
        let job = fixture.job("hangs").limit(Duration::from_millis(100)).start().unwrap();
        let pid = job.pid();
        assert!(matches!(job.finish::<u32>(), Err(JobError::TimedOut { .. })));
        assert!(crate::process::ProcessId::living(pid).is_none());
    }

    #[test]
    fn a_descendant_that_keeps_the_streams_open_does_not_keep_us() {
        let fixture = Fixture::new();
        let begin = Instant::now();
        assert!(matches!(fixture.run("leaks"), Err(JobError::Died { .. })));
        assert!(begin.elapsed() < Duration::from_secs(50), "well before the job's limit");
    }

    #[test]
    fn jobs_take_orders() {
        let fixture = Fixture::new();
        let mut job = fixture.job("takes").with_orders().start().unwrap();
        assert_eq!(job.wait_for("ready"), Ok(String::new()));
        job.order(&42).unwrap();
        assert_eq!(job.finish::<u32>(), Ok(42));
        assert!(fixture.job("hangs").start().unwrap().order(&1).is_err(), "it takes none");
    }
}
