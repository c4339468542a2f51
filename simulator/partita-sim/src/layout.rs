//! The SMs in the distributor's order, and sets of them.

use partita_core::{Topology, TpcSet};

/// Largest number of SMs of a device.
const SMS_MAX: usize = 64 * WORDS;
const WORDS: usize = 8;

/// A set of SMs by position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SmSet([u64; WORDS]);

impl SmSet {
    #[inline]
    pub(crate) fn insert(&mut self, position: usize) {
        self.0[position / 64] |= 1 << (position % 64);
    }

    #[inline]
    pub(crate) fn add(&mut self, other: &Self) {
        for (a, b) in self.0.iter_mut().zip(other.0) {
            *a |= b;
        }
    }

    #[inline]
    pub(crate) fn minus(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] & !other.0[i]))
    }

    #[inline]
    pub(crate) fn and(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] & other.0[i]))
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    /// Positions in ascending order.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + use<> {
        let words = self.0;
        (0..WORDS).flat_map(move |i| {
            let mut word = words[i];
            std::iter::from_fn(move || {
                if word == 0 {
                    return None;
                }
                let bit = word.trailing_zeros() as usize;
                word &= word - 1;
                Some(i * 64 + bit)
            })
        })
    }
}

/// Positions of SMs: first one SM of every TPC in logical order, then the second of every TPC, and
/// so on. So the order of positions is breadth-first over the TPCs.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    tpcs: usize,
    sms_per_tpc: usize,
    /// SMs of each GPC.
    pub(crate) gpcs: Vec<SmSet>,
    /// The place in `gpcs` of the GPC of each SM, by position.
    gpc_of: Vec<u8>,
}

impl Layout {
    /// The layout of a device.
    ///
    /// # Panics
    /// More than 512 SMs.
    pub(crate) fn new(topology: &Topology) -> Self {
        let tpcs = topology.tpc_count() as usize;
        let sms_per_tpc = topology.sms_per_tpc() as usize;
        assert!(tpcs * sms_per_tpc <= SMS_MAX, "a device of more than {SMS_MAX} SMs is not modelled");
        let mut layout = Self { tpcs, sms_per_tpc, gpcs: Vec::new(), gpc_of: vec![0; tpcs * sms_per_tpc] };
        layout.gpcs = topology.gpcs().iter().map(|gpc| layout.sms_of(&gpc.tpcs)).collect();
        for (gpc, sms) in (0..).zip(&layout.gpcs) {
            sms.iter().for_each(|position| layout.gpc_of[position] = gpc);
        }
        layout
    }

    /// Number of SMs.
    pub(crate) fn sm_count(&self) -> usize {
        self.tpcs * self.sms_per_tpc
    }

    /// The index in [`Self::gpcs`] of the GPC of the SM at a position.
    #[inline]
    pub(crate) fn gpc_of(&self, position: usize) -> usize {
        usize::from(self.gpc_of[position])
    }

    /// `%smid` of the SM at a position.
    #[inline]
    pub(crate) fn smid(&self, position: usize) -> u32 {
        let (rank, tpc) = (position / self.tpcs, position % self.tpcs);
        (tpc * self.sms_per_tpc + rank) as u32
    }

    /// The SMs of these logical TPCs; missing ones are ignored.
    pub(crate) fn sms_of(&self, tpcs: &TpcSet) -> SmSet {
        let mut set = SmSet::default();
        for tpc in tpcs.iter().map(usize::from).filter(|&tpc| tpc < self.tpcs) {
            for rank in 0..self.sms_per_tpc {
                set.insert(rank * self.tpcs + tpc);
            }
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;

    #[test]
    fn positions_go_breadth_first_over_the_tpcs() {
        let spec = catalogue::device("h200").unwrap();
        let layout = Layout::new(&spec.topology);
        let order: Vec<u32> = (0..layout.sm_count()).map(|position| layout.smid(position)).collect();
        assert_eq!(order[..3], [0, 2, 4]);
        assert_eq!(order[66..69], [1, 3, 5]);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..132).collect::<Vec<u32>>());
    }

    #[test]
    fn a_tpc_set_becomes_its_sms() {
        let spec = catalogue::device("h200").unwrap();
        let layout = Layout::new(&spec.topology);
        // TPC 200 does not exist.
        let set: TpcSet = [3u8, 65, 200].into_iter().collect();
        let mut smids: Vec<u32> = layout.sms_of(&set).iter().map(|position| layout.smid(position)).collect();
        smids.sort_unstable();
        assert_eq!(smids, [6, 7, 130, 131]);
        assert_eq!(layout.gpcs.iter().map(|gpc| gpc.iter().count()).sum::<usize>(), 132);
    }
}
