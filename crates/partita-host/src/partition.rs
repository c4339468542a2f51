//! Which TPCs a tenant gets, which tenants make room for it, and what it can run there.
//!
//! [`partita_core`] chooses. This module decides which tenants may be moved, and moves them: by a
//! store into each tenant's limits, in an order in which no two tenants ever hold the same TPC. A
//! moved tenant uses its new TPCs from its next launch on, as after `partita set`; running kernels
//! keep their TPCs until they end.

use std::collections::BTreeSet;

use partita_core::{
    Access, Ask, Clusters, Compaction, Move, Part, Placement, Plan, PlanError, Present, Share, Store,
    Topology, TopologyError, TpcSet,
};
use partita_ledger::{FLAG_GPCS_UNPROVED, Limits, MECHANISM_MASK};
use serde::Serialize;

use crate::error::Error;
use crate::registry::{RegistryLock, Tenant, acting_user};
use crate::site::{self, Site};
use crate::time;

/// Clusters came with compute capability 9.0.
const CLUSTER_CLASS_MIN: u32 = 90;

/// A tenant's part of a GPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct GpcRow {
    /// The GPC.
    pub gpc: u8,
    /// TPCs of it that the tenant holds.
    pub tpcs: u32,
    /// TPCs that it has.
    pub tpcs_of_gpc: u32,
}

/// A partition, as dry runs show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartitionRow {
    /// Its TPCs, logical, as ranges.
    pub tpcs: String,
    /// How many SMs they have.
    pub sms: u32,
    /// Its part of each GPC; `None` if GPCs are unknown.
    pub gpcs: Option<Vec<GpcRow>>,
    /// The clusters of blocks that it can run; `None` on devices without clusters.
    pub clusters: Option<ClusterRow>,
}

/// The clusters that a partition can run, with one block on each SM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClusterRow {
    /// Blocks of the largest cluster; a larger one would never start.
    pub largest_sms: u32,
    /// How many clusters can be active at once, by their size.
    pub active: Vec<ActiveClusters>,
}

/// How many clusters of one size can be active at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ActiveClusters {
    /// Blocks of a cluster.
    pub blocks: u32,
    /// How many.
    pub clusters: u32,
}

impl PartitionRow {
    /// What a partition with these limits offers.
    ///
    /// # Errors
    /// Why they describe no device.
    pub fn of(limits: &Limits) -> Result<Self, TopologyError> {
        let topology = limits.topology()?;
        let set = TpcSet::from_words(limits.set);
        let proved = limits.flags & FLAG_GPCS_UNPROVED == 0;
        let parts = topology.gpcs().iter().map(|gpc| GpcRow {
            gpc: gpc.id,
            tpcs: (gpc.tpcs & set).len(),
            tpcs_of_gpc: gpc.tpcs.len(),
        });
        let clusters = if proved { Clusters::of(&topology, &set) } else { clusters_of_tpcs(&topology, &set) };
        let row = ClusterRow {
            largest_sms: clusters.largest_sms,
            active: clusters.iter().map(|(blocks, clusters)| ActiveClusters { blocks, clusters }).collect(),
        };
        Ok(Self {
            tpcs: set.to_string(),
            sms: set.len() * topology.sms_per_tpc(),
            gpcs: proved.then(|| parts.filter(|part| part.tpcs > 0).collect()),
            clusters: (limits.device_class >= CLUSTER_CLASS_MIN).then_some(row),
        })
    }
}

/// Without proved GPCs a cluster can rely on one TPC: each counts as a separate GPC.
fn clusters_of_tpcs(topology: &Topology, set: &TpcSet) -> Clusters {
    let sms = topology.sms_per_tpc();
    Clusters {
        largest_sms: if set.is_empty() { 0 } else { sms },
        active: Clusters::SIZES.map(|size| set.len() * (sms / size)),
    }
}

/// The TPCs that a tenant loses and gets, as commands print it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MoveRow {
    /// The tenant.
    pub tenant: String,
    /// The TPCs that it leaves, logical, as ranges.
    pub from: String,
    /// Those that it gets instead.
    pub to: String,
    /// How many TPCs that are.
    pub tpcs: u32,
}

