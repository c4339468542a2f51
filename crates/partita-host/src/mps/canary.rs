//! A canary: a tiny launch by a client of a service, in a process of its own, which shows whether
//! the service still runs kernels.
//!
//! After a launch that no SM can run and its process's exit, a server waits for ever: every client
//! hangs at its next launch, and a new one where it makes its context, without a message (measured
//! on an H100).

use std::time::{Duration, Instant};

use partita_mps::{Pid, Service};

use crate::child::{Job, JobError, MARK, Outcome, RunningJob};
use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpu_job::on_gpu;
use crate::install::Install;
use crate::process::ProcessId;

/// The name of the job.
pub const JOB: &str = "mps-canary";
/// How long the process may live before it launches. A busy machine takes seconds.
const OPEN_LIMIT: Duration = Duration::from_secs(20);
/// How long it may live in all, if somebody waits for it.
const LIFE_LIMIT: Duration = Duration::from_secs(3600);
/// How long a client's context may take before the service counts as stuck.
const CONTEXT_LIMIT: Duration = Duration::from_millis(2500);
/// How often the service is asked whether the process is a client yet.
const LOOK: Duration = Duration::from_millis(250);
/// How long a launch may take before the service counts as stuck.
pub const LAUNCH_LIMIT: Duration = Duration::from_millis(1500);
/// The same before a server is killed. A kernel of a neighbour that fills the GPU for seconds looks
/// like a stuck server, and a restart ends the work of every client.
pub const RESTART_LIMIT: Duration = Duration::from_secs(4);
/// How long each command to the service may take. One for a server with much to do takes longer.
const COMMAND_LIMIT: Duration = Duration::from_secs(1);
/// What the process prints before it launches.
const LAUNCHES: &str = "launches";

/// What a job that launches as a client of a service found.
#[derive(Debug)]
pub enum Found {
    /// The service runs kernels.
    Works {
        /// What the job printed after its launches.
        line: String,
        /// How long these took.
        took: Duration,
    },
    /// The client's context or its launches were not done in time.
    Stuck(Waiting),
    /// The process never became a client, or its launches failed, such as by a neighbour's fault.
    Unknown {
        /// Why.
        reason: String,
    },
}

/// A client whose context or launches are not done yet. Its process is left alone when this is
/// dropped, and ends by itself when they are done, or with the server.
///
/// It is neither killed nor terminated by the server (`terminate_client`): the service may only be
/// slow. On an H200 (driver 580.159.04, 2026-11-29), 16 programs in one service waited for seconds,
/// as they do without Partita. In two of two runs the server terminated a canary whose launch was
/// pending, and within 0.7 s a neighbour met an illegal address, which ended the work of all.
#[derive(Debug)]
pub struct Waiting {
    job: RunningJob,
    /// The server, if the client has reached one.
    server: Option<Pid>,
    /// When its launches began; none while it has no context.
    launched: Option<Instant>,
}

impl Waiting {
    /// The server that the client waits for.
    pub fn server(&self) -> Option<Pid> {
        self.server
    }

    /// Waits up to `limit` for the job's next line, and `limit` for the one after that if the first
    /// one says that the launches begin.
    ///
    /// # Errors
    /// [`Error::Interrupted`].
    pub fn again(mut self, limit: Duration) -> Result<Found, Error> {
        loop {
            match self.job.line_within(limit) {
                Ok(Some(line)) if line == LAUNCHES => self.launched = Some(Instant::now()),
                Ok(Some(line)) => {
                    let took = self.launched.map_or(Duration::ZERO, |since| since.elapsed());
                    self.job.leave();
                    return Ok(match failure(&line) {
                        Some(reason) => Found::Unknown { reason },
                        None => Found::Works { line, took },
                    });
                }
                Ok(None) => return Ok(Found::Stuck(self)),
                Err(error) => return unknown(error),
            }
        }
    }

    /// Whether its launches have begun.
    pub(super) fn has_launched(&self) -> bool {
        self.launched.is_some()
    }

