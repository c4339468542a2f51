//! A canary: a tiny launch by a client of a service, in a process of its own, which shows whether
//! the service still runs kernels.
//!
//! After a launch that no SM can run and its process's exit, a server waits for ever: every client
//! hangs at its next launch, and a new one where it makes its context, without a message (measured
//! on an H100).

use std::time::{Duration, Instant};

use partita_mps::{Pid, Service};

use super::end_work::end_work;
use crate::child::{Job, JobError};
use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpu_job::on_gpu;
use crate::install::Install;

/// The name of the job.
pub const JOB: &str = "mps-canary";
/// How long the process may live before it launches. A busy machine takes seconds.
const OPEN_LIMIT: Duration = Duration::from_secs(20);
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
/// The pause before the server is asked again to end the work.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the server may take to end the work of a canary. After that the canary's process waits
/// for the end of its launch, or of the server.
const PATIENCE: Duration = Duration::from_secs(1);
/// What the process prints before it launches.
pub(super) const LAUNCHES: &str = "launches";

/// What a canary found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The service runs kernels; a launch took this long.
    Works(Duration),
    /// The client's context or its launch was not done in time.
    Stuck {
        /// The server of the canary.
        server: Option<Pid>,
    },
    /// The process never became a client.
    Unknown {
        /// Why.
        reason: String,
    },
}

/// Starts a canary as a client of the service and waits up to `limit` for its launch, and before
/// that as long, or 2.5 s, for its context.
///
/// # Errors
/// [`Error::Child`] if there can be no process; [`Error::Interrupted`].
pub fn send(install: &Install, gpu: &Gpu, service: &Service, limit: Duration) -> Result<Found, Error> {
    Ok(match answer(Job::new(install, JOB, &())?, gpu, service, limit, PATIENCE)? {
        Answer::Line { took, .. } => Found::Works(took),
        Answer::NoContext { server } | Answer::Late { server } => Found::Stuck { server },
        Answer::Unknown { reason } => Found::Unknown { reason },
    })
}

/// What a job that launches as a client of a service has answered.
#[derive(Debug)]
pub(super) enum Answer {
    /// The first line after its launches, and how long they took.
    Line { line: String, took: Duration },
    /// Its context took too long.
    NoContext { server: Option<Pid> },
    /// Its launches took too long. The server has ended them, or its process waits for their end.
    Late { server: Option<Pid> },
    /// It never became a client.
    Unknown { reason: String },
}

/// Runs a job as a client of the service. The job prints [`LAUNCHES`] before its first launch, and
/// a line after the last one, for which this waits up to `limit`, and then up to `patience` until
/// the server has ended its work.
///
/// # Errors
/// As [`send`].
pub(super) fn answer(
    job: Job,
    gpu: &Gpu,
    service: &Service,
    limit: Duration,
    patience: Duration,
) -> Result<Answer, Error> {
    let whole = OPEN_LIMIT + limit + patience;
    let mut job = job.envs(gpu.variables()).envs(service.client_env()).limit(whole).start()?;
    let started = Instant::now();
    let unknown = |error: JobError| match error {
        JobError::Interrupted { signal } => Err(Error::Interrupted { signal }),
        other => Ok(Answer::Unknown { reason: other.to_string() }),
    };
    let pid = job.pid();
    let service = service.clone().with_command_limit(COMMAND_LIMIT);
    let server = || {
        let clients = service.clients().unwrap_or_default();
        clients.iter().find(|(_, client)| *client == pid).map(|(server, _)| *server)
    };
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
            job.end();
            return Ok(Answer::NoContext { server: Some(server) });
        }
    }
    // It may have work in flight until its next line.
    job.spare(true);
    let begin = Instant::now();
    match job.line_within(limit) {
        Ok(Some(line)) => {
            let took = begin.elapsed();
            job.leave();
            return Ok(Answer::Line { line, took });
        }
        Err(error) => return unknown(error),
        Ok(None) => {}
    }
    // If the GPU is only busy, a death with a kernel in flight could harm the others.
    let mut found = None;
    loop {
        found = server().or(found);
        let ended = found.map(|server| end_work(&service.control(), server, pid));
        if ended.is_some_and(|ended| ended.is_ok()) {
            job.spare(false);
            break;
        }
        // Its line says that its launches have ended; without one its process waits for their end.
        if begin.elapsed() >= limit + patience || !matches!(job.line_within(PAUSE), Ok(None)) {
            break;
        }
    }
    Ok(Answer::Late { server: found })
}

/// The job.
///
/// # Errors
/// Those of the driver.
pub fn launch_here() -> Result<(), String> {
    on_gpu(|gpu| {
        println!("{LAUNCHES}");
        let launched = gpu.spin(1, 32, 1000).and_then(|()| gpu.synchronize());
        launched.map_err(|error| error.to_string())
    })
}
