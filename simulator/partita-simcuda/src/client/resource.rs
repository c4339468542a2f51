//! The SMs of a device as resources, and how a driver splits them.
//!
//! Sizes are those that `cuda.h` documents for each generation; the number of groups of a split is
//! as measured on an H200 (driver 580.159.04): of 132 SMs 15 groups of 8 with 12 left over, 8 of 16
//! with 4, 3 of 40 (34 requested) with 12; without co-scheduling 66 of 2, 8 of 16, 3 of 34. It
//! follows that each group has at least one unit of SMs of one GPC. The other SMs of a group can be
//! of other GPCs: the first group of 16 SMs had TPCs 0, 8, 16, 24 and 64 of one GPC, 32 and 39 of
//! another and 47 of a third, and the first GPC had three left. The driver's rule is unknown; here
//! a group takes the first SMs that no group has.

use std::sync::atomic::{AtomicU32, Ordering};

use partita_abi::CuResult;
use partita_abi::types::{
    CU_DEV_RESOURCE_TYPE_INVALID, CU_DEV_RESOURCE_TYPE_SM, CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING,
    CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE, CUdevResource, CUdevSmResource, CUdevice,
};
use partita_core::{Topology, TpcSet};
use partita_sim::DeviceSpec;

/// Marks the private part of a resource that this library filled.
const MAGIC: u64 = u64::from_le_bytes(*b"simsmrs\0");
/// SMs of the finest part, and their step, without co-scheduling.
const FINEST_SMS: u32 = 2;

static NEXT_SPLIT: AtomicU32 = AtomicU32::new(1);

/// The SMs of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmSet {
    /// The device's ordinal.
    pub device: CUdevice,
    /// The TPCs, logical.
    pub set: TpcSet,
    /// The split that it came from; 0 if it can be split.
    pub split: u32,
    /// SMs of the least part.
    pub least_sms: u32,
    /// SMs that are sure to be of one GPC.
    pub together_sms: u32,
}

/// The sizes of co-scheduled parts: the least, and the SMs of one GPC that each has, which is also
/// the step.
fn sizes(spec: &DeviceSpec) -> (u32, u32) {
    match spec.compute_capability.major {
        ..=7 => (2, 2),
        8 => (4, 2),
        _ => (8, 8),
    }
}

impl SmSet {
    /// All SMs that may be split.
    pub fn whole(spec: &DeviceSpec, device: CUdevice, set: TpcSet) -> Self {
        let (least_sms, together_sms) = sizes(spec);
        Self { device, set, split: 0, least_sms, together_sms }
    }

    /// Reads a resource.
    ///
    /// # Errors
    /// `INVALID_RESOURCE_TYPE` for one that is not of SMs, `INVALID_VALUE` for one that this
    /// library did not fill.
    pub fn of(resource: &CUdevResource) -> Result<Self, CuResult> {
        if resource.kind != CU_DEV_RESOURCE_TYPE_SM {
            return Err(CuResult::INVALID_RESOURCE_TYPE);
        }
        let mut words = resource
            .internal_padding
            .chunks_exact(8)
            .map(|bytes| bytes.try_into().map_or(0, u64::from_le_bytes));
        let mut word = || words.next().unwrap_or(0);
        if word() != MAGIC {
            return Err(CuResult::INVALID_VALUE);
        }
        let (split, device) = (word() as u32, word() as CUdevice);
        let set = TpcSet::from_words(std::array::from_fn(|_| word()));
        let CUdevSmResource { min_sm_partition_size, sm_coscheduled_alignment, .. } = resource.sm;
        Ok(Self {
            device,
            set,
            split,
            least_sms: min_sm_partition_size,
            together_sms: sm_coscheduled_alignment,
        })
    }

    /// Makes a resource; one of no SMs is of no type.
    pub fn resource(&self, sms_per_tpc: u32) -> CUdevResource {
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
        let words = [MAGIC, u64::from(self.split), self.device as u64].into_iter().chain(self.set.to_words());
        for (to, word) in resource.internal_padding.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        resource.sm = CUdevSmResource {
            sm_count: self.set.len() * sms_per_tpc,
            min_sm_partition_size: self.least_sms,
            sm_coscheduled_alignment: self.together_sms,
        };
        resource
    }
}

/// The result of a split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The groups.
    pub groups: Vec<SmSet>,
    /// The remainder.
    pub rest: SmSet,
}

