//! Before a program becomes a client: is there room, and is a server ready for it?

use std::thread;
use std::time::{Duration, Instant};

use partita_core::{ByteSize, Quota};
use partita_mps::{DeviceName, MpsError, Pid, ServerStatus, Service};

use super::status::capacity;
use crate::error::Error;
use crate::gpu::Gpu;
use crate::signals;

/// Default time that new clients wait for a server that recovers from a fault.
pub const READY_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// Refuses a program for which there is no room. `tenants` are those that share the service, the
/// new one counted: those that have started and are no clients yet have a place too.
///
/// # Errors
/// [`Error::Mps`].
pub fn admit(service: &Service, gpus: &[Gpu], tenants: usize) -> Result<(), Error> {
    let clients: std::collections::BTreeSet<Pid> =
        service.clients()?.into_iter().map(|(_, client)| client).collect();
    let others = tenants.saturating_sub(1).max(clients.len());
    Ok(capacity(service, gpus).admit(others)?)
}

/// Refuses a quota above what MPS gives to a client of this service.
///
/// # Errors
/// [`Error::NotOffered`].
pub fn check_memory(service: &Service, gpus: &[Gpu], quota: Option<Quota>) -> Result<(), Error> {
    let Some(quota) = quota else { return Ok(()) };
    for gpu in gpus {
        let device = DeviceName::Uuid(gpu.facts.uuid.clone());
        // A daemon that does not tell has no such limit.
        let most = service.control().default_device_memory_limit(&device).ok().flatten();
        let wanted = quota.bytes(gpu.facts.memory_total_bytes, 0);
        if let Some(most) = most.filter(|most| *most < wanted.0) {
            return Err(Error::NotOffered {
                option: format!("--mem {wanted}"),
                reason: format!(
                    "the MPS service of {} gives {} to each client; ask for no more, or give \
                     `partita mps limits --mem none` first",
                    gpu.label(),
                    ByteSize(most)
                ),
            });
        }
    }
    Ok(())
}

/// Whether a server of the service is in a fault, until all affected clients have left. False if it
/// does not answer.
pub fn is_in_fault(service: &Service) -> bool {
    let control = service.control();
    let servers = control.server_list().unwrap_or_default();
    servers.into_iter().any(|server| matches!(control.server_status(server), Ok(ServerStatus::Fault)))
}

/// Waits until every server of the service takes clients: a newcomer would fail with error 807
/// instead. A service without a server is ready, for the next client starts one. Returns how long
/// that took.
///
/// # Errors
/// [`MpsError::NotReady`] when `limit` is over; [`Error::Interrupted`].
pub fn wait(service: &Service, limit: Duration) -> Result<Duration, Error> {
    let control = service.control();
    let begin = Instant::now();
    loop {
        signals::check()?;
        let mut waits_for = None;
        for server in control.server_list()? {
            match control.server_status(server) {
                Ok(ServerStatus::Active) => {}
                Ok(status) => waits_for = Some((server, status)),
                // It ended meanwhile, or this driver does not report it: then the new client will
                // see.
                Err(
                    MpsError::NoSuchServer { .. }
                    | MpsError::UnknownCommand { .. }
                    | MpsError::Refused { .. }
                    | MpsError::Reply { .. },
                ) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let Some((server, status)) = waits_for else { return Ok(begin.elapsed()) };
        if begin.elapsed() >= limit {
            let clients = control.client_list(server).unwrap_or_default();
            return Err(MpsError::NotReady { server, status, waited_s: limit.as_secs(), clients }.into());
        }
        thread::sleep(POLL);
    }
}
