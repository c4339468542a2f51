//! SMs of the tenant as resources of the driver's interface, and their splits.
//!
//! The sizes are the driver's: those of the device, or 2 SMs without co-scheduling. Each group of a
//! co-scheduled split has at least one unit of SMs of one GPC, as on an H200 (driver 580.159.04).
//! The driver does not document a group's other TPCs.

use alloc::vec;
use alloc::vec::Vec;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};

use partita_abi::CuResult;
use partita_abi::types::{
    CU_DEV_RESOURCE_TYPE_INVALID, CU_DEV_RESOURCE_TYPE_SM, CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING,
    CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE, CUdevResource, CUdevSmResource,
};
use partita_core::{Topology, TpcSet};

/// Marks the private part of a resource that this library filled.
const MAGIC: u64 = u64::from_le_bytes(*b"partita\0");
/// SMs of the finest part, and their step, without co-scheduling.
const FINEST_SMS: u32 = 2;
/// SMs of one GPC that the largest cluster takes where there are clusters.
const CLUSTER_SMS_MAX: u32 = 16;

static NEXT_SPLIT: AtomicU32 = AtomicU32::new(1);

/// Some of the tenant's SMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sms {
    /// The device's ordinal.
    pub device: c_int,
    /// Their TPCs, logical.
    pub set: TpcSet,
    /// The split that they came from; 0 if they can be split.
    pub split: u32,
    /// SMs of the least part.
    pub least_sms: u32,
    /// SMs that are sure to be of one GPC.
    pub together_sms: u32,
}

impl Sms {
    /// Those of a resource.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_RESOURCE_TYPE` for one that is not of SMs, `CUDA_ERROR_INVALID_VALUE`
    /// for one that this library did not fill.
    pub fn of(resource: &CUdevResource) -> Result<Self, CuResult> {
        if resource.kind != CU_DEV_RESOURCE_TYPE_SM {
            return Err(CuResult::INVALID_RESOURCE_TYPE);
        }
        let mut words =
            resource.internal_padding.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let mut word = || words.next().unwrap_or(0);
        if word() != MAGIC {
            return Err(CuResult::INVALID_VALUE);
        }
        let place = word();
        Ok(Self {
            device: (place >> 32) as c_int,
            split: place as u32,
            set: TpcSet::from_words(core::array::from_fn(|_| word())),
            least_sms: resource.sm.min_sm_partition_size,
            together_sms: resource.sm.sm_coscheduled_alignment,
        })
    }

    /// As a resource; no SMs are a resource of no type.
    pub fn resource(&self, topology: &Topology) -> CUdevResource {
        let mut resource = CUdevResource {
            kind: CU_DEV_RESOURCE_TYPE_INVALID,
            internal_padding: [0; 92],
            sm: CUdevSmResource::default(),
            oversize: [0; 36],
        };
        if self.set.is_empty() {
            return resource;
        }
        resource.kind = CU_DEV_RESOURCE_TYPE_SM;
        let place = u64::from(self.split) | u64::from(self.device as u32) << 32;
        let words = [MAGIC, place].into_iter().chain(self.set.to_words());
        for (to, word) in resource.internal_padding.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        resource.sm = CUdevSmResource {
            sm_count: self.set.len() * topology.sms_per_tpc(),
            min_sm_partition_size: self.least_sms,
            sm_coscheduled_alignment: self.together_sms,
        };
        resource
    }
}

/// TPCs of each GPC in pieces of `tpcs`: the first of every GPC, then the second. Pieces that are
/// not full are left out.
fn units(topology: &Topology, set: &TpcSet, tpcs: u32) -> Vec<TpcSet> {
    let mut units = Vec::new();
    for gpc in topology.gpcs() {
        let mut left = gpc.tpcs & *set;
        let mut turn = 0u32;
        while tpcs > 0 && left.len() >= tpcs {
            let unit = left.lowest(tpcs);
            left -= unit;
            units.push((turn, unit));
            turn += 1;
        }
    }
    units.sort_by_key(|(turn, _)| *turn);
    units.into_iter().map(|(_, unit)| unit).collect()
}

/// Splits SMs into groups of at least `wanted_sms`, at most `groups_max` of them, and a rest.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for unknown flags and for more SMs than there are;
/// `CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION` for a part of another split, and where not even one
/// group fits.
pub fn split(
    topology: &Topology,
    has_clusters: bool,
    input: &Sms,
    wanted_sms: u32,
    flags: u32,
    groups_max: Option<u32>,
) -> Result<(Vec<Sms>, Sms), CuResult> {
    let sms_per_tpc = topology.sms_per_tpc();
    let (least_sms, together_sms) = match flags {
        0 => (input.least_sms, input.together_sms.max(1)),
        CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING => (FINEST_SMS, FINEST_SMS),
        CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE if has_clusters => {
            (CLUSTER_SMS_MAX, CLUSTER_SMS_MAX)
        }
        _ => return Err(CuResult::INVALID_VALUE),
    };
    if wanted_sms > input.set.len() * sms_per_tpc {
        return Err(CuResult::INVALID_VALUE);
    }
    if input.split != 0 {
        return Err(CuResult::INVALID_RESOURCE_CONFIGURATION);
    }
    let size = wanted_sms.max(least_sms).next_multiple_of(together_sms).div_ceil(sms_per_tpc).max(1);
    let mut parts = match flags {
        CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING => {
            vec![TpcSet::EMPTY; (input.set.len() / size) as usize]
        }
        _ => units(topology, &input.set, together_sms.div_ceil(sms_per_tpc)),
    };
    parts.truncate((input.set.len() / size).min(groups_max.unwrap_or(u32::MAX)) as usize);
    if parts.is_empty() {
        return Err(CuResult::INVALID_RESOURCE_CONFIGURATION);
    }
    let mut left = parts.iter().fold(input.set, |left, part| left - *part);
    for part in &mut parts {
        let more = left.lowest(size.saturating_sub(part.len()));
        *part |= more;
        left -= more;
    }
    let split = NEXT_SPLIT.fetch_add(1, Ordering::Relaxed);
    let device = input.device;
    let groups = parts.into_iter().map(|set| Sms { device, set, split, least_sms, together_sms }).collect();
    Ok((groups, Sms { device, set: left, split, least_sms: FINEST_SMS, together_sms: FINEST_SMS }))
}

/// Unites resources for one context.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for none; `CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION` for several
/// that are not of one split, or one twice.
pub fn unite(parts: &[Sms]) -> Result<Sms, CuResult> {
    let Some((&first, others)) = parts.split_first() else { return Err(CuResult::INVALID_VALUE) };
    let mut all = first;
    for part in others {
        if part.split == 0 || part.split != first.split || !part.set.is_disjoint(&all.set) {
            return Err(CuResult::INVALID_RESOURCE_CONFIGURATION);
        }
        all.set |= part.set;
        all.least_sms = all.least_sms.min(part.least_sms);
        all.together_sms = all.together_sms.min(part.together_sms);
    }
    Ok(all)
}
