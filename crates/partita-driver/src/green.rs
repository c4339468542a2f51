//! Green contexts: the driver's own way to restrict launches to some SMs.
//!
//! The driver splits a device's SMs into groups of equal size; a context of one or more groups of
//! *one* split runs its launches on those SMs only. The sizes of groups are found by trying splits.
//! The driver does not report the TPCs of a group, so censuses identify them: groups are numbered
//! from 1, and one context for each binary digit unites the groups whose number has that digit; the
//! contexts that a TPC runs in are then the digits of its group. 66 groups take seven contexts.
//!
//! Measured on an H200 (driver 580.159.04): groups of 8 SMs, each within one GPC, and a rest of 12;
//! of 2 SMs without co-scheduling. The driver creates no green contexts (CUDA_ERROR_NOT_SUPPORTED)
//! once the process has subscribed to the launch callback.

mod context;
mod pool;

use alloc::format;
use alloc::vec::Vec;
use core::ffi::c_uint;

use partita_abi::CuResult;
use partita_abi::types::{
    CU_DEV_RESOURCE_TYPE_SM, CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING, CU_GREEN_CTX_DEFAULT_STREAM,
    CUdevResource, CUdevSmResource,
};
use partita_core::TpcSet;

pub use context::GreenContext;
pub use pool::GreenPool;

use crate::error::Error;
use crate::gpu::Gpu;

/// The mechanism's name in errors and tables.
pub const NAME: &str = "green";
/// Whether a group is made of SMs that clusters need together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Coscheduling {
    /// Groups are as coarse as clusters need them.
    Kept,
    /// Groups are as fine as possible; large clusters may not run.
    Ignored,
}

impl Coscheduling {
    fn flags(self) -> c_uint {
        match self {
            Self::Kept => 0,
            Self::Ignored => CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING,
        }
    }
}

/// The sizes of a split, in SMs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes {
    /// Every size of a group, ascending, after the driver's rounding.
    pub offered_sms: Vec<u32>,
}

impl Sizes {
    /// The smallest size of a group.
    pub fn least_sms(&self) -> u32 {
        self.offered_sms.first().copied().unwrap_or(0)
    }

    /// The smallest distance between two sizes.
    pub fn step_sms(&self) -> u32 {
        self.offered_sms.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap_or(self.least_sms())
    }
}

/// One split of the whole device into the smallest groups, and the TPCs of each.
struct Split {
    coscheduling: Coscheduling,
    /// The groups and, last, the rest if there is one.
    resources: Vec<CUdevResource>,
    /// The TPCs of each group.
    sets: Vec<TpcSet>,
}

/// The green contexts of one GPU.
pub struct Green<'g, 'a> {
    gpu: &'g Gpu<'a>,
    whole: CUdevResource,
    sms_per_tpc: u32,
    splits: Vec<Split>,
}

