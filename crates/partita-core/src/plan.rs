//! [`plan`] and [`replan`]: which TPCs a tenant gets.

mod clusters;
mod compact;
mod error;
mod order;
mod pack;
mod remedy;
mod repack;
mod rest;
mod spread;
#[cfg(test)]
mod tests;

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

pub use clusters::Clusters;
pub use compact::{Compaction, Move, compact};
pub use error::{Holder, NoneFree, NotEnough, PlanError, Remedy, Resize, Taken};
pub use order::Store;
use pack::{Room, pack};
pub use remedy::Access;
pub use repack::{Repacking, repack};
pub use rest::{Part, level, plan_beside};
use spread::spread;

use crate::{Share, ShareError, Topology, TpcSet, words};

/// A present tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// Its name.
    pub name: String,
    /// The logical TPCs that it holds.
    pub set: TpcSet,
}

words! {
    /// How TPCs lie over the GPCs.
    pub enum Placement: Packed {
        /// In as few GPCs as possible: allows the largest clusters and leaves whole GPCs free for
        /// others.
        Packed => "packed",
        /// Evenly over as many GPCs as possible.
        // The tenant's TPCs share each GPC's own resources (its path to memory, its raster and
        // launch hardware) as little as possible.
        Spread => "spread",
    }
}

/// A tenant's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// How much.
    pub share: Share,
    /// Where; without effect if the share names its TPCs.
    pub placement: Placement,
}

impl From<Share> for Ask {
    fn from(share: Share) -> Self {
        Self { share, placement: Placement::Packed }
    }
}

impl From<&Share> for Ask {
    fn from(share: &Share) -> Self {
        Self::from(*share)
    }
}

/// The TPCs that a tenant gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The TPCs, logical.
    pub set: TpcSet,
    /// How many of them lie in each GPC that they touch, by GPC id.
    pub gpcs: Vec<(u8, u32)>,
    /// The most SMs in one GPC: how many SMs a cluster of blocks can use.
    pub max_cluster_sms: u32,
    /// The clusters of blocks that it can run.
    pub clusters: Clusters,
}

impl Plan {
    fn new(topology: &Topology, set: TpcSet) -> Self {
        let counts = topology.gpcs().iter().map(|gpc| (gpc.id, (gpc.tpcs & set).len()));
        Self {
            set,
            gpcs: counts.filter(|&(_, count)| count > 0).collect(),
            max_cluster_sms: topology.max_cluster_sms(&set),
            clusters: Clusters::of(topology, &set),
        }
    }
}

/// Chooses TPCs for a new tenant, disjoint from those of the tenants `present`.
///
/// A share that names its TPCs ([`Share::Gpcs`], [`Share::Exact`]) gets those. For other shares the
/// planner chooses exactly [`Share::tpcs_wanted`] of the free TPCs. No present tenant moves;
/// [`compact`] plans with moves. The search is exact.
///
/// # Packed by GPC
/// The usual placement, because a cluster of blocks needs its SMs in one GPC and never starts
/// without them. The planner takes the choice that is best by the following, in this order.
///
/// 1. It touches the fewest GPCs.
/// 2. It touches the fewest wholly free GPCs, so that these stay whole for later tenants.
/// 3. It leaves the fewest free TPCs in the GPCs that it touches (best fit).
/// 4. It has the most SMs in one GPC: the largest cluster that the tenant can run.
/// 5. The GPCs have the lowest ids, compared from the lowest up.
/// 6. All remaining free TPCs are in one GPC, the one with the fewest free TPCs (of several, the
///    one with the highest id), and there the tenant has the lowest TPCs.
///
/// # Spread over GPCs
/// With [`Placement::Spread`], in this order:
///
/// 1. The numbers of TPCs by GPC are as even as possible: the largest is the least possible, then
///    the second, and so on.
/// 2. The remaining free TPCs are as even as possible, in the same sense, over the GPCs that the
///    first point leaves open.
/// 3. The GPCs that give one more have the lowest ids, and each gives its lowest free TPCs.
///
/// The same arguments always give the same plan. A plan exists if and only if the named TPCs, or as
/// many as requested, are free.
///
/// # Errors
/// [`PlanError`] names the request, the free TPCs, the holders of the rest, and what would fit.
///
/// ```
/// use partita_core::{Present, Topology, Tpc, plan};
///
/// // Eight GPCs, two of nine TPCs and six of eight, numbered round-robin.
/// let place = |gpc: u8, i: u16| Tpc { gpc, physical: 9 * u16::from(gpc) + i };
/// let rounds = (0..9).flat_map(|i| (0..8).filter(move |&gpc| i < 8 || gpc < 2).map(move |gpc|
/// place(gpc, i)));
/// let h200 = Topology::new(2, rounds.collect::<Vec<_>>()).unwrap();
///
/// // Half of it is four whole GPCs, and so is the other half.
/// let serve = plan(&h200, &[], &"50%".parse().unwrap()).unwrap();
/// assert_eq!(serve.gpcs, [(0, 9), (2, 8), (3, 8), (4, 8)]);
/// assert_eq!(serve.max_cluster_sms, 18);
///
/// let mut present = vec![Present { name: "serve".into(), set: serve.set }];
/// let train = plan(&h200, &present, &"33tpc".parse().unwrap()).unwrap();
/// assert_eq!(train.gpcs, [(1, 9), (5, 8), (6, 8), (7, 8)]);
///
/// present.push(Present { name: "train".into(), set: train.set - "1".parse().unwrap() });
/// let error = plan(&h200, &present, &"5%".parse().unwrap()).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "5% (3 TPCs, 6 SMs) does not fit: 1 of 66 TPCs is free; \
///      tenant `serve` holds 33 TPCs (0,2-4,8,10-12,16,...), \
///      tenant `train` holds 32 TPCs (5-7,9,13-15,17,...); \
///      ask for `--sm 3%` or less, or shrink or end a tenant",
/// );
/// ```
pub fn plan(topology: &Topology, present: &[Present], ask: impl Into<Ask>) -> Result<Plan, PlanError> {
    let Ask { share, placement } = ask.into();
    let holders = holders(topology, present.iter());
    let free = holders.iter().fold(topology.all(), |free, holder| free - holder.set);
    Request { topology, holders, own: TpcSet::EMPTY, free, share, placement }.place()
}

