//! What tenants need that keep to their SMs by themselves (`--via persistent`), on a GPU whose
//! launch descriptors are unknown: how many SMs it has and how they are numbered.

use partita_driver::Cuda;

use super::{Cache, Measured, unproved, without_mps};
use crate::calibration::evidence::Evidence;
use crate::child::Job;
use crate::error::Error;
use crate::gpu::Gpu;
use crate::install::Install;

/// The name of the job that counts.
pub const JOB: &str = "count-sms";

impl Cache {
    /// The kept calibration of `gpu`, else what is known without one. That has no mask and no GPC,
    /// and is not kept.
    ///
    /// # Errors
    /// [`Error::Unproved`] if the SMs are not numbered as on other GPUs.
    pub fn get_without_masks(&self, install: &Install, gpu: &Gpu) -> Result<Measured, Error> {
        match self.kept(install, gpu) {
            Some(measured) => Ok(measured),
            None => {
                let job = Job::new(install, JOB, &())?.envs(gpu.variables()).envs(without_mps());
                job.run()?.map_err(|error| error.or(|reason| unproved(gpu, reason)))
            }
        }
    }
}

/// The job: counts the SMs of the first GPU that this process sees.
///
/// # Errors
/// The driver's message.
pub fn count_here() -> Result<Measured, String> {
    let cuda = Cuda::load(None).map_err(|error| format!("libcuda.so.1: {error}"))?;
    let describe = |error: partita_driver::Error| error.to_string();
    let gpu = partita_driver::Gpu::open(&cuda, 0).map_err(describe)?;
    let facts = gpu.facts();
    let sms_per_tpc = partita_driver::sms_without_masks(&gpu).map_err(describe)?;
    // As in a calibration that proves no GPC.
    let tpcs = (0..facts.sms / sms_per_tpc).map(|tpc| (0, tpc as u16)).collect();
    Ok(Measured {
        device_class: facts.compute_capability,
        qmd_version: 0,
        sms_per_tpc,
        tpcs,
        gpcs_proved: false,
        evidence: Evidence::default(),
        memory_total_bytes: facts.memory_bytes,
        task_slots: partita_driver::task_slots(&gpu).map_err(describe)?,
    })
}
