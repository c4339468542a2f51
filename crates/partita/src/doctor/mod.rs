//! `partita doctor`: what works on this machine, proved now.
//!
//! Each check that touches the GPU runs in a child process with a time limit,
//! because a broken driver hangs or crashes it. A check whose ground failed is
//! not made and says so. Tenants and service are the doctor's own.

mod checks;
mod conditions;
pub(crate) mod exports;
pub(crate) mod jobs;
mod mechanisms;
mod products;
mod topology;

pub(crate) use products::cublas_candidates;
use serde::Serialize;

use crate::error::Error;
use crate::gpu::Gpu;
use crate::install::Install;

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Proved.
    Ok,
    /// Disproved, or broken.
    Failed,
    /// Proved, with a restriction that the remedy is about.
    Weak,
    /// Not made: something that it stands on is missing.
    NotChecked,
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// How it came out.
    pub state: State,
    /// What was found.
    pub detail: String,
    /// What to do about it, if something should be done.
    pub remedy: Option<String>,
}

impl Check {
    fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, state: State::Ok, detail: detail.into(), remedy: None }
    }

    fn failed(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, state: State::Failed, detail: detail.into(), remedy: Some(remedy.into()) }
    }

    fn weak(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, state: State::Weak, detail: detail.into(), remedy: Some(remedy.into()) }
    }

    fn not_checked(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        let remedy = Some(remedy.into()).filter(|remedy: &String| !remedy.is_empty());
        Self { name, state: State::NotChecked, detail: detail.into(), remedy }
    }
}

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
    crate::signals::end_in_order().map_err(Error::io("signal handlers"))?;
    Ok(Report {
        gpu: gpu.label(),
        gpu_uuid: gpu.facts.uuid.clone(),
        driver_version: gpu.driver_version.clone(),
        checks: checks::Examination::new(install, gpu, progress).all()?,
    })
}
