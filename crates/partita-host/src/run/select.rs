//! The GPUs that a program runs on.

use crate::error::Error;
use crate::gpu::{Gpu, INSTANCES_INSTEAD};
use crate::gpus;
use crate::install::Install;
use crate::request::RunRequest;

/// The GPUs to run on.
pub(super) fn select(
    install: &Install,
    request: &RunRequest,
    mut say: impl FnMut(&str),
) -> Result<Vec<Gpu>, Error> {
    let usable = |gpu: &Gpu| check_usable(gpu).is_ok();
    let selected = gpus::select_to_start(install, request.gpus.as_ref(), usable)?;
    if let Some(notice) = &selected.notice {
        say(notice);
    }
    let mut gpus = selected.gpus;
    if request.chooses_gpu() && gpus.iter().any(usable) {
        gpus.retain(usable);
    }
    gpus.iter().try_for_each(check_usable)?;
    Ok(gpus)
}

/// Whether masks mean anything on the GPU as it is set up.
pub fn check_usable(gpu: &Gpu) -> Result<(), Error> {
    let label = gpu.label();
    if gpu.facts.mig_enabled == Some(true) {
        return Err(Error::NotOffered {
            option: label,
            reason: format!(
                "it is cut up by MIG; {INSTANCES_INSTEAD}; `nvidia-smi -i {} -mig 0` turns MIG off",
                gpu.facts.index
            ),
        });
    }
    if gpu.facts.compute_mode == "prohibited" {
        return Err(Error::NotOffered {
            option: label,
            reason: format!(
                "its compute mode is PROHIBITED; `nvidia-smi -i {} -c DEFAULT` opens it",
                gpu.facts.index
            ),
        });
    }
    Ok(())
}
