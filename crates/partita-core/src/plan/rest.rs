//! [`plan_beside`] and [`level`]: tenants without a share divide what the shares of the others
//! leave.

#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use super::error::{NoneFree, PlanError, Remedy};
use super::order::{Way, order};
use super::{Compaction, Placement, Plan, Present, Request, Store, holders};
use crate::{Share, Topology, TpcSet};

/// What a tenant asks for beside others, of which some have no share.
pub enum Part<'a> {
    /// A share: `plan` places it beside the tenants that have one.
    Share {
        /// The tenant; `None` for a new one.
        name: Option<&'a str>,
        /// How to place it beside these tenants.
        plan: &'a dyn Fn(&[Present]) -> Result<Compaction, PlanError>,
    },
    /// No share, for a new tenant: a part as large as that of each other tenant without one.
    Even(Placement),
}

/// Plans for one tenant. Those for which `rests` returns a placement have no share: they get even
/// parts of what remains, keep as many of their TPCs as they can, and each has at least one. The
/// moves are those of the tenants with a share.
///
/// # Errors
/// As the plan of the share; [`PlanError::NoneFree`] if there is no TPC for each tenant without a
/// share.
pub fn plan_beside(
    topology: &Topology,
    present: &[Present],
    part: &Part<'_>,
    rests: impl Fn(&Present) -> Option<Placement>,
) -> Result<Compaction, PlanError> {
    let changed = match part {
        Part::Share { name, .. } => *name,
        Part::Even(_) => None,
    };
    let placement = |tenant: &Present| rests(tenant).filter(|_| Some(tenant.name.as_str()) != changed);
    let (resting, firm): (Vec<&Present>, Vec<&Present>) =
        present.iter().partition(|tenant| placement(tenant).is_some());
    let firm: Vec<Present> = firm.into_iter().cloned().collect();
    let mut owners: Vec<Owner> = resting
        .iter()
        .filter_map(|tenant| Some(Owner { set: tenant.set & topology.all(), placement: placement(tenant)? }))
        .collect();
    let none_free = || {
        let holders = holders(topology, present.iter());
        PlanError::NoneFree(Box::new(NoneFree { all: topology.all(), holders, remedy: Remedy::Unknown }))
    };
    let (planned, then) = match part {
        Part::Share { plan, .. } => {
            let mut planned = plan(&firm)?;
            let mut then = after(&firm, changed, &planned);
            if rest(topology, &then, planned.plan.set).len() < resting.len() as u32 {
                // Each tenant without a share keeps one TPC.
                let kept = resting
                    .iter()
                    .map(|tenant| Present { name: tenant.name.clone(), set: tenant.set.lowest(1) });
                planned = plan(&firm.iter().cloned().chain(kept).collect::<Vec<_>>())?;
                then = after(&firm, changed, &planned);
            }
            (Some(planned), then)
        }
        Part::Even(placement) => {
            owners.push(Owner { set: TpcSet::EMPTY, placement: *placement });
            (None, firm.iter().map(|tenant| tenant.set & topology.all()).collect())
        }
    };
    let new = planned.as_ref().map_or(TpcSet::EMPTY, |planned| planned.plan.set);
    let mut parts = divide(topology, rest(topology, &then, new), &owners).ok_or_else(none_free)?;
    let (plan, moves) = match planned {
        Some(planned) => (planned.plan, planned.moves),
        None => (Plan::new(topology, parts.pop().unwrap_or(TpcSet::EMPTY)), Vec::new()),
    };
    let ways = firm.iter().zip(then).chain(resting.into_iter().zip(parts));
    Ok(Compaction { plan, moves, stores: stores(topology, ways)? })
}

