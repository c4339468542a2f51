//! Differences between two sources.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::fmt;

use super::{NvdebugClaims, Source, Survey, VIRTUAL_GPC_DISABLED};
use crate::TpcSet;

/// The quantity counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Counted {
    /// SMs of the device.
    Sms,
    /// TPCs of the device.
    Tpcs,
    /// GPCs of the chip that have a TPC.
    Gpcs,
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sms => "SMs",
            Self::Tpcs => "TPCs",
            Self::Gpcs => "GPCs",
        })
    }
}

/// Two sources that cannot both be right. Its text names both and what each says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Disagreement {
    /// Their counts differ.
    Count {
        /// The quantity.
        what: Counted,
        /// A source and its count.
        one: (Source, u32),
        /// Another and its.
        other: (Source, u32),
    },
    /// The control interface puts the SMs that probing found in one TPC in several, or puts further
    /// SMs in it.
    Together {
        /// The logical TPC.
        tpc: u8,
        /// Its first SM.
        first_sm: u32,
        /// Its last SM.
        last_sm: u32,
    },
    /// The control interface lists an SM as switched off, but blocks ran on it.
    SwitchedOff {
        /// The logical TPC.
        tpc: u8,
    },
    /// The bit that follows from the control interface's numbers does not disable the TPC.
    Bit {
        /// The logical TPC.
        tpc: u8,
        /// The bit that the control interface's numbers predict.
        control: u16,
        /// The bit that probing found.
        probe: u16,
    },
    /// A TPC has other neighbours in its GPC.
    Neighbours {
        /// The logical TPC.
        tpc: u8,
        /// A source and the TPCs of the GPC that it places it in.
        one: (Source, TpcSet),
        /// Another and its.
        other: (Source, TpcSet),
    },
    /// A cluster ran on a TPC together with others that the control interface puts in other GPCs.
    Cluster {
        /// The logical TPC.
        tpc: u8,
        /// The TPCs with which it ran a cluster.
        together: TpcSet,
        /// The TPCs of its GPC by the control interface.
        control: TpcSet,
    },
    /// The sizes of the GPCs, each list in ascending order.
    GpcSizes {
        /// A source and its sizes, in TPCs.
        one: (Source, Vec<u32>),
        /// Another and its.
        other: (Source, Vec<u32>),
    },
    /// The control interface's count of TPCs in a GPC differs from its list of SMs.
    GpcSize {
        /// The GPC, by the control interface's number.
        gpc: u16,
        /// Its TPCs in the list of SMs.
        listed: u32,
        /// Its TPCs by count.
        counted: u32,
    },
}

impl Disagreement {
    /// The TPC of the difference; `None` for one of the whole device.
    #[must_use]
    pub fn tpc(&self) -> Option<u8> {
        match self {
            Self::Together { tpc, .. }
            | Self::SwitchedOff { tpc }
            | Self::Bit { tpc, .. }
            | Self::Neighbours { tpc, .. }
            | Self::Cluster { tpc, .. } => Some(*tpc),
            Self::Count { .. } | Self::GpcSizes { .. } | Self::GpcSize { .. } => None,
        }
    }

    /// Whether it casts doubt on `source`.
    #[must_use]
    pub fn concerns(&self, source: Source) -> bool {
        match self {
            Self::Count { one, other, .. } => one.0 == source || other.0 == source,
            Self::Neighbours { one, other, .. } => one.0 == source || other.0 == source,
            Self::GpcSizes { one, other } => one.0 == source || other.0 == source,
            Self::Together { .. } | Self::SwitchedOff { .. } | Self::Bit { .. } => {
                matches!(source, Source::Control | Source::Probe)
            }
            Self::Cluster { .. } => matches!(source, Source::Control | Source::Clusters),
            Self::GpcSize { .. } => source == Source::Control,
        }
    }
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count { what, one, other } => {
                write!(f, "{} counts {} {what}, {} counts {}", one.0, one.1, other.0, other.1)
            }
            Self::Together { tpc, first_sm, last_sm } => write!(
                f,
                "TPC {tpc}: {} finds the SMs {first_sm}-{last_sm} in one TPC, {} does not",
                Source::Probe,
                Source::Control
            ),
            Self::SwitchedOff { tpc } => {
                write!(f, "TPC {tpc}: {} lists it as switched off, but blocks ran there", Source::Control)
            }
            Self::Bit { tpc, control, probe } => write!(
                f,
                "TPC {tpc}: its bit is {control} by the numbers of {}, and {probe} by {}",
                Source::Control,
                Source::Probe
            ),
            Self::Neighbours { tpc, one, other } => write!(
                f,
                "TPC {tpc}: {} has the TPCs {} in its GPC, {} has {}",
                one.0, one.1, other.0, other.1
            ),
            Self::Cluster { tpc, together, control } => write!(
                f,
                "TPC {tpc}: a cluster ran on the TPCs {together}, but {} has only {control} in its GPC",
                Source::Control
            ),
            Self::GpcSizes { one, other } => {
                write!(f, "{} has GPCs of {:?} TPCs, {} of {:?}", one.0, one.1, other.0, other.1)
            }
            Self::GpcSize { gpc, listed, counted } => write!(
                f,
                "{} lists {listed} TPCs in the chip's GPC {gpc}, and counts {counted}",
                Source::Control
            ),
        }
    }
}