/// Every free TPC, for a tenant that asks for no share.
///
/// # Errors
/// [`PlanError::NoneFree`] names the holders.
pub fn all_free(topology: &Topology, present: &[Present]) -> Result<TpcSet, PlanError> {
    let holders = holders(topology, present.iter());
    let free = holders.iter().fold(topology.all(), |free, holder| free - holder.set);
    if free.is_empty() {
        let remedy = Remedy::Unknown;
        return Err(PlanError::NoneFree(Box::new(NoneFree { all: topology.all(), holders, remedy })));
    }
    Ok(free)
}

/// Chooses TPCs for a present tenant that requests another share.
///
/// Its own TPCs count as free. It keeps as many of them as it can:
/// - with a smaller share it gets a part of its TPCs, chosen as in [`plan`];
/// - with a larger share it keeps all of its TPCs. Packed, it first grows in the GPCs that it
///   touches: first where that makes its largest cluster larger, then where the fewest are free;
///   the rest comes from the other GPCs as in [`plan`]. Spread, it grows so that its numbers of
///   TPCs by GPC become as even as they can.
///
/// # Errors
/// As [`plan`]; and a name that is not among those `present`.
pub fn replan(
    topology: &Topology,
    present: &[Present],
    name: &str,
    ask: impl Into<Ask>,
) -> Result<Plan, PlanError> {
    let Ask { share, placement } = ask.into();
    if !present.iter().any(|tenant| tenant.name == name) {
        let present = present.iter().map(|tenant| tenant.name.clone()).collect();
        return Err(PlanError::UnknownTenant { name: name.to_owned(), present });
    }
    let own = present.iter().filter(|tenant| tenant.name == name);
    let own = own.fold(TpcSet::EMPTY, |own, tenant| own | tenant.set) & topology.all();
    let holders = holders(topology, present.iter().filter(|tenant| tenant.name != name));
    let free = holders.iter().fold(topology.all(), |free, holder| free - holder.set);
    // TPCs that another tenant claims too are no longer its own.
    Request { topology, holders, own: own & free, free, share, placement }.place()
}

fn holders<'a>(topology: &Topology, tenants: impl Iterator<Item = &'a Present>) -> Vec<Holder> {
    tenants
        .map(|tenant| Holder {
            name: tenant.name.clone(),
            set: tenant.set & topology.all(),
            is_reservation: false,
        })
        .filter(|holder| !holder.set.is_empty())
        .collect()
}

/// The request, and the device's state.
struct Request<'a> {
    topology: &'a Topology,
    /// The tenants that keep their TPCs.
    holders: Vec<Holder>,
    /// The TPCs that the tenant already has, a part of `free`.
    own: TpcSet,
    /// The TPCs that no tenant holds.
    free: TpcSet,
    share: Share,
    placement: Placement,
}

