//! `partita doctor`: what works on this machine, proved now.
//!
//! Each check that touches the GPU runs in a child process with a time limit,
//! because a broken driver hangs or crashes it. A check whose ground failed is
//! not made and says so. Tenants and service are the doctor's own.

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
    /// The checks in the order in which they were made.
    pub checks: Vec<Check>,
}

impl Report {
    /// Whether no check failed.
    pub fn is_healthy(&self) -> bool {
        self.checks.iter().all(|check| check.state != State::Failed)
    }
}

/// Makes every check on `gpu`; `progress` hears the name of each before it is made.
///
/// # Errors
/// [`Error::Interrupted`]. Whatever is wrong with the machine is a check's result and no error.
pub fn examine(install: &Install, gpu: &Gpu, progress: impl FnMut(&str)) -> Result<Report, Error> {
    partita_host::signals::end_in_order().map_err(Error::io("signal handlers"))?;
    Ok(Report {
        gpu: gpu.label(),
        gpu_uuid: gpu.facts.uuid.clone(),
        driver_version: gpu.driver_version.clone(),
        checks: checks::Examination::new(install, gpu, progress).all()?,
    })
}
