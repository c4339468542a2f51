//! The order in which tenants get new sets so that no two ever overlap.

#[cfg(test)]
pub(super) mod tests;

use alloc::string::String;
use alloc::vec::Vec;

use crate::TpcSet;

/// One store of a tenant's limits: from then on it holds this set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// The tenant.
    pub tenant: String,
    /// The set that it holds from then on; not empty.
    pub set: TpcSet,
}

/// A tenant that moves from one set to another.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub name: String,
    pub now: TpcSet,
    pub then: TpcSet,
}

/// The stores that bring every tenant to its set. After each of them all sets are disjoint and none
/// is empty; `idle` are the TPCs that no tenant holds or will get. `None` only if tenants hold
/// every TPC, and each holds one.
///
/// Most tenants move in one step. If some wait for each other, one first gives up the TPCs that it
/// does not keep. If the waiting tenants hold one TPC each, one of them parks on a TPC that no
/// tenant will get, or that another lends.
pub(super) fn order(ways: &[Way], others: TpcSet, idle: TpcSet) -> Option<Vec<Store>> {
    let mut road = Road { ways: ways.to_vec(), others, stores: Vec::new(), parked: TpcSet::EMPTY };
    // TPCs that no tenant will get: the idle ones, and those given up on the way.
    let wanted = ways.iter().fold(others, |all, way| all | way.then);
    let spare = ways.iter().fold(idle, |all, way| all | way.now) - wanted;
    while road.is_open() {
        if !(road.arrive() || road.advance() || road.step_aside(spare) || road.give_way()) {
            road.lend()?;
        }
    }
    Some(road.stores)
}

/// Tenants that move.
struct Road {
    ways: Vec<Way>,
    others: TpcSet,
    stores: Vec<Store>,
    /// TPCs on which a tenant waits for its own.
    parked: TpcSet,
}

impl Road {
    fn is_open(&self) -> bool {
        self.ways.iter().any(|way| way.now != way.then)
    }

    /// The first moving tenant for which `step` returns a set.
    fn go(&mut self, step: impl Fn(&Self, usize) -> Option<TpcSet>) -> bool {
        let next = (0..self.ways.len())
            .filter(|&i| self.ways[i].now != self.ways[i].then)
            .find_map(|i| step(self, i).map(|set| (i, set)));
        if let Some((i, set)) = next {
            self.store(i, set);
        }
        next.is_some()
    }

    fn store(&mut self, i: usize, set: TpcSet) {
        self.stores.push(Store { tenant: self.ways[i].name.clone(), set });
        self.ways[i].now = set;
    }

    fn held_beside(&self, i: usize) -> TpcSet {
        let rest = self.ways.iter().enumerate().filter(|&(j, _)| j != i);
        rest.fold(self.others, |held, (_, way)| held | way.now)
    }

    /// TPCs that other moving tenants will get and do not have.
    fn wanted_beside(&self, i: usize) -> TpcSet {
        let rest = self.ways.iter().enumerate().filter(|&(j, _)| j != i);
        rest.fold(TpcSet::EMPTY, |all, (_, way)| all | (way.then - way.now))
    }

    /// In one step, if no tenant is in the way.
    fn arrive(&mut self) -> bool {
        self.go(|road, i| {
            let then = road.ways[i].then;
            then.is_disjoint(&road.held_beside(i)).then_some(then)
        })
    }

    /// The tenant takes all TPCs of its new set that no other holds now. After that it holds none
    /// for which another waits.
    fn advance(&mut self) -> bool {
        self.go(|road, i| {
            let part = road.ways[i].then - road.held_beside(i);
            (!part.is_empty() && part != road.ways[i].now).then_some(part)
        })
    }

    /// Others hold all of its new set: it moves once, to TPCs that no tenant will keep.
    fn step_aside(&mut self, spare: TpcSet) -> bool {
        self.go(|road, i| {
            let way = &road.ways[i];
            let aside = (spare - road.held_beside(i) - way.now).lowest(1);
            let stuck = way.now.is_disjoint(&way.then) && way.now.is_disjoint(&spare);
            (stuck && !aside.is_empty()).then_some(aside)
        })
    }

    /// It gives up a TPC for which another waits, and keeps others that it will give up later.
    fn give_way(&mut self) -> bool {
        self.go(|road, i| {
            let way = &road.ways[i];
            let given = (way.now & road.wanted_beside(i)).lowest(1);
            (way.now.len() > 1 && !given.is_empty()).then(|| way.now - given)
        })
    }

    /// The waiting tenants hold one TPC each. A tenant that holds more lends one, on which one of
    /// them parks.
    fn lend(&mut self) -> Option<()> {
        let lender = self.ways.iter().position(|way| way.now.len() > 1)?;
        let lent = self.ways[lender].now.lowest(1);
        let guest = (0..self.ways.len()).find(|&i| {
            let way = &self.ways[i];
            i != lender
                && way.now.is_disjoint(&way.then)
                && way.now.is_disjoint(&self.parked)
                && !way.now.is_disjoint(&self.wanted_beside(i))
        })?;
        self.store(lender, self.ways[lender].now - lent);
        self.store(guest, lent);
        self.parked |= lent;
        Some(())
    }
}
