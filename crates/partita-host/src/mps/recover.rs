//! A stuck service: its server is killed, and the daemon starts another for the next client.

use std::thread;
use std::time::{Duration, Instant};

use partita_mps::{MpsError, Pid, Service};
use rustix::process::Signal;

use super::canary::{self, Found, RESTART_LIMIT, Waiting};
use super::incident::{self, Incident, RestartCause, What};
use crate::error::Error;
use crate::gpu::Gpu;
use crate::install::Install;
use crate::process::ProcessId;
use crate::signals;

/// How long the daemon may take to notice the end of its server (2 s on an H100).
const GONE_LIMIT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);

/// What [`recover`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// The servers that it ended; none if the service works.
    pub servers: Vec<Pid>,
    /// From the beginning until the service ran a kernel.
    pub took: Duration,
}

/// Restarts the servers of a service if a canary does not run within 8 s, or `anyway`; `by` says
/// who did it. One process at a time does so: each canary takes memory of the GPU.
///
/// # Errors
/// [`MpsError::Stuck`] if the new server does not run kernels either; [`MpsError::NoCanary`];
/// [`MpsError::Locked`] if others take too long; [`Error::Io`]; [`Error::Mps`]; those of
/// [`canary::send`].
pub fn recover(
    install: &Install,
    gpu: &Gpu,
    service: &Service,
    by: &str,
    anyway: bool,
) -> Result<Recovered, Error> {
    let begin = Instant::now();
    let send = || canary::send(install, gpu, service, RESTART_LIMIT);
    let _alone = service.lock_canary()?;
    if !anyway
        && match stuck(send()?)? {
            Some(waiting) => stuck(waiting.again(RESTART_LIMIT)?)?.is_none(),
            None => true,
        }
    {
        return Ok(Recovered { servers: Vec::new(), took: begin.elapsed() });
    }
    let servers = service.control().server_list()?;
    for &server in &servers {
        end_server(service, by, server, if anyway { RestartCause::Forced } else { RestartCause::Stuck })?;
    }
    if stuck(send()?)?.is_some() {
        let server = service.control().server_list()?.first().copied().unwrap_or_default();
        return Err(MpsError::Stuck { server, waited_s: begin.elapsed().as_secs() }.into());
    }
    Ok(Recovered { servers, took: begin.elapsed() })
}

/// The canary that waits for a stuck service.
fn stuck(found: Found) -> Result<Option<Waiting>, Error> {
    match found {
        Found::Works { .. } => Ok(None),
        Found::Stuck(waiting) => Ok(Some(waiting)),
        Found::Unknown { reason } => Err(MpsError::NoCanary { reason }.into()),
    }
}

/// Kills a server and waits until the daemon has noticed. The clients of the server get an error at
/// their next call.
///
/// # Errors
/// [`Error::Io`] if it may not be killed; [`MpsError::Stuck`] if it stays; [`Error::Interrupted`].
pub(crate) fn end_server(
    service: &Service,
    by: &str,
    server: Pid,
    because: RestartCause,
) -> Result<(), Error> {
    // First, so that programs that fail because of it find the reason.
    incident::note(service, &Incident::now(by, What::Recovered { server, because }));
    if let Some(process) = ProcessId::living(server) {
        process.signal(Signal::KILL).map_err(Error::io("ending the MPS server"))?;
    }
    let begin = Instant::now();
    loop {
        signals::check()?;
        match service.control().server_list() {
            Ok(servers) if servers.contains(&server) => {}
            Ok(_) | Err(MpsError::NotRunning { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        if begin.elapsed() >= GONE_LIMIT {
            return Err(MpsError::Stuck { server, waited_s: begin.elapsed().as_secs() }.into());
        }
        thread::sleep(LOOK);
    }
}
