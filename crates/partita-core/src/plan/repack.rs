//! [`repack`]: bring tenants into fewer GPCs after others have come and gone.

use alloc::string::ToString;
use alloc::vec::Vec;

use super::order::{Way, order};
use super::{Ask, Move, Placement, PlanError, Present, Store, compact};
use crate::{Share, Topology, TpcSet};

/// The moves that restore packing.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Repacking {
    /// The moves by tenant; empty if no single step improves the packing.
    pub moves: Vec<Move>,
    /// The stores, in this order: after each of them no two tenants overlap and each has a TPC.
    pub stores: Vec<Store>,
}

/// Moves tenants that `are_packed` into fewer GPCs, while those that `may_move` make room.
///
/// The best assignment of all tenants at once is a bin packing, which takes too long; so this goes
/// step by step. A step puts one tenant into as few GPCs as possible, with the fewest moves that
/// [`compact`] finds. Of the steps after which the packed tenants together touch fewer GPCs than
/// before, it takes the one that saves most, then the one that moves the fewest TPCs, until no such
/// step remains. So a tenant moves only if one gains, and no single step can improve the result.
///
/// # Errors
/// [`PlanError::Deadlock`] if no order of stores leads to the new sets.
pub fn repack(
    topology: &Topology,
    present: &[Present],
    may_move: impl Fn(&Present) -> bool,
    are_packed: impl Fn(&Present) -> bool,
) -> Result<Repacking, PlanError> {
    let mut tenants = present.to_vec();
    for tenant in &mut tenants {
        tenant.set &= topology.all();
    }
    let touched = |tenants: &[Present]| -> usize {
        let packed = tenants.iter().filter(|tenant| are_packed(tenant));
        packed
            .map(|tenant| topology.gpcs().iter().filter(|gpc| !gpc.tpcs.is_disjoint(&tenant.set)).count())
            .sum()
    };
    loop {
        let before = touched(&tenants);
        let steps =
            tenants.iter().filter(|tenant| may_move(tenant) && are_packed(tenant) && !tenant.set.is_empty());
        let steps = steps.filter_map(|tenant| {
            let ask = Ask { share: Share::Tpcs(tenant.set.len()), placement: Placement::Packed };
            let step = compact(topology, &tenants, Some(&tenant.name), ask, &may_move).ok()?;
            let mut after = tenants.clone();
            for way in &mut after {
                for made in step.moves.iter().filter(|made| made.tenant == way.name) {
                    way.set = (way.set - made.from) | made.to;
                }
                if way.name == tenant.name {
                    way.set = step.plan.set;
                }
            }
            let moved: u32 = tenants.iter().zip(&after).map(|(old, new)| (old.set - new.set).len()).sum();
            Some(((touched(&after), moved), after)).filter(|((touched, _), _)| *touched < before)
        });
        match steps.min_by_key(|(key, _)| *key) {
            Some((_, after)) => tenants = after,
            None => break,
        }
    }
    let ways: Vec<Way> = (present.iter().zip(&tenants))
        .map(|(old, new)| Way { name: old.name.to_string(), now: old.set & topology.all(), then: new.set })
        .collect();
    let idle = topology.all() - ways.iter().fold(TpcSet::EMPTY, |all, way| all | way.now | way.then);
    let moving = ways.iter().filter(|way| way.now != way.then);
    let moves: Vec<Move> = moving
        .map(|way| Move { tenant: way.name.clone(), from: way.now - way.then, to: way.then - way.now })
        .collect();
    let still = ways.iter().filter(|way| way.now == way.then).fold(TpcSet::EMPTY, |all, way| all | way.now);
    let stores = order(&ways, still, idle).ok_or_else(|| PlanError::Deadlock {
        tenant: moves.first().map_or_else(Default::default, |one| one.tenant.clone()),
    })?;
    Ok(Repacking { moves, stores })
}
