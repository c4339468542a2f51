//! [`Topology`]: the GPC of each TPC, and its bit in the hardware's mask.

pub mod survey;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use core::ops::Range;

use thiserror::Error;

use crate::{GpcSet, TpcSet};

/// The place of one TPC of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tpc {
    /// Its GPC.
    pub gpc: u8,
    /// Its bit in the physical mask of a launch descriptor, below 256.
    pub physical: u16,
}

/// One GPC of a device, with the TPCs that the board has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gpc {
    /// Its number, as in [`Tpc::gpc`].
    pub id: u8,
    /// Its TPCs, logical.
    pub tpcs: TpcSet,
}

/// The TPCs of one board, in logical order.
///
/// Two boards of one model differ: some TPCs of each are fused off, so its GPCs are of different
/// sizes and its physical mask has holes. The *logical* number counts the TPCs that are there, in
/// the order in which `%smid` counts their SMs; on Hopper that order goes round-robin over the
/// GPCs. The *physical* number is the TPC's bit in the mask of a launch descriptor.
///
/// ```
/// use partita_core::{Topology, Tpc, TpcSet};
///
/// // Two GPCs of three TPC places each; the middle one of GPC 1 is fused off.
/// let topology = Topology::new(2, vec![
///     Tpc { gpc: 0, physical: 0 },
///     Tpc { gpc: 1, physical: 3 },
///     Tpc { gpc: 0, physical: 1 },
///     Tpc { gpc: 1, physical: 5 },
///     Tpc { gpc: 0, physical: 2 },
/// ]).unwrap();
///
/// assert_eq!(topology.sm_count(), 10);
/// assert_eq!(topology.gpcs()[1].tpcs.to_string(), "1,3");
/// assert_eq!(topology.sms_of(3), 6..8);
///
/// let enabled: TpcSet = "1,3".parse().unwrap();
/// assert_eq!(topology.physical_set(&enabled).to_string(), "3,5");
/// // A set bit disables, and so do the bits of TPCs that are not there.
/// assert_eq!(topology.disable_words(&enabled)[0], !0b10_1000);
/// // A cluster needs its SMs in one GPC.
/// assert_eq!(topology.max_cluster_sms(&enabled), 4);
/// assert_eq!(topology.max_cluster_sms(&TpcSet::first(2)), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Topology {
    sms_per_tpc: u32,
    tpcs: Vec<Tpc>,
    gpcs: Vec<Gpc>,
}

impl Topology {
    /// The largest number of GPCs of a device. The largest known device has half of it; it bounds
    /// the time for planning.
    pub const GPC_COUNT_MAX: usize = 32;

    /// A device whose logical TPC `i` is `tpcs[i]`, with `sms_per_tpc` SMs in each.
    ///
    /// # Errors
    /// No TPCs or more than 256, a TPC without SMs, a physical bit of 256 or above or used twice,
    /// more than [`Self::GPC_COUNT_MAX`] GPCs.
    pub fn new(sms_per_tpc: u32, tpcs: impl Into<Vec<Tpc>>) -> Result<Self, TopologyError> {
        let tpcs = tpcs.into();
        if tpcs.is_empty() {
            return Err(TopologyError::Empty);
        }
        if sms_per_tpc == 0 || sms_per_tpc > Self::SMS_PER_TPC_MAX {
            return Err(TopologyError::SmsPerTpc(sms_per_tpc));
        }
        if tpcs.len() > TpcSet::CAPACITY as usize {
            return Err(TopologyError::TooManyTpcs(tpcs.len()));
        }
        let mut physical = TpcSet::EMPTY;
        let mut gpcs: Vec<Gpc> = Vec::new();
        for (logical, tpc) in (0u8..=u8::MAX).zip(&tpcs) {
            let bit = u8::try_from(tpc.physical)
                .map_err(|_| TopologyError::PhysicalTooLarge { logical, physical: tpc.physical })?;
            if !physical.insert(bit) {
                let first = tpcs.iter().position(|t| t.physical == tpc.physical).unwrap_or_default() as u8;
                return Err(TopologyError::PhysicalTwice { physical: bit, first, second: logical });
            }
            match gpcs.binary_search_by_key(&tpc.gpc, |gpc| gpc.id) {
                Ok(i) => _ = gpcs[i].tpcs.insert(logical),
                Err(i) => gpcs.insert(i, Gpc { id: tpc.gpc, tpcs: TpcSet::single(logical) }),
            }
        }
        if gpcs.len() > Self::GPC_COUNT_MAX {
            return Err(TopologyError::TooManyGpcs(gpcs.len()));
        }
        Ok(Self { sms_per_tpc, tpcs, gpcs })
    }

    /// How many SMs a TPC can have; known devices have 1 or 2.
    pub const SMS_PER_TPC_MAX: u32 = 16;

    /// How many TPCs the device has, 1 to 256.
    #[must_use]
    pub fn tpc_count(&self) -> u32 {
        self.tpcs.len() as u32
    }

