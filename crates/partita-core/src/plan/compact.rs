//! [`compact`]: a plan for which other tenants make room, by moving the fewest of their TPCs.

#[cfg(test)]
mod tests;

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::order::{Way, order};
use super::spread::{Bounds, level};
use super::{Ask, Placement, Plan, PlanError, Present, Request, Store, plan, replan};
use crate::{Share, Topology, TpcSet};

/// The TPCs that a tenant gives up, and those that it gets instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The tenant.
    pub tenant: String,
    /// The TPCs that it leaves.
    pub from: TpcSet,
    /// The TPCs that it gets instead, as many.
    pub to: TpcSet,
}

/// A plan, and the moves that lead to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compaction {
    /// What the tenant gets.
    pub plan: Plan,
    /// The moves of other tenants, by tenant; empty if no tenant has to move.
    pub moves: Vec<Move>,
    /// The stores, in this order: after each of them no two tenants overlap and each has a TPC. A
    /// present tenant is stored like the others; a new one comes after all stores.
    pub stores: Vec<Store>,
}

/// Chooses TPCs as [`plan`] does for a new tenant, or as [`replan`] for the tenant `name`, as if
/// the other tenants that `may_move` held no TPCs.
///
/// - A share that names its TPCs gets them.
/// - A packed one gets as few GPCs as it would on a device without those tenants.
/// - A spread one is as even as it would be on a device without them.
///
/// Of all such choices, it is one for which **the fewest TPCs change hands or places**: TPCs that
/// others leave for it, and TPCs that a present tenant leaves itself (when it shrinks, those that
/// it newly gets). If no tenant needs to move, the plan is that of [`plan`] or [`replan`]. Other
/// tenants keep their numbers of TPCs; a tenant that leaves some gets free ones, in its own GPCs if
/// possible.
///
/// # Errors
/// As [`plan`] and [`replan`]; [`PlanError::Deadlock`] if no order of stores leads to the new sets.
pub fn compact(
    topology: &Topology,
    present: &[Present],
    name: Option<&str>,
    ask: impl Into<Ask>,
    may_move: impl Fn(&Present) -> bool,
) -> Result<Compaction, PlanError> {
    let ask = ask.into();
    let plain = match name {
        Some(name) => replan(topology, present, name, ask),
        None => plan(topology, present, ask),
    };
    let plain = match plain {
        // Try with others making room.
        Err(PlanError::Taken(taken)) => Err(PlanError::Taken(taken)),
        other => Ok(other?),
    };
    let board = Board::new(topology, present, name, &may_move);
    let ideal = match (&plain, ask.share) {
        (Ok(_), Share::Gpcs(_) | Share::Exact(_)) => true,
        (Ok(plain), _) => board.is_ideal(plain.set, ask.placement),
        (Err(_), _) => false,
    };
    let set = match plain {
        Ok(plain) if ideal => plain.set,
        plain => {
            let named = match ask.share {
                Share::Gpcs(_) | Share::Exact(_) => Some(ask.share.named_tpcs(topology)?),
                _ => None,
            };
            match (board.room_for(named, ask, plain.as_ref().ok().map(|plan| plan.set.len())), plain) {
                (Some(set), _) => set,
                // TPCs of tenants that may not move are not available.
                (None, Ok(plain)) => plain.set,
                (None, Err(error)) => return Err(error),
            }
        }
    };
    board.settle(set, name)
}

/// The device, for a tenant for which others make room.
struct Board<'a> {
    topology: &'a Topology,
    /// The tenant's own TPCs.
    own: TpcSet,
    /// The free TPCs.
    free: TpcSet,
    /// TPCs of tenants that may not move.
    fixed: TpcSet,
    /// The tenants that may.
    others: Vec<&'a Present>,
}

impl<'a> Board<'a> {
    fn new(
        topology: &'a Topology,
        present: &'a [Present],
        name: Option<&str>,
        may_move: &dyn Fn(&Present) -> bool,
    ) -> Self {
        let all = topology.all();
        let union = |of: &dyn Fn(&Present) -> bool| {
            present.iter().filter(|tenant| of(tenant)).fold(TpcSet::EMPTY, |set, tenant| set | tenant.set)
                & all
        };
        let is_own = |tenant: &Present| Some(tenant.name.as_str()) == name;
        let fixed = union(&|tenant| !is_own(tenant) && !may_move(tenant));
        let own = union(&is_own) - union(&|tenant| !is_own(tenant));
        let others = present.iter().filter(|tenant| !is_own(tenant) && may_move(tenant));
        Self { topology, own, free: all - union(&|_| true), fixed, others: others.collect() }
    }

