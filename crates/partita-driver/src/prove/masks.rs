//! The masks to try.

use partita_core::{Topology, TpcSet};

use super::chance::Chance;

/// Sets in turn: one TPC (every TPC, in order), random TPCs at random densities, whole GPCs,
/// everything, everything but one, and the previous set with one TPC more or less.
#[derive(Debug)]
pub(super) struct Masks<'t> {
    topology: &'t Topology,
    turn: u32,
    single: u32,
    before: TpcSet,
}

impl<'t> Masks<'t> {
    pub fn new(topology: &'t Topology) -> Self {
        Self { topology, turn: 0, single: 0, before: topology.all() }
    }

    /// The next set; never empty.
    pub fn next(&mut self, chance: &mut Chance) -> TpcSet {
        let all = self.topology.all();
        let count = self.topology.tpc_count();
        let set = match self.turn % 8 {
            0 | 4 => {
                self.single += 1;
                TpcSet::single(((self.single - 1) % count) as u8)
            }
            1 | 5 => {
                let permille = chance.below(1000);
                all.iter().filter(|_| chance.happens(permille)).collect()
            }
            2 => {
                let gpcs = self.topology.gpcs().iter().filter(|_| chance.happens(500));
                gpcs.fold(TpcSet::EMPTY, |set, gpc| set | gpc.tpcs)
            }
            // Once in a while the whole device: it must lose no TPC.
            6 if self.turn % 64 == 6 => all,
            6 => all - TpcSet::single(chance.below(count) as u8),
            _ => {
                let one = TpcSet::single(chance.below(count) as u8);
                self.before ^ one
            }
        };
        self.turn += 1;
        // The empty set would hang.
        let set = if set.is_empty() { TpcSet::single(chance.below(count) as u8) } else { set };
        self.before = set;
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::vec::Vec;

    use partita_core::Tpc;

    use super::*;

    #[test]
    fn every_kind_of_set_comes_and_none_is_empty_or_beyond() {
        let tpcs: Vec<Tpc> = (0..66).map(|i| Tpc { gpc: (i % 8) as u8, physical: i }).collect();
        let topology = Topology::new(2, tpcs).unwrap();
        let (mut masks, mut chance) = (Masks::new(&topology), Chance::new(7));
        let sets: Vec<TpcSet> = (0..512).map(|_| masks.next(&mut chance)).collect();
        assert!(sets.iter().all(|set| !set.is_empty() && set.is_subset(&topology.all())));
        let singles: BTreeSet<u8> =
            sets.iter().filter(|set| set.len() == 1).filter_map(TpcSet::first_tpc).collect();
        assert_eq!(singles.len(), 66, "every TPC alone");
        assert!(sets.contains(&topology.all()));
        assert!(sets.windows(2).filter(|pair| (pair[0] ^ pair[1]).len() == 1).count() > 100);
        let of_gpcs = |set: &TpcSet| {
            topology.gpcs().iter().all(|gpc| gpc.tpcs.is_subset(set) || gpc.tpcs.is_disjoint(set))
        };
        assert!(sets.iter().filter(|set| set.len() < 60 && of_gpcs(set)).count() > 20);
        let again: Vec<TpcSet> = {
            let (mut masks, mut chance) = (Masks::new(&topology), Chance::new(7));
            (0..512).map(|_| masks.next(&mut chance)).collect()
        };
        assert_eq!(sets, again);
    }
}