impl Request<'_> {
    fn place(self) -> Result<Plan, PlanError> {
        let wanted = match self.share.tpcs_wanted(self.topology) {
            Ok(wanted) => wanted,
            Err(ShareError::TooMany { wanted_tpcs, .. }) => return Err(self.not_enough(wanted_tpcs)),
            Err(error) => return Err(error.into()),
        };
        let set = match self.share {
            Share::Gpcs(_) | Share::Exact(_) => {
                let named = self.share.named_tpcs(self.topology)?;
                if !named.is_subset(&self.free) {
                    return Err(self.taken(named));
                }
                named
            }
            Share::Percent(_) | Share::Sms(_) | Share::Tpcs(_) => {
                let Some(set) = self.choose(wanted) else { return Err(self.not_enough(wanted)) };
                set
            }
        };
        Ok(Plan::new(self.topology, set))
    }

    fn choose(&self, wanted: u32) -> Option<TpcSet> {
        if self.placement == Placement::Spread {
            let (kept, usable) =
                if wanted <= self.own.len() { (TpcSet::EMPTY, self.own) } else { (self.own, self.free) };
            return spread(self.topology.gpcs().iter().map(|gpc| gpc.tpcs), kept, usable, wanted);
        }
        if wanted <= self.own.len() {
            return pack(&self.rooms(self.own), wanted);
        }
        let mut set = self.own;
        let mut missing = wanted - set.len();
        let mut touched: Vec<_> = self.rooms(self.free).into_iter().collect();
        touched.retain(|room| !room.tpcs.is_disjoint(&self.own));
        // Each round fills one GPC, or ends with nothing missing.
        while missing > 0 && !touched.is_empty() {
            let (mut best, mut best_key) = (0, None);
            for (i, room) in touched.iter().enumerate() {
                let growth = (room.tpcs - set).len();
                let key = (room.tpcs.len() - growth + growth.min(missing), u32::MAX - growth);
                if Some(key) > best_key {
                    (best, best_key) = (i, Some(key));
                }
            }
            let room = touched.remove(best);
            let more = (room.tpcs - set).lowest(missing);
            missing -= more.len();
            set |= more;
        }
        let mut others = self.rooms(self.free);
        others.retain(|room| room.tpcs.is_disjoint(&self.own));
        Some(set | pack(&others, missing)?)
    }

    /// The room in each GPC that `usable` reaches, by GPC id.
    fn rooms(&self, usable: TpcSet) -> Vec<Room> {
        let gpcs = self.topology.gpcs().iter();
        let rooms = gpcs.map(|gpc| Room { tpcs: gpc.tpcs & usable, whole: gpc.tpcs.is_subset(&self.free) });
        rooms.filter(|room| !room.tpcs.is_empty()).collect()
    }

    fn not_enough(self, wanted_tpcs: u32) -> PlanError {
        let free_tpcs = self.free.len();
        let fits = match self.share {
            _ if free_tpcs == 0 => None,
            Share::Percent(_) => Share::percent_of_tpcs(free_tpcs, self.topology),
            Share::Sms(_) => Some(Share::Sms(free_tpcs * self.topology.sms_per_tpc())),
            _ => Some(Share::Tpcs(free_tpcs)),
        };
        PlanError::NotEnough(Box::new(NotEnough {
            asked: self.share,
            wanted_tpcs,
            sms_per_tpc: self.topology.sms_per_tpc(),
            tpc_count: self.topology.tpc_count(),
            free: self.free,
            own: self.own,
            holders: self.holders,
            fits,
            remedy: Remedy::Unknown,
        }))
    }

    fn taken(self, named: TpcSet) -> PlanError {
        let mut fits = Vec::new();
        let as_many = named.len().min(self.free.len());
        if let Share::Gpcs(asked) = self.share {
            // Whole GPCs, as many as requested; of the requested ones if they are free.
            let whole = self.topology.gpcs().iter().filter(|gpc| gpc.tpcs.is_subset(&self.free));
            let mut ids: Vec<u8> = whole.map(|gpc| gpc.id).collect();
            ids.sort_by_key(|&id| (!asked.contains(id), id));
            ids.truncate(asked.len() as usize);
            if !ids.is_empty() {
                fits.push(Share::Gpcs(ids.into_iter().collect()));
            }
        } else if !(named & self.free).is_empty() {
            fits.push(Share::Exact(named & self.free));
        }
        if as_many > 0 {
            fits.push(Share::Tpcs(as_many));
        }
        let mut conflicts = self.holders;
        conflicts.retain(|holder| !holder.set.is_disjoint(&named));
        PlanError::Taken(Box::new(Taken {
            asked: self.share,
            named,
            conflicts,
            fits,
            remedy: Remedy::Unknown,
        }))
    }
}
