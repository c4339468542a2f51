//! Risky jobs in child processes.
//!
//! Loading a driver can hang, crash or change the process that loads it, and the proofs of `partita
//! doctor` do all three on purpose. So every job that touches a GPU runs in a child: the `partita`
//! program itself with a hidden subcommand, an environment for the job and a timeout. The job's
//! result is one marked line of JSON on its stdout, so that output of a driver does no harm.

mod outcome;
mod running;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::outcome::{JobError, MARK, Outcome, describe, result_line};
pub use self::running::RunningJob;
use crate::error::Error;
use crate::install::Install;

/// The hidden subcommand of `partita` that runs a job.
pub const SUBCOMMAND: &str = "internal-job";
/// The most that is read of a job's output unless it is allowed more, in bytes.
const OUTPUT_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The variables of our own environment that a job sees. Nothing that limits
/// or redirects CUDA: a job is to see the bare device.
const ENVIRONMENT_KEPT: [&str; 9] =
    ["PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PARTITA_LIB_DIR"];
/// The prefix of the simulator's variables, which a job sees too.
const SIMULATOR_PREFIX: &[u8] = b"PARTITA_SIM";

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

    /// Lets the caller send the job further requests while it runs: [`RunningJob::order`].
    pub fn with_orders(mut self) -> Self {
        self.orders = Stdio::piped();
        self
    }

    /// Starts the job and leaves it running.
    ///
    /// # Errors
    /// [`Error::Child`] if the program cannot be started.
    pub fn start(mut self) -> Result<RunningJob, Error> {
        // A separate process group: ending a job ends the processes that it started, and only this
        // process passes signals of the terminal on to jobs.
        self.command.stdin(self.orders).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let child = self
            .command
            .spawn()
            .map_err(|error| Error::Child { job: self.name.to_owned(), reason: error.to_string() })?;
        Ok(RunningJob::of(child, self.limit, self.output_bytes_max))
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// A replacement of the `partita` program, which gets `internal-job NAME REQUEST`.
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
            partita_testing::executable(&program, PROGRAM.as_bytes());
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
