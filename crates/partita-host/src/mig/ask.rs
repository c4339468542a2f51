//! Requests to the child process that calls NVML.

use std::time::Duration;

use serde::de::DeserializeOwned;

use super::work::{JOB, Request};
use crate::child::{Job, JobError};
use crate::error::Error;
use crate::gpu::Gpu;
use crate::install::Install;

/// Each of at most thirty steps takes a second or two; the first contact with a driver takes
/// longer.
const CHANGE_LIMIT: Duration = Duration::from_secs(180);

/// Has the child process do its work.
///
/// # Errors
/// [`Error::Refused`] with the child's reason, or why it ended.
pub(super) fn ask<T: DeserializeOwned>(install: &Install, gpu: &Gpu, request: &Request) -> Result<T, Error> {
    let variables = gpu.sim().map(|sim| sim.variables()).unwrap_or_default();
    let job = Job::new(install, JOB, request)?.envs(variables).limit(CHANGE_LIMIT);
    let refused = |reason: String| Error::Refused { what: format!("MIG of {}", gpu.label()), reason };
    job.run()?.map_err(|error| match error {
        JobError::Failed { reason, .. } => refused(reason),
        other => other.or(|reason| match request.changes() {
            true => refused(format!(
                "the change stopped: {reason}; run the command again to continue, or `partita mig apply \
                 --restore` to go back"
            )),
            false => refused(reason),
        }),
    })
}
