//! [`place`]: the TPCs of the components of a chain.

#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use core::cmp::Reverse;

use super::Allocation;
use partita_core::{Topology, TpcSet};

/// The TPCs of each component: as many of `within` as the allocation says, all of it if it says
/// more.
///
/// The TPCs of `within` are in one order, GPC by GPC, those of a GPC with most of them first, and
/// the order is closed to a ring. The components lie on it one after the other, each starting where
/// the one before ended. It follows:
///
/// * **Packed.** A set is a run of the order, so it has whole GPCs except for the two at its ends.
/// * **Disjoint where they fit.** If the numbers add up to no more than there are, no component
///   goes around the ring.
/// * **Least overlap otherwise.** The numbers of sets on any two TPCs differ by at most one. So no
///   other choice has fewer components on its busiest TPC, or fewer pairs of components that share
///   one: the number of sets on a TPC is as even as it can be, and a convex function of it (pairs
///   are one) is least if it is even.
/// * **Small moves.** If one component gets `k` more or fewer, each later one moves by at most `k`:
///   with `n` components no more than `(2n - 1) k` TPCs change hands. A component with all TPCs
///   goes around the whole ring, and moves no other.
/// * The same arguments always give the same sets.
///
/// ```
/// use partita_steering::{Allocation, place};
/// use partita_core::{Topology, Tpc};
///
/// // Two GPCs of four TPCs, numbered round-robin.
/// let gpu = Topology::new(2, (0..8).map(|i| Tpc { gpc: (i % 2) as u8, physical: i
/// }).collect::<Vec<_>>()).unwrap();
/// let sets = place(&gpu, gpu.all(), &Allocation::new([4, 2, 2]).unwrap());
/// assert_eq!(sets[0].to_string(), "0,2,4,6");
/// assert_eq!((sets[1].to_string(), sets[2].to_string()), ("1,3".into(), "5,7".into()));
/// ```
#[must_use]
pub fn place(topology: &Topology, within: TpcSet, allocation: &Allocation) -> Vec<TpcSet> {
    let ring = ring(topology, within);
    let mut at = 0;
    let sets = allocation.tpcs().iter().map(|&tpcs| {
        let count = ring.len().min(tpcs as usize);
        let set = (at..at + count).filter_map(|i| ring.get(i % ring.len().max(1))).copied().collect();
        at += count;
        set
    });
    sets.collect()
}

/// The TPCs of a set in the order in which components get them.
fn ring(topology: &Topology, within: TpcSet) -> Vec<u8> {
    let mut gpcs: Vec<TpcSet> = topology.gpcs().iter().map(|gpc| gpc.tpcs & within).collect();
    gpcs.sort_by_key(|tpcs| Reverse(tpcs.len()));
    gpcs.iter().flatten().collect()
}