impl<'g, 'a> Green<'g, 'a> {
    /// Splits the device and identifies its groups.
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] on drivers before CUDA 12.4; [`Error::Refused`] under MPS, which
    /// renumbers the SMs that blocks see so that no group can be identified, and if a launch
    /// callback is subscribed; [`Error::Disproved`] if a context's blocks ran outside its groups.
    pub fn survey(gpu: &'g Gpu<'a>, sms_per_tpc: u32) -> Result<Self, Error> {
        if gpu.facts().under_mps {
            return Err(Error::Refused(
                "green contexts are not available under MPS: the SM numbers that blocks see are not \
                 the device's, so the SMs of a group cannot be proved; use masks"
                    .into(),
            ));
        }
        let mut whole = empty();
        // SAFETY: a valid pointer and device.
        unsafe {
            gpu.cuda().device_get_dev_resource(gpu.device(), &mut whole, CU_DEV_RESOURCE_TYPE_SM)?;
        }
        let mut green = Self { gpu, whole, sms_per_tpc: sms_per_tpc.max(1), splits: Vec::new() };
        for coscheduling in [Coscheduling::Kept, Coscheduling::Ignored] {
            let split = green.split(coscheduling)?;
            green.splits.push(split);
        }
        Ok(green)
    }

    /// The sizes of groups that a split offers, found by trying each.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn sizes(&self, coscheduling: Coscheduling) -> Result<Sizes, Error> {
        let mut offered_sms = Vec::new();
        let mut wanted_sms = 1;
        while wanted_sms <= self.whole.sm.sm_count {
            let mut count = 1;
            let (mut group, mut rest) = (empty(), empty());
            // SAFETY: room for the one group requested, and for the rest.
            let split = unsafe {
                self.gpu.cuda().sm_resource_split_by_count(
                    &mut group,
                    &mut count,
                    &self.whole,
                    &mut rest,
                    coscheduling.flags(),
                    wanted_sms,
                )
            };
            let got_sms = group.sm.sm_count;
            match split {
                Ok(()) if count == 1 && got_sms >= wanted_sms => {}
                // The rounded size exceeds the device.
                Ok(()) | Err(Error::Call { .. }) if !offered_sms.is_empty() => break,
                Ok(()) => {
                    return Err(Error::Disproved(format!(
                        "a group of {wanted_sms} SMs was requested, but {count} groups of {got_sms} \
                         came"
                    )));
                }
                Err(error) => return Err(error),
            }
            offered_sms.push(got_sms);
            wanted_sms = got_sms + 1;
        }
        Ok(Sizes { offered_sms })
    }

    /// The TPC sets of the smallest groups of a split; the last may be the rest, of another size.
    pub fn groups(&self, coscheduling: Coscheduling) -> &[TpcSet] {
        self.splits.iter().find(|split| split.coscheduling == coscheduling).map_or(&[], |split| &split.sets)
    }

    /// The split that offers exactly `set`, and which of its groups form it. The coarse split is
    /// preferred, because it supports clusters.
    fn parts(&self, set: &TpcSet) -> Result<(&Split, Vec<usize>), Error> {
        let (mut inside, mut around) = (TpcSet::EMPTY, None::<TpcSet>);
        for split in &self.splits {
            let (parts, below, above) = compose(&split.sets, set);
            if let Some(parts) = parts {
                return Ok((split, parts));
            }
            if below.len() > inside.len() {
                inside = below;
            }
            if set.is_subset(&above) && around.is_none_or(|around| above.len() < around.len()) {
                around = Some(above);
            }
        }
        let all =
            self.splits.iter().flat_map(|split| &split.sets).fold(TpcSet::EMPTY, |all, part| all | *part);
        Err(Error::NotOffered { mechanism: NAME, wanted: *set, inside, around: around.unwrap_or(all) })
    }

    /// Creates a context whose launches run on exactly `set`, and proves it by a census.
    ///
    /// # Errors
    /// [`Error::NotOffered`] with the nearest sets; [`Error::Refused`] once a launch callback is
    /// subscribed; [`Error::Disproved`]; those of the driver.
    pub fn context(&self, set: &TpcSet) -> Result<GreenContext<'g, 'a>, Error> {
        let (split, parts) = self.parts(set)?;
        let context = self.unite(split.coscheduling, &split.resources, &parts)?;
        let seen = context.census(self.sms_per_tpc)?;
        if seen != *set {
            return Err(Error::Disproved(format!(
                "a green context for TPCs {set} ran blocks on TPCs {seen}"
            )));
        }
        Ok(context)
    }

    /// One split into the smallest groups.
    fn split(&self, coscheduling: Coscheduling) -> Result<Split, Error> {
        let least_sms = self.sizes(coscheduling)?.least_sms();
        let cuda = self.gpu.cuda();
        let mut count = 0;
        let mut rest = empty();
        let mut resources;
        // SAFETY: the first call only asks for the number of groups; the second has room for them
        // and for the rest.
        unsafe {
            let none = core::ptr::null_mut();
            let flags = coscheduling.flags();
            cuda.sm_resource_split_by_count(none, &mut count, &self.whole, none, flags, least_sms)?;
            resources = alloc::vec![empty(); count as usize];
            let groups = resources.as_mut_ptr();
            cuda.sm_resource_split_by_count(groups, &mut count, &self.whole, &mut rest, flags, least_sms)?;
        }
        resources.truncate(count as usize);
        if rest.kind == CU_DEV_RESOURCE_TYPE_SM && rest.sm.sm_count > 0 {
            resources.push(rest);
        }
        let sets = self.identify_groups(coscheduling, &resources)?;
        Ok(Split { coscheduling, resources, sets })
    }

    /// The TPCs of each group, by one context for each binary digit of the groups' numbers.
    fn identify_groups(
        &self,
        coscheduling: Coscheduling,
        resources: &[CUdevResource],
    ) -> Result<Vec<TpcSet>, Error> {
        let digits = usize::BITS - resources.len().leading_zeros();
        let mut seen = Vec::new();
        for digit in 0..digits {
            let parts: Vec<usize> =
                (0..resources.len()).filter(|group| (group + 1) >> digit & 1 == 1).collect();
            seen.push(self.unite(coscheduling, resources, &parts)?.census(self.sms_per_tpc)?);
        }
        let sets = spell(&seen, resources.len());
        for (group, (set, resource)) in sets.iter().zip(resources).enumerate() {
            if set.len() * self.sms_per_tpc != resource.sm.sm_count {
                return Err(Error::Disproved(format!(
                    "group {group} of a split has {} SMs, and blocks ran on TPCs {set}",
                    resource.sm.sm_count
                )));
            }
        }
        Ok(sets)
    }

    /// A context of some of a split's groups.
    fn unite(
        &self,
        coscheduling: Coscheduling,
        resources: &[CUdevResource],
        parts: &[usize],
    ) -> Result<GreenContext<'g, 'a>, Error> {
        let cuda = self.gpu.cuda();
        let mut chosen: Vec<CUdevResource> = parts.iter().map(|&part| resources[part]).collect();
        let sms = chosen.iter().map(|resource| resource.sm.sm_count).sum();
        let count = c_uint::try_from(chosen.len()).unwrap_or(c_uint::MAX);
        let (mut descriptor, mut handle) = (core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: the resources come from one split, as the call requires; valid pointers.
        unsafe { cuda.resource_generate_desc(&mut descriptor, chosen.as_mut_ptr(), count)? };
        // SAFETY: the descriptor just made. The flag is required.
        match unsafe {
            cuda.green_ctx_create(&mut handle, descriptor, self.gpu.device(), CU_GREEN_CTX_DEFAULT_STREAM)
        } {
            Err(Error::Call { code: CuResult::NOT_SUPPORTED, .. }) => Err(Error::Refused(
                "the driver creates no green contexts in a process that has subscribed to the launch \
                 callback, as `partita run` and launch masks do: create the green contexts \
                 first, or use masks"
                    .into(),
            )),
            Err(error) => Err(error),
            // SAFETY: just created, and no other code destroys it.
            Ok(()) => unsafe { GreenContext::adopt(self.gpu, handle, coscheduling, sms) },
        }
    }
}

