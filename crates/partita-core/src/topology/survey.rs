//! [`Survey`]: the places of a device's units by independent sources, and whether they agree.
//!
//! No source knows everything. The driver's control interface names the GPC, CPC and TPC of every
//! SM, but the numbers of a launch mask do not follow from them. One-bit probing sees which SMs
//! each bit of a mask disables, but not which TPCs are neighbours. Clusters of blocks run only
//! where their SMs share a GPC. The files of `nvdebug` are registers of the chip. Each source is
//! read alone and stored unchanged ([`Survey`]); a pure comparison ([`Survey::report`]) places
//! every unit and names every difference between two of them.

mod compare;
mod nvdebug;
mod report;
mod rows;
#[cfg(test)]
mod tests;
mod unit;

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

pub use compare::{Counted, Disagreement};
pub use report::{Grouping, Report, SourceState};
pub use rows::{Cell, Row};
pub use unit::{Claim, Unit};

/// Places of a GPC in Hopper's physical numbering (measured on H200).
pub const HOPPER_PLACES_PER_GPC: u16 = 9;
/// The first virtual GPC that is a *singleton*: one TPC of a GPC that lost too many to serve whole
/// (header `ctrl2080gr.h`: «8-23 for singleton TPC holders»).
pub const HOPPER_SINGLETONS: u16 = 8;
/// `virtualGpcId` of an SM that is switched off (header `ctrl2080gr.h`).
pub const VIRTUAL_GPC_DISABLED: u16 = 0xff;

/// A source for the places of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// The kernel driver's control interface.
    Control,
    /// Disabling each bit of a launch mask alone.
    Probe,
    /// Clusters of blocks, which run only inside one GPC.
    Clusters,
    /// The `/proc/gpuN` files of the `nvdebug` kernel module.
    Nvdebug,
}

impl Source {
    /// All of them, in the order in which reports list them.
    pub const ALL: [Self; 4] = [Self::Control, Self::Probe, Self::Clusters, Self::Nvdebug];

    /// Its name in machine-readable output.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Probe => "probe",
            Self::Clusters => "clusters",
            Self::Nvdebug => "nvdebug",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Control => "the driver's control interface",
            Self::Probe => "one-bit probing",
            Self::Clusters => "clusters of blocks",
            Self::Nvdebug => "nvdebug",
        })
    }
}

/// One SM in the list of the control interface. All ids count the units that remain after
/// floorsweeping, except `cpc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SmPlace {
    /// `gpcId`: the GPC of the chip.
    pub gpc: u16,
    /// `localTpcId`: the TPC inside its GPC.
    pub tpc_in_gpc: u16,
    /// `localSmId`: the SM inside its TPC.
    pub sm_in_tpc: u16,
    /// `globalTpcId`: the TPC of the device.
    pub tpc: u16,
    /// `virtualGpcId`: the GPC as work is scheduled onto it; 8 and above are Hopper's singletons.
    pub virtual_gpc: u16,
    /// `migratableTpcId`: the TPC inside its virtual GPC.
    pub migratable_tpc: u16,
    /// `ugpuId`: the half of the chip; drivers from 575 on.
    pub ugpu: Option<u16>,
    /// `physicalCpcId`: the CPC inside its GPC; drivers from 580 on.
    pub cpc: Option<u16>,
    /// `virtualTpcId`; drivers from 580 on.
    pub virtual_tpc: Option<u16>,
}

/// The answers of the control interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlClaims {
    /// Every SM in the order of `%smid`.
    pub sms: Vec<SmPlace>,
    /// `GR_GET_NUM_TPCS_FOR_GPC`: GPCs of the chip and how many TPCs each has; empty if the driver
    /// does not support the query.
    pub tpc_counts: Vec<(u16, u32)>,
}

/// The result of one-bit probing: TPC `i` has the SMs `i * sms_per_tpc` and following.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeClaims {
    /// SMs of a TPC.
    pub sms_per_tpc: u32,
    /// The bit of each TPC in a launch mask, in logical order.
    pub bits: Vec<u16>,
}

/// The chip's registers as `nvdebug` shows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvdebugClaims {
    /// `num_gpcs`: the GPCs of the whole chip, including disabled ones.
    pub chip_gpcs: u32,
    /// `num_tpc_per_gpc`: the TPCs of a whole GPC.
    pub chip_tpcs_per_gpc: u32,
    /// Each enabled GPC of the chip and the mask of its *disabled* TPCs.
    pub tpc_disable_masks: Vec<(u16, u64)>,
    /// `CWD_GPC_TPC_ID`: the GPC of each TPC of the device and its number there; empty if the chip
    /// has no such register.
    pub places: Vec<(u16, u16)>,
}

/// All knowledge of the places of one device's units, each source separately. A silent source gives
/// its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// Compute capability, major × 10 + minor.
    pub compute_capability: u32,
    /// The version byte of its launch descriptors.
    pub qmd_version: u8,
    /// Whether the driver launches clusters of blocks on it.
    pub runs_clusters: bool,
    /// One-bit probing. It is always present, because without it there is no mask.
    pub probe: ProbeClaims,
    /// The control interface.
    pub control: Result<ControlClaims, String>,
    /// For each TPC the number of its group, if clusters ran in each group.
    pub clusters: Result<Vec<u8>, String>,
    /// `nvdebug`.
    pub nvdebug: Result<NvdebugClaims, String>,
}

impl Survey {
    /// Whether an SM belongs to a singleton: a TPC that remains of a GPC and is scheduled as its
    /// own GPC, as on Hopper.
    pub(crate) fn is_singleton(&self, place: &SmPlace) -> bool {
        self.compute_capability == 90 && place.virtual_gpc >= HOPPER_SINGLETONS
    }

    /// The GPC by which work is scheduled onto an SM, as the control interface numbers it.
    pub(crate) fn scheduled_gpc(&self, place: &SmPlace) -> u16 {
        if self.compute_capability >= 90 { place.virtual_gpc } else { place.gpc }
    }

    /// The bit of a launch mask that follows from the control interface's numbers, if a rule is
    /// known.
    ///
    /// Up to descriptors of version 3.0 it is the TPC's number (source: libsmctrl). In those of
    /// version 4.0, Hopper's, it is 9 × virtual GPC + migratable TPC, and 72 + n for the n-th
    /// singleton (measured on H200, every TPC). Later ones have other, undocumented
    /// numbers.
    #[must_use]
    pub fn predicted_bit(&self, place: &SmPlace) -> Option<u16> {
        let virtual_gpc = place.virtual_gpc;
        match (self.qmd_version, self.compute_capability) {
            (..=0x30, _) => Some(place.tpc),
            (0x40, 90) if virtual_gpc < HOPPER_SINGLETONS => {
                Some((HOPPER_PLACES_PER_GPC * virtual_gpc).saturating_add(place.migratable_tpc))
            }
            (0x40, 90) => Some(
                (HOPPER_PLACES_PER_GPC * HOPPER_SINGLETONS).saturating_add(virtual_gpc - HOPPER_SINGLETONS),
            ),
            _ => None,
        }
    }

    /// The control interface's entry of the first SM of a TPC.
    pub(crate) fn place_of(&self, tpc: usize) -> Option<&SmPlace> {
        let control = self.control.as_ref().ok()?;
        control.sms.get(tpc * self.probe.sms_per_tpc as usize)
    }

    /// Compares the sources and places every unit.
    #[must_use]
    pub fn report(&self) -> Report {
        report::report(self)
    }
}
