//! The MIG instances of a GPU: shown, planned, changed, and given to programs.
//!
//! NVML is called in a child process, which also plans and keeps the journal (`work`). So it
//! alone holds the lock on the GPU's instances, and the lock ends when the last call has ended,
//! even if this process is killed. MIG mode itself is never changed.

mod ask;
mod config;
mod journal;
mod report;
mod run;
mod work;

use std::fs::File;

use crate::error::Error;
use crate::gpu::Gpu;
use crate::install::Install;
use crate::registry::Registry;

pub use config::{ConfigEntry, MigConfig};
pub use report::{ComputeRow, InstanceRow, MigChange, MigReport, MigState, ProfileRow, StepRow};
pub use run::run_in_instance;
pub use work::Target;

use ask::ask;
use work::Request;
pub(crate) use work::{JOB, work_here};

/// What a GPU offers and has.
///
/// # Errors
/// [`Error::Refused`] with the reason; those of the run directory.
pub fn show(install: &Install, registry: &Registry, gpu: &Gpu) -> Result<MigReport, Error> {
    ask(install, gpu, &Request::show(registry, gpu))
}

/// What a change to `target` would do. Nothing changes.
///
/// # Errors
/// As [`show`]; the reason why there is no way, with what would make room.
pub fn plan(install: &Install, registry: &Registry, gpu: &Gpu, target: &Target) -> Result<MigChange, Error> {
    ask(install, gpu, &Request::plan(registry, gpu, target))
}

/// Takes an instance, `MIG-…`, as `partita run --mig` does: neither that nor a change of instances
/// touches it while the file is open. `None` while another process has it.
///
/// # Errors
/// Those of the run directory.
pub fn take_instance(registry: &Registry, uuid: &str) -> Result<Option<File>, Error> {
    registry.try_lock_mig(uuid)
}

/// Changes the instances. If a step fails, those from before are restored. If the process is
/// killed, the next call continues.
///
/// # Errors
/// As [`plan`]; the step that failed, and whether everything is as before.
pub fn apply(install: &Install, registry: &Registry, gpu: &Gpu, target: &Target) -> Result<MigChange, Error> {
    ask(install, gpu, &Request::apply(registry, gpu, target))
}
