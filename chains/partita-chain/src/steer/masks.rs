//! A mask in every launch of the process: live, and without a wait.

use std::path::PathBuf;

use partita_abi::qmd::{self, QmdLayout};
use partita_abi::types::CUuuid;
use partita_core::{Topology, TpcSet};
use partita_driver::kept::{self, Origin};
use partita_driver::{Gpu, ProcessMasks, StreamRef};
use partita_ledger::{GPU_LINK_PREFIX, GPUS_MAX, LEDGER_VARIABLE, LIMITS_FILE_NAME, Limits, MECHANISM_MASK};

use super::{Steer, refused};
use crate::chain::c_path;
use crate::error::Error;

/// A mask in every launch, by [`ProcessMasks`]. The board's calibration is that of the tenant whose
/// process this is, else the one that Partita has proved and cached.
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
        if let Some((topology, layout)) = of_tenant(&facts.uuid) {
            return ProcessMasks::install(cuda, &topology, layout).map_err(refused);
        }
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

/// The topology and the launch layout of a board, as the limits of this process's tenant have them.
/// `None` without such a tenant, or if it has no masks there.
fn of_tenant(uuid: &[u8; 16]) -> Option<(Topology, &'static QmdLayout)> {
    let first = PathBuf::from(std::env::var_os(LEDGER_VARIABLE.to_str().ok()?)?);
    let others = (1..GPUS_MAX).map(|number| first.join(format!("{GPU_LINK_PREFIX}{number}")));
    let limits = |part: PathBuf| {
        let path = c_path(&part.join(LIMITS_FILE_NAME.to_str().ok()?)).ok()?;
        Some(Limits::read(path.as_c_str()).ok()?.1)
    };
    let limits = std::iter::once(first.clone())
        .chain(others)
        .map_while(limits)
        .find(|limits| limits.gpu_uuid == *uuid && limits.mechanism == MECHANISM_MASK)?;
    let layout = qmd::layout_for(limits.device_class, limits.qmd_version).ok()?;
    Some((limits.topology().ok()?, layout))
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