/// TPCs of each GPC in pieces of `tpcs`: the first of every GPC, then the second. Incomplete pieces
/// are left out.
fn units(topology: &Topology, set: &TpcSet, tpcs: u32) -> Vec<TpcSet> {
    let mut units = Vec::new();
    for gpc in topology.gpcs() {
        let mut left = gpc.tpcs & *set;
        let mut turn = 0;
        while left.len() >= tpcs {
            let unit = left.lowest(tpcs);
            left -= unit;
            units.push((turn, unit));
            turn += 1;
        }
    }
    units.sort_by_key(|(turn, _)| *turn);
    units.into_iter().map(|(_, unit)| unit).collect()
}

/// Splits SMs into groups of at least `wanted_sms`, at most `groups_max` of them.
///
/// # Errors
/// `INVALID_VALUE` for unknown flags and for more SMs than there are;
/// `INVALID_RESOURCE_CONFIGURATION` for a part of another split, and where not even one group fits.
pub fn split(
    spec: &DeviceSpec,
    input: &SmSet,
    wanted_sms: u32,
    flags: u32,
    groups_max: Option<u32>,
) -> Result<Split, CuResult> {
    let sms_per_tpc = spec.topology.sms_per_tpc();
    let (least_sms, together_sms) = match flags {
        0 => sizes(spec),
        CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING => (FINEST_SMS, FINEST_SMS),
        CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE if spec.sm.cluster_blocks_max > 1 => {
            // One block to an SM: the largest cluster needs as many SMs of one GPC.
            (spec.sm.cluster_blocks_max, spec.sm.cluster_blocks_max)
        }
        _ => return Err(CuResult::INVALID_VALUE),
    };
    if wanted_sms > input.set.len() * sms_per_tpc {
        return Err(CuResult::INVALID_VALUE);
    }
    if input.split != 0 {
        return Err(CuResult::INVALID_RESOURCE_CONFIGURATION);
    }
    let size = wanted_sms.max(least_sms).next_multiple_of(together_sms).div_ceil(sms_per_tpc);
    let mut parts = if flags == CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING {
        vec![TpcSet::EMPTY; (input.set.len() / size) as usize]
    } else {
        units(&spec.topology, &input.set, together_sms.div_ceil(sms_per_tpc))
    };
    parts.truncate((input.set.len() / size).min(groups_max.unwrap_or(u32::MAX)) as usize);
    if parts.is_empty() {
        return Err(CuResult::INVALID_RESOURCE_CONFIGURATION);
    }
    let mut left = parts.iter().fold(input.set, |left, part| left - *part);
    for part in &mut parts {
        let more = left.lowest(size - part.len());
        *part |= more;
        left -= more;
    }
    let split = NEXT_SPLIT.fetch_add(1, Ordering::Relaxed);
    let device = input.device;
    let groups = parts.into_iter().map(|set| SmSet { device, set, split, least_sms, together_sms }).collect();
    let rest = SmSet { device, set: left, split, least_sms: FINEST_SMS, together_sms: FINEST_SMS };
    Ok(Split { groups, rest })
}