impl From<&Move> for MoveRow {
    fn from(made: &Move) -> Self {
        Self {
            tenant: made.tenant.clone(),
            from: made.from.to_string(),
            to: made.to.to_string(),
            tpcs: made.from.len(),
        }
    }
}

/// The request, and the other tenants.
pub(crate) struct Wanted<'a> {
    pub topology: &'a Topology,
    /// Every tenant of this machine.
    pub tenants: &'a [Tenant],
    pub gpu_key: &'a str,
    /// The tenant to change; `None` for a new one.
    pub name: Option<&'a str>,
    /// `None` for an even part of what the shares of others leave.
    pub share: Option<Share>,
    pub place: Placement,
    /// Whether others make room.
    pub compact: bool,
    /// What is reserved for others: the names of the reservations, and TPCs that these have not.
    pub reserved: &'a [(String, u32)],
}

/// Plans. Tenants with a target or a goal give what they have beyond their guarantee, as far as it
/// is needed.
///
/// # Errors
/// [`Error::Plan`] in the planner's words; [`Error::DamagedTenant`].
pub(crate) fn plan(wanted: &Wanted<'_>) -> Result<Compaction, Error> {
    let present = RegistryLock::present(wanted.tenants, wanted.gpu_key)?;
    let refused = match plan_among(wanted, &present) {
        Err(error @ Error::Plan { .. }) => error,
        planned => return planned,
    };
    let most = present.iter().map(|tenant| tenant.set.len()).max().unwrap_or(0);
    let is_even = wanted.share.is_none();
    // One more tenant without a share begins with a fair part, if the guarantees of others allow
    // it.
    let first = if is_even { wanted.topology.tpc_count() / (present.len() as u32 + 1) } else { most };
    for cap in (0..=first.min(most)).rev() {
        let Some((shrinks, present)) = shrunk(wanted, &present, cap) else { break };
        match plan_among(wanted, &present) {
            Ok(planned) => {
                let stores = [shrinks, planned.stores].concat();
                return Ok(Compaction { stores, ..planned });
            }
            Err(Error::Plan { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Err(refused)
}

/// The tenants after those with a target or a goal have no more than `cap` TPCs, or their
/// guarantees, and the stores that lead there; `None` if there are no such tenants.
fn shrunk(wanted: &Wanted<'_>, present: &[Present], cap: u32) -> Option<(Vec<Store>, Vec<Present>)> {
    let named = match wanted.share {
        Some(share @ (Share::Gpcs(_) | Share::Exact(_))) => {
            partita_core::plan(wanted.topology, &[], share).ok()?.set
        }
        _ => TpcSet::EMPTY,
    };
    let (mut stores, mut after, mut is_any) = (Vec::new(), present.to_vec(), false);
    for one in &mut after {
        let mut here = wanted.tenants.iter().filter(|tenant| tenant.gpu_key == wanted.gpu_key);
        let tenant = here.find(|tenant| tenant.name_among_all() == one.name);
        let steered = tenant.filter(|tenant| tenant.is_steered() && tenant.is_kept_here());
        let Some(tenant) = steered.filter(|_| Some(one.name.as_str()) != wanted.name) else { continue };
        is_any = true;
        let tpcs = tenant.promised_tpcs().max(cap).min(one.set.len()).max(1);
        // It keeps none of those that are asked for by name, if it has as many others.
        let others = one.set - named;
        let from = if others.len() >= tpcs { others } else { one.set };
        let only = [Present { name: one.name.clone(), set: from }];
        let smaller = partita_core::replan(wanted.topology, &only, &one.name, Share::Tpcs(tpcs)).ok()?;
        if smaller.set != one.set {
            one.set = smaller.set;
            stores.push(Store { tenant: one.name.clone(), set: one.set });
        }
    }
    is_any.then_some((stores, after))
}

/// Gives a tenant another number of TPCs beside what the others have. Those without a share divide
/// what is left.
///
/// # Errors
/// [`Error::Plan`] if they are not free; [`Error::NotYours`], [`Error::DamagedTenant`].
pub(crate) fn resize(tenant: &Tenant, tenants: &[Tenant], share: Share) -> Result<(), Error> {
    let topology = tenant.limits()?.topology().map_err(|error| tenant.damaged_limits(&error.to_string()))?;
    let name = tenant.name_among_all();
    let present = RegistryLock::present(tenants, &tenant.gpu_key)?;
    let planned = plan_among(
        &Wanted {
            topology: &topology,
            tenants,
            gpu_key: &tenant.gpu_key,
            name: Some(&name),
            share: Some(share),
            place: tenant.meta()?.place,
            compact: false,
            reserved: &[],
        },
        &present,
    )?;
    // A smaller one first, so that no two tenants ever hold the same TPC.
    let now = tenant.set()?;
    let mut file = tenant.kept_limits_file()?;
    let mut put = |set: TpcSet| {
        file.update(|limits| limits.set_partition(&topology, &set))
            .map_err(|error| tenant.damaged_limits(&error.to_string()))
    };
    if planned.plan.set.len() < now.len() {
        put(planned.plan.set)?;
        return store(&planned.stores, tenants, &tenant.gpu_key, &topology);
    }
    store(&planned.stores, tenants, &tenant.gpu_key, &topology)?;
    put(planned.plan.set).map(drop)
}

/// Plans among tenants that keep what they have here.
fn plan_among(wanted: &Wanted<'_>, present: &[Present]) -> Result<Compaction, Error> {
    let &Wanted { topology, tenants, gpu_key, name, share, place, compact, reserved } = wanted;
    let here = |present: &Present| {
        let mut here = tenants.iter().filter(|other| other.gpu_key == gpu_key);
        here.find(|other| other.name_among_all() == present.name)
    };
    let place_share = |present: &[Present], share: Share| {
        let ask = Ask { share, placement: place };
        match (compact, name) {
            (true, name) => partita_core::compact(topology, present, name, ask, |tenant| {
                here(tenant).is_some_and(may_move)
            }),
            (false, Some(name)) => partita_core::replan(topology, present, name, ask).map(alone),
            (false, None) => partita_core::plan(topology, present, ask).map(alone),
        }
    };
    let beside = |present: &[Present], chosen: Option<&Compaction>| {
        let rests = |tenant: &Present| here(tenant)?.rests();
        let part = match share {
            Some(share) => Part::Share {
                name,
                plan: &move |present| chosen.cloned().map_or_else(|| place_share(present, share), Ok),
            },
            None => Part::Even(place),
        };
        partita_core::plan_beside(topology, present, &part, rests)
            .map_err(|error| refused(error, topology, tenants, gpu_key))
    };
    if reserved.is_empty() {
        return beside(present, None);
    }
    // Beside tenants that stand for the reservations, to see whether there is room. Tenants without
    // a share may then use what is reserved, until it is asked for.
    let named = match share {
        Some(share @ (Share::Gpcs(_) | Share::Exact(_))) => {
            partita_core::plan(topology, &[], share).map_or(TpcSet::EMPTY, |plan| plan.set)
        }
        _ => TpcSet::EMPTY,
    };
    let firm = present.iter().filter(|tenant| {
        Some(tenant.name.as_str()) != name && here(tenant).is_none_or(|tenant| tenant.rests().is_none())
    });
    let mut free = firm.fold(topology.all(), |free, tenant| free - tenant.set);
    let mut all = present.to_vec();
    for (name, tpcs) in reserved {
        // Beside the TPCs that are named, as far as these leave enough.
        let beside = free - named;
        let set = match beside.len().checked_sub(*tpcs) {
            Some(rest) => beside - beside.lowest(rest),
            None => beside | (free & named).lowest(tpcs - beside.len()),
        };
        free -= set;
        all.push(Present { name: name.clone(), set });
    }
    let room = beside(&all, None)?;
    match share {
        Some(_) => beside(present, Some(&Compaction { stores: Vec::new(), ..room })),
        None => beside(present, None),
    }
}

/// Free TPCs without as many as are reserved. If that leaves none, all of them: the planner names
/// the reservations.
pub(crate) fn unreserved(free: TpcSet, reserved: &[(String, u32)]) -> TpcSet {
    let kept: u32 = reserved.iter().map(|(_, tpcs)| tpcs).sum();
    match free.len().saturating_sub(kept) {
        0 => free,
        left => free.lowest(left),
    }
}

/// Divides what tenants share of every GPU again, after some were changed or have left: the TPCs
/// of those without a share, task slots, and memory. The lock is one to plan.
///
/// # Errors
/// [`Error::Plan`], [`Error::DamagedTenant`], and those of [`RegistryLock::tenants`].
pub(crate) fn divide(lock: &RegistryLock<'_>) -> Result<(), Error> {
    level(&lock.tenants()?)?;
    lock.divide()
}

/// The same after a tenant has ended: those that take turns beside partitions get what it had, too.
/// (A partition that was made smaller has made room for another one.)
///
/// # Errors
/// As [`divide`].
pub(crate) fn divide_after_end(lock: &RegistryLock<'_>) -> Result<(), Error> {
    widen(&lock.tenants()?)?;
    divide(lock)
}

/// Gives the tenants that take turns beside partitions what these do not have. What a reservation
/// holds stays free, and a tenant without masks has all.
fn widen(tenants: &[Tenant]) -> Result<(), Error> {
    let is_mine = |tenant: &&Tenant| {
        let is_masked = tenant.limits().is_ok_and(|limits| limits.mechanism == MECHANISM_MASK);
        is_masked && time::takes_turns(tenant) && tenant.is_kept_here()
    };
    let mine: Vec<&Tenant> = tenants.iter().filter(is_mine).collect();
    if mine.is_empty() {
        return Ok(());
    }
    let rules = site::present_rules()?;
    for tenant in mine {
        let (limits, held) = (tenant.limits()?, tenant.set()?);
        let topology = limits.topology().map_err(|error| tenant.damaged_limits(&error.to_string()))?;
        let reserved = rules.reserved_for_others(&Site {
            topology: &topology,
            gpu: &tenant.meta()?.gpu,
            gpu_key: &tenant.gpu_key,
            memory_bytes: limits.memory_total_bytes,
            driver_bytes: limits.driver_allowance_bytes,
            tenants,
            changed: Some(tenant),
        });
        let is_firm =
            |other: &&Tenant| other.gpu_key == tenant.gpu_key && other.counts() && !time::takes_turns(other);
        let firm = tenants.iter().filter(is_firm).filter_map(|other| other.set().ok());
        let left = unreserved(topology.all() - firm.fold(TpcSet::EMPTY, |all, set| all | set), &reserved);
        if left != held && (held - left).is_empty() {
            let store = Store { tenant: tenant.name_among_all(), set: left };
            self::store(&[store], tenants, &tenant.gpu_key, &topology)?;
        }
    }
    Ok(())
}

/// Gives the tenants without a share of each GPU even parts of what the others leave.
fn level(tenants: &[Tenant]) -> Result<(), Error> {
    let gpus: BTreeSet<&str> = tenants
        .iter()
        .filter(|tenant| tenant.rests().is_some())
        .map(|tenant| tenant.gpu_key.as_str())
        .collect();
    for gpu_key in gpus {
        let here = || tenants.iter().filter(|tenant| tenant.gpu_key == gpu_key);
        let Some(first) = here().find(|tenant| tenant.rests().is_some()) else { continue };
        let topology =
            first.limits()?.topology().map_err(|error| first.damaged_limits(&error.to_string()))?;
        let present = RegistryLock::present(tenants, gpu_key)?;
        let rests = |present: &Present| here().find(|one| one.name_among_all() == present.name)?.rests();
        let stores = partita_core::level(&topology, &present, rests)
            .map_err(|error| refused(error, &topology, tenants, gpu_key))?;
        store(&stores, tenants, gpu_key, &topology)?;
    }
    Ok(())
}

/// The refusal with the commands by which the caller can make room.
pub(crate) fn refused(error: PlanError, topology: &Topology, tenants: &[Tenant], gpu_key: &str) -> Error {
    let own = |name: &str| {
        let mut here = tenants.iter().filter(|tenant| tenant.gpu_key == gpu_key && tenant.name == name);
        here.find(|tenant| tenant.user == acting_user() && tenant.is_own())
    };
    let access = |name: &str| match own(name) {
        Some(tenant) if time::takes_turns(tenant) => Access::End,
        Some(_) => Access::Shrink,
        None if tenants.iter().any(|tenant| tenant.name_among_all() == name) => Access::Nothing,
        None => Access::Reserved,
    };
    let end = |name: &str| own(name).map_or("kill", Tenant::end_command);
    Error::Plan { reason: error.with_remedy(topology, access, end).to_string() }
}

fn alone(plan: Plan) -> Compaction {
    Compaction { plan, moves: Vec::new(), stores: Vec::new() }
}

/// Whether a tenant was promised the very TPCs that it has.
pub(crate) fn has_named(tenant: &Tenant) -> bool {
    let share = tenant.meta.as_ref().ok().and_then(|meta| meta.share.as_deref());
    let share = share.and_then(|share| share.parse().ok());
    matches!(share, Some(Share::Gpcs(_) | Share::Exact(_)))
}

/// Whether a tenant makes room for others: it is the caller's to change, was promised no TPCs by
/// name, and has its TPCs alone.
fn may_move(tenant: &Tenant) -> bool {
    tenant.check_yours().is_ok() && !has_named(tenant) && !time::takes_turns(tenant)
}

/// Moves the tenants of one GPU into fewer GPCs, and returns the moves.
///
/// # Errors
/// [`Error::Plan`], [`Error::DamagedTenant`].
pub(crate) fn repack(tenants: &[Tenant], gpu_key: &str) -> Result<Vec<MoveRow>, Error> {
    let present = RegistryLock::present(tenants, gpu_key)?;
    let here = |name: &str| {
        tenants.iter().find(|tenant| tenant.gpu_key == gpu_key && tenant.name_among_all() == name)
    };
    let is_masked = |tenant: &&Tenant| {
        tenant.gpu_key == gpu_key
            && tenant.is_own()
            && tenant.limits().is_ok_and(|limits| limits.mechanism == MECHANISM_MASK)
    };
    let Some(first) = tenants.iter().find(is_masked) else { return Ok(Vec::new()) };
    let limits = first.limits()?;
    if limits.flags & FLAG_GPCS_UNPROVED != 0 {
        // Without known GPCs there is nothing to pack.
        return Ok(Vec::new());
    }
    let topology = limits.topology().map_err(|error| first.damaged_limits(&error.to_string()))?;
    let is_packed = |name: &str| {
        let place = here(name).and_then(|tenant| tenant.meta().ok()).map(|meta| meta.place);
        place != Some(Placement::Spread)
    };
    let planned = partita_core::repack(
        &topology,
        &present,
        |tenant| here(&tenant.name).is_some_and(may_move),
        |tenant| is_packed(&tenant.name),
    );
    let planned = planned.map_err(|error| refused(error, &topology, tenants, gpu_key))?;
    store(&planned.stores, tenants, gpu_key, &topology)?;
    Ok(planned.moves.iter().map(MoveRow::from).collect())
}

/// Gives the tenants of one GPU other sets, one store after the other, in the order planned.
///
/// # Errors
/// [`Error::DamagedTenant`]. The stores before it hold, and no two tenants overlap.
pub(crate) fn store(
    stores: &[Store],
    tenants: &[Tenant],
    gpu_key: &str,
    topology: &Topology,
) -> Result<(), Error> {
    for Store { tenant, set } in stores {
        // Those of other users have no share, and in system mode root divides what is left.
        let mut here = tenants.iter().filter(|other| other.gpu_key == gpu_key && other.is_kept_here());
        let Some(tenant) = here.find(|other| other.name_among_all() == *tenant) else { continue };
        let damaged = |error: partita_ledger::LedgerError| tenant.damaged_limits(&error.to_string());
        let mut file = tenant.kept_limits_file()?;
        file.update(|limits| limits.set_partition(topology, set)).map_err(damaged)?;
    }
    Ok(())
}

/// Refuses a placement for a share that names its TPCs, and placements by unknown GPCs.
///
/// # Errors
/// [`Error::NotOffered`] with the alternative.
pub(crate) fn check_place(
    place: Option<Placement>,
    share: Option<&Share>,
    gpcs_proved: bool,
) -> Result<(), Error> {
    let Some(place) = place else { return Ok(()) };
    match share {
        Some(share @ (Share::Gpcs(_) | Share::Exact(_))) => Err(Error::NotOffered {
            option: format!("--place beside --sm {share}"),
            reason: "the share names its TPCs, so there is nothing to choose; leave --place out".to_owned(),
        }),
        _ if place == Placement::Spread && !gpcs_proved => Err(Error::NotOffered {
            option: "--place spread".to_owned(),
            reason: "which TPCs share a GPC is not proved on this GPU; name TPCs with --sm tpc:0-9"
                .to_owned(),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(class: u32, flags: u32, set: &str) -> Limits {
        let mut limits =
            Limits { device_class: class, sms_per_tpc: 2, tpc_count: 18, flags, ..Limits::default() };
        for tpc in 0..18u16 {
            limits.gpc_of_logical[usize::from(tpc)] = (tpc % 2) as u8;
            limits.physical_of_logical[usize::from(tpc)] = tpc;
        }
        limits.set = set.parse::<TpcSet>().unwrap().to_words();
        limits
    }

    fn clusters(limits: &Limits) -> (u32, Vec<(u32, u32)>) {
        let row = PartitionRow::of(limits).unwrap().clusters.unwrap();
        (row.largest_sms, row.active.iter().map(|one| (one.blocks, one.clusters)).collect())
    }

    #[test]
    fn a_partition_tells_what_clusters_it_runs() {
        let row = PartitionRow::of(&limits(90, 0, "0-11,16")).unwrap();
        assert_eq!((row.sms, row.tpcs.as_str()), (26, "0-11,16"));
        let parts: Vec<_> =
            row.gpcs.unwrap().iter().map(|part| (part.gpc, part.tpcs, part.tpcs_of_gpc)).collect();
        assert_eq!(parts, [(0, 7, 9), (1, 6, 9)]);
        assert_eq!(clusters(&limits(90, 0, "0-11,16")), (14, vec![(2, 13), (4, 6), (8, 2), (16, 0)]));
        assert_eq!(PartitionRow::of(&limits(80, 0, "0-11,16")).unwrap().clusters, None);
    }

    #[test]
    fn without_proved_gpcs_a_cluster_is_promised_one_tpc() {
        let limits = limits(90, FLAG_GPCS_UNPROVED, "0-11");
        assert_eq!(PartitionRow::of(&limits).unwrap().gpcs, None);
        assert_eq!(clusters(&limits), (2, vec![(2, 12), (4, 0), (8, 0), (16, 0)]));
    }

    #[test]
    fn only_what_is_chosen_can_be_placed() {
        let named: Share = "gpc:0".parse().unwrap();
        let counted: Share = "50%".parse().unwrap();
        let refused =
            |place, share: &Share, proved| check_place(place, Some(share), proved).unwrap_err().to_string();
        assert!(refused(Some(Placement::Spread), &named, true).contains("--sm gpc:0"));
        assert!(refused(Some(Placement::Spread), &counted, false).contains("not proved"));
        for (place, share, proved) in [
            (None, &named, false),
            (Some(Placement::Packed), &counted, false),
            (Some(Placement::Spread), &counted, true),
        ] {
            check_place(place, Some(share), proved).unwrap();
        }
    }
}
