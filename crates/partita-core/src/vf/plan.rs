//! Where wanted vGPUs go.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::layout::{Layout, Place, Vgpu};
use super::types::VgpuType;

/// How the driver offers vGPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// It offers none: each function is an equal part of the device (plain SR-IOV).
    Plain,
    /// A vGPU on each function, whose type is written to the function.
    Functions,
    /// Mediated devices, one on each function.
    MediatedFunctions,
    /// Mediated devices on the device itself.
    MediatedDevice,
}

/// What is known of a device before a plan.
#[derive(Debug, Clone)]
pub struct Board<'a> {
    /// How the driver offers vGPUs.
    pub form: Form,
    /// The types.
    pub types: &'a [VgpuType],
    /// Whether vGPUs of several sizes can be together, in a mode of their own.
    pub can_mix: bool,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// More vGPUs than functions are enabled.
    TooMany,
    /// The memory of all together is more than the board's.
    Memory {
        /// Of all wanted, in MiB.
        wanted_mib: u64,
        /// Of the largest type, which is the whole board, in MiB.
        board_mib: u64,
        /// How many of the wanted fit, from the first on.
        fits: usize,
    },
    /// Several sizes, which this device cannot have together.
    Sizes,
    /// These must go or move, and virtual machines use them.
    InUse(Vec<Vgpu>),
}

/// The layout with exactly the wanted vGPUs, by the numbers of their types.
///
/// What is wanted and in place stays. The others go to the functions of the lowest numbers that are
/// free. New mediated devices have no UUID yet.
///
/// # Errors
/// [`Refusal`].
pub fn plan(board: &Board<'_>, now: &Layout, wanted: &[u32], in_use: &[Vgpu]) -> Result<Layout, Refusal> {
    let of = |id: u32| board.types.iter().find(|one| one.id == id);
    let memory = |id: u32| of(id).map_or(0, |one| one.memory_mib);
    let board_mib = board.types.iter().map(|one| one.memory_mib).max().unwrap_or(0);
    let wanted_mib: u64 = wanted.iter().map(|id| memory(*id)).sum();
    if wanted_mib > board_mib {
        let mut left_mib = board_mib;
        let takes = |id: &&u32| left_mib.checked_sub(memory(**id)).map(|rest| left_mib = rest).is_some();
        let fits = wanted.iter().take_while(takes).count();
        return Err(Refusal::Memory { wanted_mib, board_mib, fits });
    }
    let is_sliced = |id: &&u32| of(**id).is_some_and(|one| !one.is_of_mig());
    let sizes: BTreeSet<u64> = wanted.iter().filter(is_sliced).map(|id| memory(*id)).collect();
    let is_mixed = sizes.len() > 1;
    if is_mixed && !board.can_mix {
        return Err(Refusal::Sizes);
    }

    let mode = now.is_mixed.map(|mixed| is_mixed || (mixed && !wanted.is_empty()));
    let mut missing = wanted.to_vec();
    let mut vgpus = Vec::new();
    // Those in use first: of two of a type, the other goes.
    let mut present: Vec<&Vgpu> = now.vgpus.iter().collect();
    present.sort_by_key(|vgpu| !in_use.contains(vgpu));
    for vgpu in present {
        if let Some(at) = missing.iter().position(|id| *id == vgpu.kind) {
            missing.remove(at);
            vgpus.push(vgpu.clone());
        }
    }
    let changes_mode = mode != now.is_mixed;
    let goes = |vgpu: &&Vgpu| changes_mode || !vgpus.contains(vgpu);
    let busy: Vec<Vgpu> = in_use.iter().filter(goes).cloned().collect();
    if !busy.is_empty() {
        return Err(Refusal::InUse(busy));
    }
    let taken: BTreeSet<Place> = vgpus.iter().map(|vgpu| vgpu.place).collect();
    let mut free = (0..now.functions).map(Place::Function).filter(|place| !taken.contains(place));
    for kind in missing {
        let place = match board.form {
            Form::MediatedDevice => Place::Device,
            _ => free.next().ok_or(Refusal::TooMany)?,
        };
        vgpus.push(Vgpu { place, kind, uuid: alloc::string::String::new() });
    }
    vgpus.sort();
    Ok(Layout { vgpus, is_mixed: mode, ..now.clone() })
}

/// The types whose memory stands in this ratio and is the most: `2:1:1` is a half and two quarters
/// of the board. `None` if no types do.
#[must_use]
pub fn of_ratio(types: &[VgpuType], ratio: &[u64]) -> Option<Vec<u32>> {
    let sliced = || types.iter().filter(|one| !one.is_of_mig() && one.memory_mib > 0);
    let board_mib = sliced().map(|one| one.memory_mib).max()?;
    let first = *ratio.first().filter(|_| !ratio.contains(&0))?;
    // Of the first part's memory everything else follows.
    let mut firsts: Vec<u64> = sliced().map(|one| one.memory_mib).collect();
    firsts.sort_unstable();
    firsts.iter().rev().find_map(|memory_mib| {
        let part = |part: &u64| {
            let wanted_mib = memory_mib.checked_mul(*part)?;
            let exact = sliced().find(|one| one.memory_mib.checked_mul(first) == Some(wanted_mib))?;
            Some((exact.id, exact.memory_mib))
        };
        let found: Vec<(u32, u64)> = ratio.iter().map(part).collect::<Option<_>>()?;
        let sum_mib: u64 = found.iter().map(|(_, memory_mib)| memory_mib).sum();
        (sum_mib <= board_mib).then(|| found.into_iter().map(|(id, _)| id).collect())
    })
}
