//! [`Unit`]: one TPC, placed, with each source's evidence.

use alloc::vec::Vec;
use core::ops::Range;

use super::{SmPlace, Source};

/// The evidence of one source for one TPC, in its own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The control interface's entry of its first SM, and the mask bit that follows from it if a
    /// rule is known.
    Control {
        /// The entry.
        place: SmPlace,
        /// [`Survey::predicted_bit`](super::Survey::predicted_bit).
        predicted_bit: Option<u16>,
    },
    /// The bit that disables it.
    Probe {
        /// The bit.
        bit: u16,
    },
    /// The group of TPCs with which it ran a cluster.
    Clusters {
        /// The group's number.
        group: u8,
    },
    /// The registers' numbers.
    Nvdebug {
        /// The GPC.
        gpc: u16,
        /// The TPC inside it.
        tpc_in_gpc: u16,
    },
}

impl Claim {
    /// The source.
    #[must_use]
    pub fn source(&self) -> Source {
        match self {
            Self::Control { .. } => Source::Control,
            Self::Probe { .. } => Source::Probe,
            Self::Clusters { .. } => Source::Clusters,
            Self::Nvdebug { .. } => Source::Nvdebug,
        }
    }
}

/// One TPC, placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Its logical number.
    pub tpc: u8,
    /// Its SMs, in the numbering of `%smid`.
    pub sms: Range<u32>,
    /// Its bit in a launch mask.
    pub bit: u16,
    /// Its GPC in plans; `None` if GPCs are not proved.
    pub gpc: Option<u8>,
    /// Its place on the chip, if the control interface reports it.
    pub place: Option<SmPlace>,
    /// The evidence of each source, in the order of [`Source::ALL`].
    pub claims: Vec<Claim>,
    /// Whether two of them contradict each other.
    pub disputed: bool,
}

impl Unit {
    /// Whether at least two independent sources place it, without contradiction.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.claims.len() >= 2 && !self.disputed
    }
}