    /// Whether it waits still, without waiting for it.
    pub(crate) fn is_waiting(&mut self) -> bool {
        loop {
            match self.job.line_within(Duration::ZERO) {
                Ok(Some(line)) if line == LAUNCHES => {}
                line => return matches!(line, Ok(None)),
            }
        }
    }

    /// Its process, if it lives.
    pub(crate) fn process(&self) -> Option<ProcessId> {
        ProcessId::living(self.job.pid())
    }
}

/// Starts a canary as a client of the service and waits up to `limit` for its launch, and before
/// that as long, or 2.5 s, for its context.
///
/// # Errors
/// [`Error::Child`] if there can be no process; [`Error::Interrupted`].
pub fn send(install: &Install, gpu: &Gpu, service: &Service, limit: Duration) -> Result<Found, Error> {
    ask(Job::new(install, JOB, &())?, gpu, service, limit)
}

/// Why a job failed, if that is its result.
fn failure(line: &str) -> Option<String> {
    match serde_json::from_str(line.strip_prefix(MARK)?) {
        Ok(Outcome::<serde_json::Value>::Failed(reason)) => Some(reason),
        _ => None,
    }
}

fn unknown(error: JobError) -> Result<Found, Error> {
    match error {
        JobError::Interrupted { signal } => Err(Error::Interrupted { signal }),
        other => Ok(Found::Unknown { reason: other.to_string() }),
    }
}

/// Runs a job as a client of the service. The job prints [`LAUNCHES`] before its first launch, and
/// a line after the last one, for which this waits up to `limit`.
///
/// # Errors
/// As [`send`].
pub(super) fn ask(job: Job, gpu: &Gpu, service: &Service, limit: Duration) -> Result<Found, Error> {
    let mut job = job.envs(gpu.variables()).envs(service.client_env()).limit(LIFE_LIMIT).start()?;
    let started = Instant::now();
    let pid = job.pid();
    let service = service.clone().with_command_limit(COMMAND_LIMIT);
    let server = || server_of(&service, pid);
    let mut joined = None;
    loop {
        match job.line_within(LOOK) {
            Ok(Some(line)) if line == LAUNCHES => break,
            Ok(_) if started.elapsed() >= OPEN_LIMIT => {
                return unknown(JobError::TimedOut { limit_s: OPEN_LIMIT.as_secs() });
            }
            Ok(_) => {}
            Err(error) => return unknown(error),
        }
        if joined.is_none() {
            joined = server().map(|server| (server, Instant::now()));
        }
        if let Some((server, since)) = joined
            && since.elapsed() >= limit.max(CONTEXT_LIMIT)
        {
            job.spare();
            return Ok(Found::Stuck(Waiting { job, server: Some(server), launched: None }));
        }
    }
    job.spare();
    let known = joined.map(|(server, _)| server);
    let waiting = Waiting { job, server: known, launched: Some(Instant::now()) };
    Ok(match waiting.again(limit)? {
        Found::Stuck(late) => Found::Stuck(Waiting { server: server().or(known), ..late }),
        found => found,
    })
}

/// The server of a client.
fn server_of(service: &Service, client: Pid) -> Option<Pid> {
    let clients = service.clients().unwrap_or_default();
    clients.iter().find(|(_, process)| *process == client).map(|(server, _)| *server)
}

/// Says that launches begin. From now on the process outlives its parent, unlike other jobs:
/// a client of MPS that is killed with work in flight breaks its neighbours.
pub(super) fn say_launches() {
    let _ = rustix::process::set_parent_process_death_signal(None);
    println!("{LAUNCHES}");
}

/// The job.
///
/// # Errors
/// Those of the driver.
pub fn launch_here() -> Result<(), String> {
    on_gpu(|gpu| {
        say_launches();
        let launched = gpu.spin(1, 32, 1000).and_then(|()| gpu.synchronize());
        launched.map_err(|error| error.to_string())
    })
}
