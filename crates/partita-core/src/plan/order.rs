//! In which order tenants are given other sets so that no two ever overlap.

#[cfg(test)]
pub(super) mod tests;

use alloc::string::String;
use alloc::vec::Vec;

use crate::TpcSet;

/// One store of a tenant's limits: from here on it holds this set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// The tenant.
    pub tenant: String,
    /// What it holds from now on; not empty.
    pub set: TpcSet,
}

/// A tenant on its way from one set to another.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub name: String,
    pub now: TpcSet,
    pub then: TpcSet,
}

/// The stores that bring every tenant to its set. After each of them all sets are disjoint and none is empty;
/// `idle` are the TPCs that nobody holds and nobody else will take. `None` only if every TPC is held,
/// and those who wait for each other hold one each.
///
/// Most tenants go in one step. Where two wait for each other, one first gives up what it does not keep.
pub(super) fn order(ways: &[Way], others: TpcSet, idle: TpcSet) -> Option<Vec<Store>> {
    let mut ways: Vec<Way> = ways.iter().filter(|way| way.now != way.then).cloned().collect();
    let mut stores = Vec::new();
    while !ways.is_empty() {
        let held = |except: usize, ways: &[Way]| {
            let rest = ways.iter().enumerate().filter(|&(i, _)| i != except);
            rest.fold(others, |held, (_, way)| held | way.now)
        };
        let step = (0..ways.len()).find_map(|i| {
            let way = &ways[i];
            way.then.is_disjoint(&held(i, &ways)).then_some((i, way.then))
        });
        // Of what it will have it takes what nobody else holds now. That is once for each tenant: after it
        // the tenant holds nothing that another waits for.
        let step = step.or_else(|| {
            (0..ways.len()).find_map(|i| {
                let part = ways[i].then - held(i, &ways);
                (!part.is_empty() && part != ways[i].now).then_some((i, part))
            })
        });
        // All of what it will have is in others' hands: it steps aside, once.
        let step = step.or_else(|| {
            let aside = (idle - held(ways.len(), &ways)).lowest(1);
            let stuck = |way: &Way| way.now.is_disjoint(&way.then) && way.now.is_disjoint(&idle);
            (0..ways.len()).find_map(|i| (!aside.is_empty() && stuck(&ways[i])).then_some((i, aside)))
        });
        // One that somebody else waits for, so that this one gets on.
        let step = step.or_else(|| {
            let wanted = |i: usize| {
                let rest = ways.iter().enumerate().filter(move |&(j, _)| j != i);
                rest.fold(TpcSet::EMPTY, |all, (_, way)| all | way.then)
            };
            (0..ways.len()).find_map(|i| {
                let given = (ways[i].now & wanted(i)).lowest(1);
                (ways[i].now.len() > 1 && !given.is_empty()).then(|| (i, ways[i].now - given))
            })
        });
        let (i, set) = step?;
        stores.push(Store { tenant: ways[i].name.clone(), set });
        if set == ways[i].then {
            ways.remove(i);
        } else {
            ways[i].now = set;
        }
    }
    Some(stores)
}