    /// How many SMs the device has.
    #[must_use]
    pub fn sm_count(&self) -> u32 {
        self.tpc_count() * self.sms_per_tpc
    }

    /// How many SMs each TPC has.
    #[must_use]
    pub fn sms_per_tpc(&self) -> u32 {
        self.sms_per_tpc
    }

    /// The TPCs in logical order.
    #[must_use]
    pub fn tpcs(&self) -> &[Tpc] {
        &self.tpcs
    }

    /// All TPCs of the device.
    #[must_use]
    pub fn all(&self) -> TpcSet {
        TpcSet::first(self.tpc_count())
    }

    /// The GPCs, lowest id first.
    #[must_use]
    pub fn gpcs(&self) -> &[Gpc] {
        &self.gpcs
    }

    /// The GPC of that id, if the device has it.
    #[must_use]
    pub fn gpc(&self, id: u8) -> Option<&Gpc> {
        self.gpcs.binary_search_by_key(&id, |gpc| gpc.id).ok().map(|i| &self.gpcs[i])
    }

    /// The ids of the GPCs.
    #[must_use]
    pub fn gpc_ids(&self) -> GpcSet {
        self.gpcs.iter().map(|gpc| gpc.id).collect()
    }

    /// The SMs of one logical TPC, in the numbering of `%smid`.
    #[must_use]
    pub fn sms_of(&self, logical: u8) -> Range<u32> {
        let first = u32::from(logical) * self.sms_per_tpc;
        first..first + self.sms_per_tpc
    }

    /// The physical bits of the logical TPCs of `enabled`. Numbers beyond the device have none.
    #[must_use]
    pub fn physical_set(&self, enabled: &TpcSet) -> TpcSet {
        // `new` has checked that every bit fits.
        enabled
            .iter()
            .filter_map(|tpc| self.tpcs.get(usize::from(tpc)))
            .map(|tpc| tpc.physical as u8)
            .collect()
    }

    /// The mask for a launch descriptor that lets a launch run on the TPCs of `enabled` only.
    ///
    /// A set bit disables. Every bit that is not that of an enabled TPC is set, those of fused-off
    /// TPCs included.
    #[must_use]
    pub fn disable_words(&self, enabled: &TpcSet) -> [u32; 8] {
        (!self.physical_set(enabled)).to_words32()
    }

    /// The logical TPCs of SMs on which blocks ran.
    ///
    /// # Errors
    /// An SM that the device does not have.
    pub fn logical_from_smids(&self, smids: impl IntoIterator<Item = u32>) -> Result<TpcSet, UnknownSm> {
        smids
            .into_iter()
            .map(|smid| {
                let unknown = UnknownSm { smid, sm_count: self.sm_count() };
                if smid < self.sm_count() { Ok((smid / self.sms_per_tpc) as u8) } else { Err(unknown) }
            })
            .collect()
    }

    /// The most SMs that one GPC has enabled: how many SMs a cluster of blocks can use.
    #[must_use]
    pub fn max_cluster_sms(&self, enabled: &TpcSet) -> u32 {
        let most = self.gpcs.iter().map(|gpc| (gpc.tpcs & *enabled).len()).max();
        most.unwrap_or_default() * self.sms_per_tpc
    }
}

/// An invalid description of a device.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// There are no TPCs.
    #[error("a device needs at least one TPC")]
    Empty,
    /// There are more TPCs than masks have bits.
    #[error("{0} TPCs are more than the 256 that a mask can name")]
    TooManyTpcs(usize),
    /// There are more GPCs than [`Topology::GPC_COUNT_MAX`].
    #[error("{0} GPCs are more than the {max} that are supported", max = Topology::GPC_COUNT_MAX)]
    TooManyGpcs(usize),
    /// The number of SMs in a TPC is not between 1 and [`Topology::SMS_PER_TPC_MAX`].
    #[error("{0} SMs in a TPC are not between 1 and {max}", max = Topology::SMS_PER_TPC_MAX)]
    SmsPerTpc(u32),
    /// A physical bit is beyond the widest mask.
    #[error("physical bit {physical} of TPC {logical} is above 255, the highest of a mask")]
    PhysicalTooLarge {
        /// The logical TPC.
        logical: u8,
        /// Its physical bit.
        physical: u16,
    },
    /// Two TPCs have one physical bit.
    #[error("physical bit {physical} stands for TPC {first} and for TPC {second}")]
    PhysicalTwice {
        /// The bit.
        physical: u8,
        /// The first logical TPC that has it.
        first: u8,
        /// The second logical TPC that has it.
        second: u8,
    },
}

/// An SM that the device does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("SM {smid} does not exist: this device has SMs 0-{last}", last = sm_count - 1)]
pub struct UnknownSm {
    /// The SM, as `%smid` reported it.
    pub smid: u32,
    /// How many SMs the device has.
    pub sm_count: u32,
}