/// All differences between two sources of a survey, in the order of units.
pub(super) fn disagreements(survey: &Survey) -> Vec<Disagreement> {
    let mut found = Vec::new();
    counts(survey, &mut found);
    tpcs(survey, &mut found);
    gpcs(survey, &mut found);
    found
}

fn counts(survey: &Survey, found: &mut Vec<Disagreement>) {
    let tpcs = survey.probe.bits.len() as u32;
    let mut check = |what, probed, source, count| {
        if probed != count {
            found.push(Disagreement::Count { what, one: (Source::Probe, probed), other: (source, count) });
        }
    };
    if let Ok(control) = &survey.control {
        check(Counted::Sms, tpcs * survey.probe.sms_per_tpc, Source::Control, control.sms.len() as u32);
        let distinct: BTreeSet<u16> = control.sms.iter().map(|sm| sm.tpc).collect();
        check(Counted::Tpcs, tpcs, Source::Control, distinct.len() as u32);
    }
    if let Ok(nvdebug) = &survey.nvdebug {
        check(Counted::Tpcs, tpcs, Source::Nvdebug, nvdebug_sizes(nvdebug).iter().sum());
    }
}

/// SMs and bits, TPC by TPC, which both the control interface and probing know.
fn tpcs(survey: &Survey, found: &mut Vec<Disagreement>) {
    let Ok(control) = &survey.control else { return };
    let sms_per_tpc = survey.probe.sms_per_tpc as usize;
    let mut sms_of: BTreeMap<u16, usize> = BTreeMap::new();
    for sm in &control.sms {
        *sms_of.entry(sm.tpc).or_default() += 1;
    }
    for (tpc, &probe) in (0u8..=u8::MAX).zip(&survey.probe.bits) {
        let first = usize::from(tpc) * sms_per_tpc;
        // The counts show missing SMs.
        let Some(sms) = control.sms.get(first..first + sms_per_tpc) else { continue };
        let place = sms[0];
        let identity =
            |sm: &super::SmPlace| (sm.gpc, sm.tpc_in_gpc, sm.tpc, sm.virtual_gpc, sm.migratable_tpc);
        if sms.iter().any(|sm| identity(sm) != identity(&place))
            || sms_of.get(&place.tpc) != Some(&sms_per_tpc)
        {
            let (first_sm, last_sm) = (first as u32, (first + sms_per_tpc - 1) as u32);
            found.push(Disagreement::Together { tpc, first_sm, last_sm });
        }
        if place.virtual_gpc == VIRTUAL_GPC_DISABLED {
            found.push(Disagreement::SwitchedOff { tpc });
        } else if let Some(control) = survey.predicted_bit(&place)
            && control != probe
        {
            found.push(Disagreement::Bit { tpc, control, probe });
        }
    }
}

/// GPCs. Sources number them differently, so the comparison is of sets of TPCs, not of numbers.
fn gpcs(survey: &Survey, found: &mut Vec<Disagreement>) {
    let tpcs = survey.probe.bits.len();
    let chip = control_gpcs(survey, |place| place.gpc);
    if let (Some(chip), Ok(nvdebug)) = (&chip, &survey.nvdebug) {
        if !nvdebug.places.is_empty() {
            // Its registers are numbered by TPC of the device, as the control interface counts
            // them.
            let place = |tpc: usize| {
                let global = survey.place_of(tpc).map(|place| usize::from(place.tpc));
                global.and_then(|global| nvdebug.places.get(global))
            };
            let theirs = partition((0..tpcs).map(|tpc| place(tpc).map(|&(gpc, _)| gpc)));
            neighbours(found, (Source::Control, chip), (Source::Nvdebug, &theirs));
        }
        let (ours, theirs) = (sizes(chip), nvdebug_sizes(nvdebug));
        if ours.len() != theirs.len() {
            let (ours, theirs) = (ours.len() as u32, theirs.len() as u32);
            found.push(Disagreement::Count {
                what: Counted::Gpcs,
                one: (Source::Control, ours),
                other: (Source::Nvdebug, theirs),
            });
        } else if ours != theirs {
            found.push(Disagreement::GpcSizes {
                one: (Source::Control, ours),
                other: (Source::Nvdebug, theirs),
            });
        }
    }
    if let (Some(scheduled), Ok(groups)) = (scheduled_gpcs(survey), &survey.clusters) {
        // A cluster that ran proves that its TPCs are together; clusters do not prove two groups
        // apart.
        let groups = partition((0..tpcs).map(|tpc| groups.get(tpc).map(|&group| group.into())));
        for tpc in strays(&groups, &scheduled) {
            let (together, control) = (groups[usize::from(tpc)], scheduled[usize::from(tpc)]);
            found.push(Disagreement::Cluster { tpc, together, control });
        }
    }
    own_counts(survey, found);
}