    /// The available TPCs, GPC by GPC.
    fn rooms(&self) -> impl Iterator<Item = TpcSet> {
        self.topology.gpcs().iter().map(|gpc| gpc.tpcs - self.fixed)
    }

    /// Whether no other set of as many TPCs is packed or spread better, at any number of moves.
    fn is_ideal(&self, set: TpcSet, placement: Placement) -> bool {
        match placement {
            Placement::Packed => {
                let touched = self.topology.gpcs().iter().filter(|gpc| !gpc.tpcs.is_disjoint(&set)).count();
                Some(touched) == self.fewest(set.len())
            }
            Placement::Spread => {
                let counts = |of: &dyn Fn(TpcSet) -> u32| {
                    let mut counts: Vec<u32> = self.topology.gpcs().iter().map(|gpc| of(gpc.tpcs)).collect();
                    counts.sort_unstable();
                    counts
                };
                let bounds: Vec<Bounds> =
                    self.rooms().map(|room| Bounds { least: 0, most: room.len() }).collect();
                level(&bounds, set.len()).is_some_and(|mut best| {
                    best.sort_unstable();
                    best == counts(&|gpc| (gpc & set).len())
                })
            }
        }
    }

    /// The fewest GPCs that have room for this many TPCs.
    fn fewest(&self, wanted: u32) -> Option<usize> {
        let mut sizes: Vec<u32> = self.rooms().map(|room| room.len()).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let mut sum = 0;
        sizes
            .iter()
            .position(|size| {
                sum += size;
                sum >= wanted
            })
            .map(|index| index + 1)
    }

    /// The set for which the fewest TPCs change. `None` if tenants that may not move are in the
    /// way.
    fn room_for(&self, named: Option<TpcSet>, ask: Ask, wanted: Option<u32>) -> Option<TpcSet> {
        if let Some(named) = named {
            let enough = named.is_disjoint(&self.fixed) && named.len() <= (self.free | self.own).len();
            return enough.then_some(named);
        }
        let wanted = wanted?;
        match ask.placement {
            Placement::Packed => self.packed(wanted),
            Placement::Spread => self.spread(wanted),
        }
    }

    /// Takes TPCs of a GPC: first the tenant's own, then free ones, then those of others.
    fn take(&self, room: TpcSet, count: u32) -> TpcSet {
        let mut set = (room & self.own).lowest(count);
        set |= (room & self.free).lowest(count - set.len());
        set | (room - self.own - self.free).lowest(count - set.len())
    }

    fn spread(&self, wanted: u32) -> Option<TpcSet> {
        let rooms: Vec<TpcSet> = self.rooms().collect();
        let bounds: Vec<Bounds> = rooms.iter().map(|room| Bounds { least: 0, most: room.len() }).collect();
        let mut counts = level(&bounds, wanted)?;
        // Every GPC gives `top`, except small ones, which give all, and those that give one less.
        // Give one more where that costs the least.
        let top = counts.iter().copied().max().unwrap_or(0);
        let mut open: Vec<usize> = (0..rooms.len()).filter(|&i| rooms[i].len() >= top && top > 0).collect();
        let extra = open.iter().filter(|&&i| counts[i] == top).count();
        let own = |i: usize| (rooms[i] & self.own).len();
        let cheap = |i: usize| own(i) + (rooms[i] & self.free).len();
        open.sort_by_key(|&i| {
            let (kept, taken) = (own(i) >= top, cheap(i) < top);
            (i32::from(taken) - i32::from(kept), u32::MAX - cheap(i), i)
        });
        for (rank, &i) in open.iter().enumerate() {
            counts[i] = if rank < extra { top } else { top - 1 };
        }
        let parts = rooms.iter().zip(counts).map(|(room, count)| self.take(*room, count));
        Some(parts.fold(TpcSet::EMPTY, |set, part| set | part))
    }

    /// Of the smallest choices of GPCs with enough room, the one that keeps most of the tenant's
    /// own TPCs and takes the fewest from others. Tries every reachable sum, and drops those that
    /// are worse than another in everything.
    fn packed(&self, wanted: u32) -> Option<TpcSet> {
        let fewest = self.fewest(wanted)?;
        let rooms: Vec<TpcSet> = self.rooms().collect();
        let mut reached: Vec<Vec<Choice>> = vec![vec![]; fewest + 1];
        reached[0].push(Choice::default());
        for room in &rooms {
            for count in (0..fewest).rev() {
                let more: Vec<Choice> =
                    reached[count].iter().map(|choice| choice.with(*room, self, wanted)).collect();
                for choice in more {
                    Choice::keep(&mut reached[count + 1], choice);
                }
            }
        }
        let enough = reached[fewest].iter().filter(|choice| choice.size >= wanted);
        let best = enough.min_by_key(|choice| choice.cost(self.own.len(), wanted))?;
        // The choice needs each of these GPCs, so any choice of TPCs touches all: its own, then
        // free ones, then others'.
        let mut set = TpcSet::EMPTY;
        let kinds = [self.own, self.free, self.topology.all() - self.own - self.free - self.fixed];
        for kind in kinds {
            let mut parts: Vec<TpcSet> = rooms.iter().map(|room| *room & best.tpcs & kind).collect();
            parts.sort_by_key(|part| u32::MAX - part.len());
            for part in parts {
                set |= part.lowest(wanted - set.len());
            }
        }
        Some(set)
    }