/// Which of `groups` form `set` exactly, and the nearest sets that groups can form: inside it and
/// around it.
fn compose(groups: &[TpcSet], set: &TpcSet) -> (Option<Vec<usize>>, TpcSet, TpcSet) {
    let (mut inside, mut around, mut parts) = (TpcSet::EMPTY, TpcSet::EMPTY, Vec::new());
    for (number, group) in groups.iter().enumerate() {
        if group.is_subset(set) && !group.is_empty() {
            inside |= *group;
            parts.push(number);
        }
        if !group.is_disjoint(set) {
            around |= *group;
        }
    }
    ((inside == *set && !set.is_empty()).then_some(parts), inside, around)
}

/// The groups' sets: TPC `t` belongs to the group whose number, counted from 1, has the binary
/// digits in whose contexts `t` was seen.
fn spell(seen: &[TpcSet], groups: usize) -> Vec<TpcSet> {
    let mut sets = alloc::vec![TpcSet::EMPTY; groups];
    for tpc in seen.iter().fold(TpcSet::EMPTY, |all, one| all | *one).iter() {
        let number: usize =
            seen.iter().enumerate().map(|(digit, one)| usize::from(one.contains(tpc)) << digit).sum();
        // A number without a group is a contradiction, which the groups' sizes then show.
        if let Some(set) = number.checked_sub(1).and_then(|group| sets.get_mut(group)) {
            set.insert(tpc);
        }
    }
    sets
}

fn empty() -> CUdevResource {
    CUdevResource { kind: 0, internal_padding: [0; 92], sm: CUdevSmResource::default(), oversize: [0; 36] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> TpcSet {
        text.parse().unwrap()
    }

    #[test]
    fn digits_spell_every_group() {
        for count in [1usize, 2, 3, 16, 17, 66] {
            // Groups of two TPCs that are far apart, as with round-robin numbering.
            let groups: Vec<TpcSet> =
                (0..count).map(|group| [group as u8, (group + count) as u8].into_iter().collect()).collect();
            let digits = usize::BITS - count.leading_zeros();
            let seen: Vec<TpcSet> = (0..digits)
                .map(|digit| {
                    let has = |(group, _): &(usize, &TpcSet)| (group + 1) >> digit & 1 == 1;
                    groups.iter().enumerate().filter(has).fold(TpcSet::EMPTY, |all, (_, one)| all | *one)
                })
                .collect();
            assert_eq!(spell(&seen, count), groups, "{count} groups");
        }
    }

    #[test]
    fn a_tpc_of_no_group_is_in_none() {
        assert_eq!(spell(&[set("0,1"), set("1,2")], 2), [set("0"), set("2")]);
    }

    #[test]
    fn sets_are_met_exactly_or_the_nearest_are_named() {
        let groups = [set("0-3"), set("4-7"), set("8-11"), set("12-13")];
        assert_eq!(compose(&groups, &set("0-3,12-13")).0, Some(alloc::vec![0, 3]));
        let (parts, inside, around) = compose(&groups, &set("2-8"));
        assert_eq!((parts, inside, around), (None, set("4-7"), set("0-11")));
        assert_eq!(compose(&groups, &TpcSet::EMPTY).0, None);
        assert_eq!(compose(&groups, &set("0")).1, TpcSet::EMPTY);
    }

    #[test]
    fn steps_are_those_of_the_sizes() {
        let sizes = Sizes { offered_sms: (1..=16).map(|n| 8 * n).collect() };
        assert_eq!((sizes.least_sms(), sizes.step_sms()), (8, 8));
        assert_eq!(Sizes { offered_sms: alloc::vec![4] }.step_sms(), 4);
    }
}