/// Contradictions within the control interface.
fn own_counts(survey: &Survey, found: &mut Vec<Disagreement>) {
    let Ok(control) = &survey.control else { return };
    for &(gpc, counted) in &control.tpc_counts {
        let tpcs = control.sms.iter().filter(|sm| sm.gpc == gpc).map(|sm| sm.tpc);
        let listed = tpcs.collect::<BTreeSet<u16>>().len() as u32;
        if listed != counted {
            found.push(Disagreement::GpcSize { gpc, listed, counted });
        }
    }
}

fn neighbours(found: &mut Vec<Disagreement>, one: (Source, &[TpcSet]), other: (Source, &[TpcSet])) {
    let strays = strays(one.1, other.1).union(&strays(other.1, one.1)).copied().collect::<BTreeSet<u8>>();
    for tpc in strays {
        let set = |side: (Source, &[TpcSet])| (side.0, side.1[usize::from(tpc)]);
        found.push(Disagreement::Neighbours { tpc, one: set(one), other: set(other) });
    }
}

/// The TPCs that are not in the same set of `other` as most of their set of `one`. Both give for
/// each TPC its set. The result names the TPC that is in the wrong set, not those of the set that
/// it left.
fn strays(one: &[TpcSet], other: &[TpcSet]) -> BTreeSet<u8> {
    let most = |set: &TpcSet| {
        let theirs = set.iter().filter_map(|tpc| other.get(usize::from(tpc)));
        theirs.rev().max_by_key(|theirs| (**theirs & *set).len())
    };
    let apart = |(_, (set, theirs)): &(u8, (&TpcSet, &TpcSet))| most(set) != Some(*theirs);
    (0u8..=u8::MAX).zip(one.iter().zip(other)).filter(apart).map(|(tpc, _)| tpc).collect()
}

/// For each TPC the set of those that the control interface puts in the same GPC of the chip, or
/// that have the same `key`.
fn control_gpcs(survey: &Survey, key: impl Fn(&super::SmPlace) -> u16) -> Option<Vec<TpcSet>> {
    survey.control.as_ref().ok()?;
    Some(partition((0..survey.probe.bits.len()).map(|tpc| survey.place_of(tpc).map(&key))))
}

/// For each TPC the set of those that it can share a cluster with, by the control interface.
pub(super) fn scheduled_gpcs(survey: &Survey) -> Option<Vec<TpcSet>> {
    control_gpcs(survey, |place| survey.scheduled_gpc(place))
}

/// For each TPC the set of those with the same key. A TPC without a key is alone.
fn partition(keys: impl Iterator<Item = Option<u16>>) -> Vec<TpcSet> {
    let keys: Vec<Option<u16>> = keys.take(TpcSet::CAPACITY as usize).collect();
    let with = |key: u16| (0u8..=u8::MAX).zip(&keys).filter(move |&(_, k)| *k == Some(key));
    let set = |(tpc, key): (u8, &Option<u16>)| match key {
        Some(key) => with(*key).map(|(tpc, _)| tpc).collect(),
        None => TpcSet::single(tpc),
    };
    (0u8..=u8::MAX).zip(&keys).map(set).collect()
}

/// The sizes of the different sets, ascending.
fn sizes(partition: &[TpcSet]) -> Vec<u32> {
    let distinct: BTreeSet<TpcSet> = partition.iter().copied().collect();
    let mut sizes: Vec<u32> = distinct.iter().map(TpcSet::len).collect();
    sizes.sort_unstable();
    sizes
}

fn nvdebug_sizes(nvdebug: &NvdebugClaims) -> Vec<u32> {
    let whole = nvdebug.chip_tpcs_per_gpc.min(u64::BITS);
    let all = if whole == u64::BITS { u64::MAX } else { (1 << whole) - 1 };
    let enabled = nvdebug.tpc_disable_masks.iter().map(|&(_, disabled)| (!disabled & all).count_ones());
    let mut sizes: Vec<u32> = enabled.filter(|&tpcs| tpcs > 0).collect();
    sizes.sort_unstable();
    sizes
}
