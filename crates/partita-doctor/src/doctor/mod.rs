//! `partita doctor`: tests what works on this machine.
//!
//! Each check that touches the GPU runs in a child process with a timeout, because a broken driver
//! hangs or crashes it. A check whose needs are not met is skipped and says so. The doctor makes
//! its own tenants and its own MPS service.

mod check;
mod checks;
mod conditions;
pub(crate) mod exports;
pub(crate) mod jobs;
mod mechanisms;
mod products;
mod topology;

pub use check::{Check, State};
use partita_host::error::Error;
use partita_host::gpu::Gpu;
use partita_host::install::Install;
use serde::Serialize;

/// All checks of one GPU.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The GPU's short name.
    pub gpu: String,
    /// Its UUID.
    pub gpu_uuid: String,
    /// The driver's build.
    pub driver_version: String,
    /// The checks in the order in which they ran.
    pub checks: Vec<Check>,
}

impl Report {
    /// Whether no check failed.
    pub fn is_healthy(&self) -> bool {
        self.checks.iter().all(|check| check.state != State::Failed)
    }
}

/// Runs every check on `gpu`; `progress` gets the name of each before it runs.
///
/// # Errors
/// [`Error::Interrupted`]. A defect of the machine is a check's result, not an error.
pub fn examine(install: &Install, gpu: &Gpu, progress: impl FnMut(&str)) -> Result<Report, Error> {
    partita_host::signals::end_in_order().map_err(Error::io("signal handlers"))?;
    Ok(Report {
        gpu: gpu.label(),
        gpu_uuid: gpu.facts.uuid.clone(),
        driver_version: gpu.driver_version.clone(),
        checks: checks::Examination::new(install, gpu, progress).all()?,
    })
}