/// Unites resources for one context.
///
/// # Errors
/// `INVALID_VALUE` for none; `INVALID_RESOURCE_CONFIGURATION` for several that are not of one
/// split, or one twice.
pub fn unite(parts: &[SmSet]) -> Result<SmSet, CuResult> {
    let first = *parts.first().ok_or(CuResult::INVALID_VALUE)?;
    let mut all = first;
    for part in &parts[1..] {
        if part.split == 0 || part.split != first.split || !part.set.is_disjoint(&all.set) {
            return Err(CuResult::INVALID_RESOURCE_CONFIGURATION);
        }
        all.set |= part.set;
        all.least_sms = all.least_sms.min(part.least_sms);
        all.together_sms = all.together_sms.min(part.together_sms);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_sim::catalogue;

    fn of(device: &str, wanted: u32, flags: u32) -> (usize, u32, u32) {
        let spec = catalogue::device(device).unwrap();
        let whole = SmSet::whole(&spec, 0, spec.topology.all());
        let split = split(&spec, &whole, wanted, flags, None).unwrap();
        let per_tpc = spec.topology.sms_per_tpc();
        let sizes: Vec<u32> = split.groups.iter().map(|group| group.set.len() * per_tpc).collect();
        assert!(sizes.iter().all(|size| *size == sizes[0]), "{sizes:?}");
        let all = split.groups.iter().chain([&split.rest]).fold(TpcSet::EMPTY, |all, part| {
            assert!(part.set.is_disjoint(&all));
            all | part.set
        });
        assert_eq!(all, spec.topology.all());
        for group in &split.groups {
            let most = spec.topology.gpcs().iter().map(|gpc| (gpc.tpcs & group.set).len()).max().unwrap();
            assert!(flags != 0 || most * per_tpc >= group.together_sms, "{}", group.set);
        }
        (sizes.len(), sizes[0], split.rest.set.len() * per_tpc)
    }

    #[test]
    fn an_h200_is_split_as_measured() {
        for (wanted, flags, groups) in [
            (8, 0, (15, 8, 12)),
            (0, 0, (15, 8, 12)),
            (16, 0, (8, 16, 4)),
            (34, 0, (3, 40, 12)),
            (2, 1, (66, 2, 0)),
            (16, 1, (8, 16, 4)),
            (34, 1, (3, 34, 30)),
        ] {
            assert_eq!(of("h200", wanted, flags), groups, "{wanted} {flags}");
        }
        // Beyond its unit of one GPC a group has TPCs of others, even if that GPC has some left.
        let spec = catalogue::device("h200").unwrap();
        let whole = SmSet::whole(&spec, 0, spec.topology.all());
        let first = split(&spec, &whole, 16, 0, None).unwrap().groups[0].set;
        let unit: TpcSet = "0,8,16,24".parse().unwrap();
        let gpcs = spec.topology.gpcs();
        assert!(unit.is_subset(&first) && gpcs.iter().any(|gpc| gpc.tpcs & first == unit), "{first}");
        let (groups, sms, _) = of("h200", 8, 2);
        assert_eq!((groups, sms), (7, 16));
    }

    #[test]
    fn other_generations_have_their_own_steps() {
        assert_eq!(of("a100", 1, 0), (27, 4, 0));
        assert_eq!(of("a100", 5, 0), (18, 6, 0));
        assert_eq!(of("gtx1060-3gb", 1, 0), (4, 2, 1));
    }

    #[test]
    fn resources_keep_their_content_and_cannot_be_forged() {
        let spec = catalogue::device("h200").unwrap();
        let whole = SmSet::whole(&spec, 0, spec.topology.all());
        let resource = whole.resource(2);
        assert_eq!((resource.sm.sm_count, resource.sm.min_sm_partition_size), (132, 8));
        assert_eq!(SmSet::of(&resource), Ok(whole));
        let mut other = resource;
        other.kind = CU_DEV_RESOURCE_TYPE_INVALID;
        assert_eq!(SmSet::of(&other), Err(CuResult::INVALID_RESOURCE_TYPE));
        other = resource;
        other.internal_padding[0] ^= 1;
        assert_eq!(SmSet::of(&other), Err(CuResult::INVALID_VALUE));
        let one = split(&spec, &whole, 8, 0, Some(4)).unwrap();
        assert_eq!((one.groups.len(), one.rest.set.len()), (4, 50));
        let again = split(&spec, &one.groups[0], 8, 0, None);
        assert_eq!(again, Err(CuResult::INVALID_RESOURCE_CONFIGURATION));
        assert_eq!(split(&spec, &whole, 133, 0, None), Err(CuResult::INVALID_VALUE));
        assert_eq!(split(&spec, &whole, 8, 4, None), Err(CuResult::INVALID_VALUE));
        let two = split(&spec, &whole, 8, 0, None).unwrap();
        assert_eq!(unite(&[one.groups[0], one.rest]).unwrap().set.len(), 54);
        let mixed = [one.groups[0], two.groups[1]];
        assert_eq!(unite(&mixed), Err(CuResult::INVALID_RESOURCE_CONFIGURATION));
        assert_eq!(unite(&[whole, whole]), Err(CuResult::INVALID_RESOURCE_CONFIGURATION));
        let twice = [one.groups[0], one.groups[0]];
        assert_eq!(unite(&twice), Err(CuResult::INVALID_RESOURCE_CONFIGURATION));
        assert_eq!(unite(&[]), Err(CuResult::INVALID_VALUE));
    }
}
