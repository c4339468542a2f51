//! The GPUs of a chain.

use std::ffi::CString;

use partita_core::{ByteSize, Count, TpcSet};
use partita_host::error::Error;
use partita_host::gpu::{Gpu, Selector};
use partita_host::gpus::{self, Selectors};
use partita_host::install::Install;
use partita_host::registry::{Tenant, c_path};
use partita_ledger::{LIMITS_FILE_NAME, LimitsMap};

use super::ChainRun;
use crate::state::of_file;
use crate::{Definition, GpuState};

/// A GPU of a running chain.
pub(super) struct OnGpu {
    /// Its short name.
    pub label: String,
    /// Its UUID, and as a list of visible GPUs names it.
    pub uuid: [u8; 16],
    pub visible: String,
    /// The file of the tenant's limits there.
    pub limits: CString,
    /// The tenant's TPCs there at the start.
    pub tpcs: u32,
}

impl OnGpu {
    pub(super) fn state(&self) -> GpuState {
        GpuState { gpu: self.label.clone(), tpcs: self.tpcs }
    }
}

/// The GPUs of a definition, each once in the order in which components have them, and the number
/// of each component's; no numbers if it has one.
///
/// # Errors
/// [`Error::Refused`] for several GPUs where the chain can have one; those of
/// [`gpus::select`], for example for a GPU that does not exist.
pub(super) fn find(
    install: &Install,
    definition: &Definition,
    say: &mut impl FnMut(&str),
) -> Result<(Option<Selectors>, Vec<usize>), Error> {
    let named = definition.component_gpus()?;
    let list = |selector: &Selector| Selectors::List(vec![selector.clone()]);
    if named.iter().all(|gpu| *gpu == named[0]) {
        return Ok((named[0].as_ref().map(list), Vec::new()));
    }
    // One GPU may have several names.
    let mut found: Vec<Gpu> = Vec::new();
    let mut known: Vec<(&Option<Selector>, usize)> = Vec::new();
    for selector in &named {
        if known.iter().any(|(other, _)| *other == selector) {
            continue;
        }
        let selected = gpus::select(install, selector.as_ref().map(list).as_ref())?;
        selected.notice.iter().for_each(|notice| say(notice));
        for gpu in selected.gpus.into_iter().take(1) {
            let at = found.iter().position(|other| other.key() == gpu.key());
            known.push((selector, at.unwrap_or(found.len())));
            if at.is_none() {
                found.push(gpu);
            }
        }
    }
    let number = |selector| known.iter().find(|(other, _)| *other == selector).map_or(0, |(_, at)| *at);
    let of: Vec<usize> = named.iter().map(number).collect();
    if found.len() > 1 {
        definition.check_for_several_gpus()?;
    }
    let of = if found.len() > 1 { of } else { Vec::new() };
    Ok((Some(Selectors::List(found.iter().map(Gpu::selector).collect())), of))
}

/// The GPUs of a chain's tenant, and the number of each component's.
///
/// # Errors
/// [`Error::Refused`] if the tenant has not the chain's GPUs, or one has no memory for the frames;
/// [`Error::Io`] for limits that cannot be read.
pub(super) fn of_tenant(chain: &ChainRun, parts: &[Tenant]) -> Result<(Vec<OnGpu>, Vec<usize>), Error> {
    let definition = &chain.definition;
    let of = match chain.gpus.as_slice() {
        [] => vec![0; definition.components.len()],
        gpus => gpus.to_vec(),
    };
    if of.len() != definition.components.len() || of.iter().any(|&gpu| gpu >= parts.len()) {
        return Err(Error::Refused {
            what: format!("chain {}", definition.name),
            reason: format!(
                "its tenant has not the GPUs of its components; use `partita chain start {}`",
                definition.name
            ),
        });
    }
    let (frame, frames) = (definition.frame_bytes()?, definition.frame_count());
    let on = |(at, part): (usize, &Tenant)| {
        let limits = c_path(&part.dir.join(LIMITS_FILE_NAME.to_str().unwrap_or_default()))?;
        let (_, now) = LimitsMap::open_ro(&limits)
            .and_then(|map| map.load())
            .map_err(|error| of_file(&definition.name, &error))?;
        if frame.saturating_mul(frames.into()) > now.memory_total_bytes {
            let first = of.iter().position(|gpu| *gpu == at).unwrap_or_default();
            return Err(Error::Refused {
                what: format!("chain {}, component {}", definition.name, definition.components[first].name),
                reason: format!(
                    "`frame` = {}: {}, the component's GPU, has {}, too little for {}; lower `frame` or \
                     `frames`",
                    ByteSize(frame),
                    part.gpu_label(),
                    ByteSize(now.memory_total_bytes).rounded_down(),
                    Count(frames, "frame")
                ),
            });
        }
        Ok(OnGpu {
            label: part.gpu_label().to_owned(),
            uuid: now.gpu_uuid,
            visible: part.meta()?.gpu.uuid.clone(),
            limits,
            tpcs: TpcSet::from_words(now.set).len(),
        })
    };
    Ok((parts.iter().enumerate().map(on).collect::<Result<_, Error>>()?, of))
}
