//! A mask in every launch of the process: live, and without a wait.

use partita_abi::types::CUuuid;
use partita_core::TpcSet;
use partita_driver::kept::{self, Origin};
use partita_driver::{Gpu, ProcessMasks, StreamRef};

use super::{Steer, refused};
use crate::error::Error;

/// A mask in every launch, by [`ProcessMasks`]. The board's calibration is the one that `partita
/// run` has proved and cached.
///
/// The driver's callbacks for launches are registered at the first suggestion, not before.
#[derive(Debug, Clone, Copy, Default)]
pub struct Masks {
    masks: Option<ProcessMasks>,
}

impl Masks {
    fn install(gpu: &Gpu<'_>) -> Result<ProcessMasks, Error> {
        let cuda = gpu.cuda();
        let facts = gpu.facts();
        let origin = Origin {
            uuid: format!("GPU-{}", CUuuid { bytes: facts.uuid }),
            driver: kept::driver_build(&|name| cuda.symbol(name)).map_err(refused)?,
            compute_capability: facts.compute_capability,
            directory: kept::directory(),
        };
        let measured = origin.measured();
        let measured = measured.map_err(|reason| {
            refused(format!("{reason}; start the chain by `partita chain`, or run `partita doctor` once"))
        })?;
        ProcessMasks::install(cuda, &measured.topology, measured.layout).map_err(refused)
    }
}

impl<'g> Steer<'g> for Masks {
    fn apply(&mut self, gpu: &'g Gpu<'g>, set: &TpcSet) -> Result<(), Error> {
        let masks = match self.masks {
            Some(masks) => masks,
            None => *self.masks.insert(Self::install(gpu)?),
        };
        masks.set_process(Some(set)).map(drop).map_err(refused)
    }

    fn stream(&self) -> Option<StreamRef<'g>> {
        None
    }

    fn name(&self) -> &'static str {
        "masks"
    }

    fn code(&self) -> u64 {
        1
    }
}
