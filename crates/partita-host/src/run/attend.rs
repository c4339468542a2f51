//! A tenant whose program runs, until it has ended for good.

use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};

use super::client::{self, Attended};
use super::command::spawn_owner;
use super::watch::Watch;
use crate::error::Error;
use crate::install::Install;
use crate::mps::partitions::check_there;
use crate::process::ProcessId;
use crate::registry::{OwnedTenant, Registry};
use crate::request::RunRequest;
use crate::signals::Signals;
use crate::slo::Standby;
use crate::system;

/// A tenant whose program runs.
pub(super) struct Started {
    pub tenant: OwnedTenant,
    pub registry: Registry,
    pub name: String,
    pub program: PathBuf,
    pub command: Command,
    pub child: Child,
    /// Of a tenant that is a client of MPS.
    pub watch: Option<Watch>,
    /// Ready to move TPCs for targets.
    pub standby: Standby,
}

/// Waits for the program, and restarts it if that was requested.
pub(super) fn attend(
    install: &Install,
    request: &RunRequest,
    started: &mut Started,
    signals: &mut Signals,
    say: &mut dyn FnMut(&str),
) -> Result<ExitStatus, Error> {
    let Started { tenant, registry, name, program, command, child, watch, .. } = started;
    loop {
        let pid = child.id();
        let _ = tenant.update_meta(|meta| meta.child = ProcessId::living(pid));
        if registry.is_client() {
            system::note_child(registry, tenant.meta());
        }
        watch.iter().for_each(|watch| watch.expect(pid));
        let dir = tenant.dir().to_owned();
        let attended = watch.as_ref().map(|watch| Attended { install, registry, name, dir: &dir, watch });
        let status = client::attend(attended.as_ref(), signals, child);
        let status = status.map_err(Error::io("waiting for the program"))?;
        if let Some(error) = watch.as_ref().and_then(Watch::gave_up) {
            return Err(error);
        }
        let again = match &attended {
            Some(one) => one.after(pid, status, request.limits.restart, request.mps_limit(), say),
            None => Ok(false),
        };
        // The daemon may be another one by now, without the partition.
        let is_there = || match (&request.mps_partition, watch.as_ref()) {
            (Some(name), Some(watch)) => check_there(watch.service(), name),
            _ => Ok(()),
        };
        let begin = || is_there().and_then(|()| spawn_owner(command, tenant, program));
        let next = again.and_then(|again| again.then(begin).transpose());
        match next {
            Ok(Some(next)) => *child = next,
            Ok(None) => return Ok(status),
            // The caller gets the program's own exit code.
            Err(error) => {
                say(&format!("tenant {name}: not restarted: {error}"));
                return Ok(status);
            }
        }
    }
}
