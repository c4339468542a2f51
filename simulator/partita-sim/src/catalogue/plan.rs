//! Floor plans: the units of a chip, those of the product, and their numbering.

use partita_core::{Topology, TopologyError, Tpc};
use serde::Deserialize;

/// A chip's GPCs and TPCs, and how many of them a product has.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub sms_per_tpc: u32,
    /// GPCs of the product.
    pub gpcs: u8,
    /// TPCs of a whole GPC of the chip.
    pub tpcs_per_gpc: u8,
    /// TPCs of the product; the others are fused off, different ones on each board.
    pub tpcs: u16,
    /// The order of `%smid`.
    pub order: Order,
    /// The bits of a launch descriptor's mask.
    pub numbering: Numbering,
}

/// The order in which `%smid` counts TPCs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Order {
    /// The first of each GPC, then the second of each, and so on (H200, measured).
    RoundRobin,
    /// All of a GPC before those of the next (GB10, reported).
    GpcByGpc,
}

/// The bit of a TPC in a launch descriptor's mask.
#[derive(Clone, Copy)]
pub(super) enum Numbering {
    /// Its logical number: before Hopper.
    Logical,
    /// `stride` × GPC + position in the GPC, GPCs counted from the smallest (H200, measured).
    GpcMajor {
        /// Bits of a GPC.
        stride: u16,
    },
    /// Position in the GPC × GPCs + GPC (GB10, reported).
    GpcMinor,
    /// As `GpcMajor`, the GPCs of each of two dies in a half of a mask of 256 bits.
    TwoDies {
        /// Bits of a GPC.
        stride: u16,
    },
}

impl Plan {
    /// The topology of a board. Seed 0 spreads the fused-off TPCs evenly; every other seed is a
    /// different board.
    ///
    /// # Errors
    /// An impossible plan.
    pub(super) fn topology(&self, seed: u64) -> Result<Topology, TopologyError> {
        let sizes = self.sizes(seed);
        let mut places: Vec<(u8, u16)> = (0_u8..)
            .zip(&sizes)
            .flat_map(|(gpc, size)| (0..u16::from(*size)).map(move |position| (gpc, position)))
            .collect();
        if self.order == Order::RoundRobin {
            places.sort_by_key(|&(gpc, position)| (position, gpc));
        }
        let tpcs: Vec<Tpc> = (0_u16..)
            .zip(places)
            .map(|(logical, (gpc, position))| Tpc { gpc, physical: self.bit(logical, gpc, position) })
            .collect();
        Topology::new(self.sms_per_tpc, tpcs)
    }

    /// TPCs of each GPC.
    fn sizes(&self, seed: u64) -> Vec<u8> {
        let mut sizes = vec![self.tpcs_per_gpc; usize::from(self.gpcs)];
        let whole = u16::from(self.gpcs) * u16::from(self.tpcs_per_gpc);
        let mut random = seed;
        for lost in 0..usize::from(whole - self.tpcs) {
            let mut gpc = match seed {
                0 => sizes.len() - 1 - lost % sizes.len(),
                _ => (next(&mut random) % sizes.len() as u64) as usize,
            };
            // A GPC keeps at least one TPC: a product that lost a whole GPC has another plan.
            while sizes[gpc] == 1 {
                gpc = (gpc + 1) % sizes.len();
            }
            sizes[gpc] -= 1;
        }
        if matches!(self.numbering, Numbering::GpcMajor { .. }) {
            sizes.sort_unstable();
        }
        sizes
    }

    fn bit(&self, logical: u16, gpc: u8, position: u16) -> u16 {
        let gpc = u16::from(gpc);
        match self.numbering {
            Numbering::Logical => logical,
            Numbering::GpcMajor { stride } => stride * gpc + position,
            Numbering::GpcMinor => u16::from(self.gpcs) * position + gpc,
            Numbering::TwoDies { stride } => {
                let on_die = u16::from(self.gpcs) / 2;
                128 * (gpc / on_die) + stride * (gpc % on_die) + position
            }
        }
    }
}

/// The next number of a sequence that a seed starts (Steele, Lea, Flood, «Fast splittable
/// pseudorandom number generators», 2014).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn boards_of_one_product_differ_in_what_they_lost_and_in_nothing_else() {
        let plan = Plan {
            sms_per_tpc: 2,
            gpcs: 8,
            tpcs_per_gpc: 9,
            tpcs: 66,
            order: Order::RoundRobin,
            numbering: Numbering::GpcMajor { stride: 9 },
        };
        let mut seen = BTreeSet::new();
        for seed in 0..20 {
            let board = plan.topology(seed).unwrap();
            assert_eq!((board.tpc_count(), board.gpcs().len()), (66, 8));
            assert_eq!(board, plan.topology(seed).unwrap());
            let sizes: Vec<u32> = board.gpcs().iter().map(|gpc| gpc.tpcs.len()).collect();
            assert!(sizes.is_sorted() && sizes.iter().all(|size| (1..=9).contains(size)));
            seen.insert(sizes);
        }
        assert!(seen.len() > 3, "{seen:?}");
        let even: Vec<u32> = plan.topology(0).unwrap().gpcs().iter().map(|gpc| gpc.tpcs.len()).collect();
        assert_eq!(even, [8, 8, 8, 8, 8, 8, 9, 9]);
    }
}