    /// Gives the other tenants in `set` as many TPCs elsewhere, and finds the order.
    fn settle(&self, set: TpcSet, name: Option<&str>) -> Result<Compaction, PlanError> {
        let mut then: Vec<TpcSet> =
            self.others.iter().map(|tenant| tenant.set & self.topology.all()).collect();
        let now = then.clone();
        let mut free = (self.free | self.own) - set;
        // The tenant with the least choice comes first: the one with the fewest free TPCs in its
        // GPCs.
        let mut displaced: Vec<usize> = (0..then.len()).filter(|&i| !then[i].is_disjoint(&set)).collect();
        displaced.sort_by_key(|&i| (self.at_home(then[i], free).len(), i));
        for i in displaced {
            let kept = then[i] - set;
            let request = Request {
                topology: self.topology,
                holders: Vec::new(),
                own: kept,
                free: free | kept,
                share: Share::Tpcs(then[i].len()),
                placement: Placement::Packed,
            };
            let Some(chosen) = request.choose(then[i].len()) else {
                return Err(PlanError::Deadlock { tenant: self.others[i].name.clone() });
            };
            then[i] = chosen;
            free -= chosen;
        }
        let mut ways: Vec<Way> = (self.others.iter().zip(now.iter().zip(&then)))
            .map(|(tenant, (&now, &then))| Way { name: tenant.name.clone(), now, then })
            .collect();
        let moves = ways.iter().filter(|way| way.now != way.then).map(|way| Move {
            tenant: way.name.clone(),
            from: way.now - way.then,
            to: way.then - way.now,
        });
        let moves = moves.collect();
        if let Some(name) = name {
            ways.push(Way { name: name.to_owned(), now: self.own, then: set });
        }
        let taken = now.iter().chain(&then).fold(set | self.own, |all, one| all | *one);
        let idle = self.topology.all() - self.fixed - taken;
        let stores = order(&ways, self.fixed, idle).ok_or_else(|| PlanError::Deadlock {
            tenant: name.map_or_else(|| ways[0].name.clone(), ToOwned::to_owned),
        })?;
        Ok(Compaction { plan: Plan::new(self.topology, set), moves, stores })
    }

    fn at_home(&self, set: TpcSet, free: TpcSet) -> TpcSet {
        let home = self.topology.gpcs().iter().filter(|gpc| !gpc.tpcs.is_disjoint(&set));
        home.fold(TpcSet::EMPTY, |all, gpc| all | gpc.tpcs) & free
    }
}

/// GPCs that may form a packed set.
#[derive(Clone, Copy, Debug, Default)]
struct Choice {
    /// Their available TPCs.
    tpcs: TpcSet,
    /// The number of those, counted up to the number requested.
    size: u32,
    /// How many of them are the tenant's own.
    own: u32,
    /// How many are its own or free, counted up to the number requested.
    cheap: u32,
}

impl Choice {
    fn with(&self, room: TpcSet, board: &Board<'_>, wanted: u32) -> Self {
        let own = (room & board.own).len();
        Self {
            tpcs: self.tpcs | room,
            size: (self.size + room.len()).min(wanted),
            own: self.own + own,
            cheap: (self.cheap + own + (room & board.free).len()).min(wanted),
        }
    }

    /// How many TPCs change hands or places.
    fn cost(&self, own: u32, wanted: u32) -> u32 {
        let leaves = own.min(wanted) - self.own.min(wanted);
        leaves + (wanted - self.cheap)
    }

    /// Adds a choice unless one of `to` is as good in everything; then removes those that are not
    /// better than it in anything.
    fn keep(to: &mut Vec<Self>, new: Self) {
        let covers = |a: &Self, b: &Self| a.size >= b.size && a.own >= b.own && a.cheap >= b.cheap;
        if to.iter().any(|old| covers(old, &new)) {
            return;
        }
        to.retain(|old| !covers(&new, old));
        to.push(new);
    }
}