/// The stores after which the tenants without a share have even parts again, as after another
/// tenant has left. As [`plan_beside`].
///
/// # Errors
/// [`PlanError::Deadlock`] if no order of stores leads to the new sets.
pub fn level(
    topology: &Topology,
    present: &[Present],
    rests: impl Fn(&Present) -> Option<Placement>,
) -> Result<Vec<Store>, PlanError> {
    let (resting, firm): (Vec<&Present>, Vec<&Present>) =
        present.iter().partition(|tenant| rests(tenant).is_some());
    let held: Vec<TpcSet> = firm.iter().map(|tenant| tenant.set & topology.all()).collect();
    let owners: Vec<Owner> = resting
        .iter()
        .filter_map(|tenant| Some(Owner { set: tenant.set & topology.all(), placement: rests(tenant)? }))
        .collect();
    // Without a TPC for each, all stays as it is.
    let Some(parts) = divide(topology, rest(topology, &held, TpcSet::EMPTY), &owners) else {
        return Ok(Vec::new());
    };
    let ways = firm.into_iter().zip(held).chain(resting.into_iter().zip(parts));
    stores(topology, ways)
}

/// A tenant without a share.
struct Owner {
    /// The TPCs that it has.
    set: TpcSet,
    placement: Placement,
}

/// The TPCs that none of these sets has.
fn rest(topology: &Topology, sets: &[TpcSet], new: TpcSet) -> TpcSet {
    sets.iter().fold(topology.all() - new, |rest, set| rest - *set)
}

/// The sets of tenants after a plan has moved them. That of the planned one is the plan's.
fn after(tenants: &[Present], changed: Option<&str>, planned: &Compaction) -> Vec<TpcSet> {
    let set = |tenant: &Present| match planned.moves.iter().find(|made| made.tenant == tenant.name) {
        _ if Some(tenant.name.as_str()) == changed => planned.plan.set,
        Some(made) => (tenant.set - made.from) | made.to,
        None => tenant.set,
    };
    tenants.iter().map(set).collect()
}

/// Even parts of `rest`, one for each owner: none is empty, and they differ by one TPC at most. An
/// owner keeps as many of its TPCs as its part has. `None` if there are too few.
fn divide(topology: &Topology, rest: TpcSet, owners: &[Owner]) -> Option<Vec<TpcSet>> {
    let Some(least) = rest.len().checked_div(owners.len() as u32) else { return Some(Vec::new()) };
    if least == 0 {
        return None;
    }
    let own = |i: usize| owners[i].set & rest;
    let mut by_size: Vec<usize> = (0..owners.len()).collect();
    // One more TPC goes to those that have most already, so that nothing moves without need.
    by_size.sort_by_key(|&i| core::cmp::Reverse(own(i).len()));
    let mut parts = alloc::vec![TpcSet::EMPTY; owners.len()];
    let mut pool = rest - (0..owners.len()).fold(TpcSet::EMPTY, |all, i| all | own(i));
    for (rank, &i) in by_size.iter().enumerate() {
        let count = least + u32::from((rank as u32) < rest.len() % owners.len() as u32);
        let own = own(i);
        // Those that shrink come first, so the pool has enough for the others.
        parts[i] = Request {
            topology,
            holders: Vec::new(),
            own,
            free: pool | own,
            share: Share::Tpcs(count),
            placement: owners[i].placement,
        }
        .choose(count)?;
        pool = (pool | own) - parts[i];
    }
    Some(parts)
}

/// The order in which tenants get their new sets.
fn stores<'a>(
    topology: &Topology,
    ways: impl Iterator<Item = (&'a Present, TpcSet)>,
) -> Result<Vec<Store>, PlanError> {
    let ways =
        ways.map(|(tenant, then)| Way { name: tenant.name.clone(), now: tenant.set & topology.all(), then });
    let (moving, still): (Vec<Way>, Vec<Way>) = ways.partition(|way| way.now != way.then);
    let still = still.iter().fold(TpcSet::EMPTY, |all, way| all | way.now);
    let idle = moving.iter().fold(topology.all() - still, |idle, way| idle - way.now - way.then);
    order(&moving, still, idle).ok_or_else(|| PlanError::Deadlock {
        tenant: moving.first().map_or_else(String::new, |way| way.name.clone()),
    })
}
