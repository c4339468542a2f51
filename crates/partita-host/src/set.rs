//! `partita set`: other limits for a tenant that runs.
//!
//! The new limits hold from the tenant's next launch and its next allocation
//! on. Kernels that run keep the TPCs that they began with.

use std::collections::BTreeSet;

use partita_core::slo::{Goal, Slo};
use partita_core::{ByteSize, Compaction, Share, Topology, TpcSet};
use partita_ledger::{FLAG_GATED, FLAG_TIMED, LedgerError, Limits, LimitsFile, MECHANISM_NONE};
use serde::Serialize;

use crate::error::Error;
use crate::gpu::Selector;
use crate::gpus::{self, Selectors};
use crate::limits::{self, LimitSet};
use crate::partition::{self, ClusterRow, MoveRow, PartitionRow, Wanted};
use crate::policy::{Decided, Kept, Wish};
use crate::registry::{Isolation, Registry, RegistryLock, Tenant, acting_user, memory};
use crate::site::{self, Site};
use crate::slo;
use crate::time::{self, TimeRow};

/// Which tenant.
#[derive(Debug, Clone)]
pub enum Whose {
    /// The one of this name.
    Name(String),
    /// The one that this process is of.
    Pid(u32),
}

impl Whose {
    /// Finds it for a calling user: its part on each of its GPUs.
    ///
    /// # Errors
    /// [`Error::NoSuchTenant`], [`Error::NoTenantOfProcess`], [`Error::Io`].
    pub fn find(&self, lock: &RegistryLock<'_>, user: u32) -> Result<Vec<Tenant>, Error> {
        match self {
            Self::Name(name) => lock.tenant_of_user(name, user),
            Self::Pid(pid) => lock.tenant_of(*pid),
        }
    }
}

/// The changes. `None` leaves a limit unchanged.
#[derive(Debug, Clone)]
pub struct SetRequest {
    /// The tenant.
    pub whose: Whose,
    /// `--gpu`: on which of its GPUs; `None` for all.
    pub gpus: Option<Selectors>,
    /// The new limits: those that can change while the tenant runs.
    pub limits: LimitSet,
    /// `--compact`: others make room, as few as need be.
    pub compact: bool,
}

impl SetRequest {
    /// A request that changes nothing.
    pub fn new(whose: Whose) -> Self {
        Self { whose, gpus: None, limits: LimitSet::default(), compact: false }
    }

    /// Refuses `--compact` that another user's daemon is asked for, with the command that the
    /// owner can type instead.
    fn check_compact(&self, user: u32) -> Result<(), Error> {
        if !self.compact || user == 0 || user == acting_user() {
            return Ok(());
        }
        let mut words = vec!["partita set".to_owned()];
        words.push(match &self.whose {
            Whose::Name(name) => name.clone(),
            Whose::Pid(pid) => format!("--pid {pid}"),
        });
        words.extend(self.gpus.iter().map(|gpus| format!("--gpu {gpus}")));
        words.push(self.limits.to_string());
        words.retain(|word| !word.is_empty());
        words.push("--compact".to_owned());
        Err(Error::NotOffered {
            option: "--compact".to_owned(),
            reason: format!(
                "it may move tenants of others, and this is asked of another user's daemon; use `{}`",
                words.join(" ")
            ),
        })
    }
}

/// The limits on one GPU as they are now.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SetOutcome {
    /// The tenant.
    pub name: String,
    /// The GPU's short name.
    pub gpu: String,
    /// Its TPCs, logical, as ranges.
    pub tpcs: String,
    /// How many SMs they have.
    pub sms: u32,
    /// Its share as it was asked for, and how far it borrows: `10%..40tpc`.
    pub sm: Option<String>,
    /// Its memory quota in bytes, if it has one.
    pub memory_quota_bytes: Option<u64>,
    /// Its use of it, in bytes.
    pub memory_used_bytes: u64,
    /// Its share of time, if it has one.
    pub time: Option<TimeRow>,
    /// The clusters of blocks that it can run; `None` on devices without clusters.
    pub clusters: Option<ClusterRow>,
    /// The tenants that made room.
    pub moves: Vec<MoveRow>,
    /// All of its limits that `partita set` can change.
    #[serde(skip)]
    pub limits: LimitSet,
}

/// Changes a tenant's limits: on each of its GPUs that the request names, or on none. One outcome a
/// GPU.
///
/// # Errors
/// [`Error::NoSuchTenant`], [`Error::NoTenantOfProcess`], [`Error::NotOnGpu`], [`Error::NotYours`],
/// [`Error::Plan`], the quota errors, and [`Error::DamagedTenant`]; the limits are unchanged then.
pub fn set(registry: &Registry, request: &SetRequest) -> Result<Vec<SetOutcome>, Error> {
    set_for(registry, request, acting_user())
}

/// The same for another calling user, if both that user and the current one may do it.
///
/// # Errors
/// As [`set`]; [`Error::NotOffered`] for `--compact`, which may move tenants of other users.
pub fn set_for(registry: &Registry, request: &SetRequest, user: u32) -> Result<Vec<SetOutcome>, Error> {
    request.check_compact(user)?;
    request.gpus.as_ref().map_or(Ok(()), gpus::check_no_choice)?;
    let lock = registry.lock_to_plan()?;
    let tenant = request.whose.find(&lock, user)?;
    tenant.iter().try_for_each(|part| part.check_of(user))?;
    let several = tenant.len() > 1;
    let parts = meant(tenant, request.gpus.as_ref())?;
    let tenants = lock.tenants()?;
    for part in &parts {
        slo::check_multiple(&request.limits, time::takes_turns(part), registry.is_system())?;
    }
    let changes = parts.iter().map(|part| {
        Change::plan(part, request, &tenants).map_err(|error| match several {
            true => error.on_gpu(part.gpu_label()),
            false => error,
        })
    });
    // All are planned, and all files open, before the first is changed.
    let changes = changes.collect::<Result<Vec<_>, Error>>()?;
    if slo::is_asked(&request.limits) {
        parts.iter().try_for_each(|part| lock.make_control(&part.gpu_key))?;
    }
    let outcomes = changes.into_iter().map(|change| change.make(request, &tenants)).collect();
    // Whatever has changed: tenants may have ended without a command that gave their part away.
    partition::divide(&lock)?;
    outcomes
}

/// The parts of a tenant that `--gpu` means.
fn meant(tenant: Vec<Tenant>, selectors: Option<&Selectors>) -> Result<Vec<Tenant>, Error> {
    let Some(Selectors::List(list)) = selectors else { return Ok(tenant) };
    let is = |part: &Tenant, selector: &Selector| part.meta.as_ref().is_ok_and(|meta| meta.gpu.is(selector));
    let unmet = list.iter().find(|selector| tenant.iter().filter(|part| is(part, selector)).count() != 1);
    if let (Some(selector), Some(first)) = (unmet, tenant.first()) {
        let present: Vec<&str> = tenant.iter().map(Tenant::gpu_label).collect();
        return Err(Error::NotOnGpu {
            name: first.name.clone(),
            wanted: selector.to_string(),
            present: present.join(", "),
        });
    }
    Ok(tenant.into_iter().filter(|part| list.iter().any(|selector| is(part, selector))).collect())
}

/// A change of the limits on one GPU, ready to be made.
struct Change<'a> {
    part: &'a Tenant,
    topology: Topology,
    planned: Option<Compaction>,
    borrow_tpcs_max: u64,
    file: LimitsFile,
    /// The memory that is reserved on the GPU.
    kept: Vec<Kept>,
}

impl<'a> Change<'a> {
    fn plan(part: &'a Tenant, request: &SetRequest, tenants: &[Tenant]) -> Result<Self, Error> {
        part.check_yours()?;
        let before = part.limits()?;
        let mut wanted = request.limits;
        let steering = Steering::after(part, &wanted);
        if steering.ends && wanted.share.is_none() {
            // It has its share again.
            wanted.share = part.meta()?.share.as_deref().and_then(|share| share.parse().ok());
        }
        if wanted.share.is_some() && time::takes_turns(part) {
            return Err(Error::NotOffered {
                option: "--sm".to_owned(),
                reason: format!(
                    "tenant {} shares its compute units with others, in turns; change its --time, or start \
                     it with `partita run --sm`",
                    part.name
                ),
            });
        }
        if (wanted.share.is_some() || request.compact) && before.mechanism == MECHANISM_NONE {
            return Err(Error::NotOffered {
                option: "--sm".to_owned(),
                reason: format!(
                    "tenant {} has no partition, and its launches carry no mask; start it again with a share of compute units",
                    part.name
                ),
            });
        }
        let topology = before.topology().map_err(|error| part.damaged_limits(&error.to_string()))?;
        let gpcs_proved = before.flags & partita_ledger::FLAG_GPCS_UNPROVED == 0;
        let rules = site::present_rules()?;
        let site = Site {
            topology: &topology,
            gpu: &part.meta()?.gpu,
            gpu_key: &part.gpu_key,
            memory_bytes: before.memory_total_bytes,
            driver_bytes: before.driver_allowance_bytes,
            tenants,
            changed: Some(part),
        };
        let wish = Wish {
            share: wanted.share,
            up_to: wanted.up_to,
            memory: wanted.memory,
            place: wanted.place,
            priority: wanted.priority,
            steered: None,
            is_joining: false,
            takes_turns: time::takes_turns(part),
            is_change: true,
        };
        let Decided { share, memory, place } = rules.decide(&site, &wish)?;
        wanted = LimitSet { share, memory, place, ..wanted };
        limits::check_share(wanted.share.as_ref(), gpcs_proved)?;
        partition::check_place(wanted.place, wanted.share.as_ref(), gpcs_proved)?;
        let planned = match wanted.share.or_else(|| request.compact.then(|| share_of(part, before))) {
            Some(share) => Some(partition::plan(&Wanted {
                topology: &topology,
                tenants,
                gpu_key: &part.gpu_key,
                name: Some(&part.name_among_all()),
                share: Some(share),
                place: wanted
                    .place
                    .unwrap_or_else(|| part.meta().map_or_else(|_| Default::default(), |meta| meta.place)),
                compact: request.compact,
                reserved: &rules.reserved_for_others(&site),
            })?),
            None => None,
        };
        let kept = rules.kept_memory(&site);
        memory_wanted(part, before, &wanted, &kept)?
            .into_iter()
            .try_for_each(|memory| memory.check(tenants))?;
        if let Some(priority) = wanted.priority.filter(|_| before.flags & FLAG_GATED == 0) {
            return Err(Error::NotOffered {
                option: format!("--priority {priority}"),
                reason: format!(
                    "tenant {} was started without a priority, and its launches pass no gate; start it with \
                     `partita run --priority high` or `low`, then it can be changed",
                    part.name
                ),
            });
        }
        let option = match (wanted.time, wanted.time_policy) {
            (Some(share), _) => Some(format!("--time {share}")),
            (None, policy) => policy.map(|policy| format!("--time-policy {policy}")),
        };
        if let Some(option) = option.filter(|_| before.flags & FLAG_TIMED == 0) {
            return Err(Error::NotOffered {
                option,
                reason: format!(
                    "tenant {} was started without a share of time, and its launches are not measured; start it with \
                     `partita run --time 100%` or less, then it can be changed",
                    part.name
                ),
            });
        }
        let mut changed = before.clone();
        if let Some(planned) = &planned {
            changed.set_partition(&topology, &planned.plan.set);
        }
        wanted.put(&mut changed);
        // Without a description of the tenant, its processes may be clients of MPS.
        let isolation = part.meta().map_or(Isolation::Shared, |meta| meta.isolation);
        limits::ceiling::put(&wanted, &topology, isolation, &mut changed)?;
        let had_ceiling = before.borrow_tpcs_max != 0 || part.meta().is_ok_and(|meta| meta.has_ceiling);
        if changed.borrow_tpcs_max != 0 && !had_ceiling {
            return Err(Error::NotOffered {
                option: "--sm with a ceiling".to_owned(),
                reason: format!(
                    "tenant {} was started without one, and its launches do not look for idle TPCs; start \
                     it with `partita run --sm 30%..100%`, then both figures can be changed",
                    part.name
                ),
            });
        }
        if steering.is_on {
            let meta = part.meta()?;
            let share = wanted.share.or_else(|| meta.share.as_deref()?.parse().ok());
            let asked = LimitSet { share, slo: steering.slo, goal: steering.goal, ..wanted };
            slo::check_gpus(&asked, meta.all_gpus().len(), meta.is_prepared())?;
            slo::check(&asked, &changed, isolation)?;
            let others =
                tenants.iter().filter(|other| other.gpu_key == part.gpu_key && !part.is_of_same(other));
            if !time::takes_turns(part) {
                slo::check_sum(&asked, &topology, others)?;
            }
        }
        time::check_law(&changed, isolation, part.is_prepared())?;
        if let Some(share) = wanted.time.filter(|_| time::takes_turns(part)) {
            let others =
                tenants.iter().filter(|other| other.gpu_key == part.gpu_key && !part.is_of_same(other));
            let wanted = Limits { time_permille: share.0, ..before.clone() };
            time::check_sum(&wanted, part.gpu_label(), others)?;
        }
        let borrow_tpcs_max = changed.borrow_tpcs_max;
        let file = part.limits_file()?;
        Ok(Self { part, topology, planned, borrow_tpcs_max, file, kept })
    }

    fn make(self, request: &SetRequest, tenants: &[Tenant]) -> Result<SetOutcome, Error> {
        let Self { part, topology, planned, borrow_tpcs_max, mut file, kept } = self;
        memory_wanted(part, part.limits()?, &request.limits, &kept)?
            .into_iter()
            .try_for_each(|memory| memory.make_room(tenants))?;
        if let Some(planned) = &planned {
            partition::store(&planned.stores, tenants, &part.gpu_key, &topology)?;
        }
        let damaged = |error: LedgerError| part.damaged_limits(&error.to_string());
        file.update(|limits| {
            if let Some(planned) = &planned {
                limits.set_partition(&topology, &planned.plan.set);
            }
            request.limits.put(limits);
            limits.borrow_tpcs_max = borrow_tpcs_max;
        })
        .map_err(damaged)?;
        let (_, now) = file.load().map_err(damaged)?;
        let LimitSet { share, place, slo, goal, .. } = request.limits;
        let steering = Steering::after(part, &request.limits);
        let is_as_prepared = part.meta().is_ok_and(|meta| meta.prepared_limits.is_some());
        if share.is_some() || place.is_some() || slo.is_some() || goal.is_some() || is_as_prepared {
            let noted = part.update_meta(|meta| {
                meta.prepared_limits = None;
                meta.share = share.map(|share| share.to_string()).or_else(|| meta.share.take());
                meta.place = place.unwrap_or(meta.place);
                meta.slo = match steering.slo {
                    Some(Slo::Target(target)) => Some(target.to_string()),
                    Some(Slo::None) | None => None,
                };
                meta.goal = steering.goal.unwrap_or_default();
            });
            // Of the others, only the limits are enforced.
            if slo.is_some() || goal.is_some() || is_as_prepared {
                noted?;
            }
        }
        let set = TpcSet::from_words(now.set);
        let before = part.meta.as_ref().ok();
        let limits = LimitSet {
            share: share.or_else(|| before?.share.as_ref()?.parse().ok()),
            place: place.or_else(|| before.map(|meta| meta.place)),
            slo: steering.slo.or(slo),
            goal: steering.goal.or(goal),
            ..LimitSet::of(Some(&now), None)
        };
        Ok(SetOutcome {
            name: part.name.clone(),
            gpu: part.gpu_label().to_owned(),
            tpcs: set.to_string(),
            sms: set.len() * now.sms_per_tpc,
            sm: limits.sm(),
            memory_quota_bytes: memory::promise(&now),
            time: time::row(part, &now),
            clusters: PartitionRow::of(&now).ok().and_then(|row| row.clusters),
            moves: planned.iter().flat_map(|planned| &planned.moves).map(MoveRow::from).collect(),
            memory_used_bytes: part.usage()?.totals().map_or(0, |totals| totals.used),
            limits,
        })
    }
}

/// The target and the goal of a tenant after a change.
struct Steering {
    slo: Option<Slo>,
    goal: Option<Goal>,
    is_on: bool,
    /// It had one, and has none any more.
    ends: bool,
}

impl Steering {
    /// A new target ends a goal, and a new goal a target.
    fn after(part: &Tenant, wanted: &LimitSet) -> Self {
        let before =
            part.meta.as_ref().map_or_else(|_| LimitSet::default(), |meta| LimitSet::of(None, Some(meta)));
        let is_target = |slo: &Slo| *slo != Slo::None;
        let is_goal = |goal: &Goal| *goal != Goal::None;
        let slo =
            wanted.slo.or_else(|| before.slo.filter(|_| !wanted.goal.is_some_and(|goal| is_goal(&goal))));
        let goal =
            wanted.goal.or_else(|| before.goal.filter(|_| !wanted.slo.is_some_and(|slo| is_target(&slo))));
        let (slo, goal) = (slo.filter(is_target), goal.filter(is_goal));
        let is_on = slo.is_some() || goal.is_some();
        let ends = !is_on && (before.slo.is_some() || before.goal.is_some());
        Self { slo, goal, is_on, ends }
    }
}

/// The promise of memory that a tenant is to get; `None` if that stays as it is.
fn memory_wanted<'a>(
    part: &'a Tenant,
    before: &Limits,
    wanted: &LimitSet,
    kept: &'a [Kept],
) -> Result<Option<memory::Wanted<'a>>, Error> {
    let total_bytes = before.memory_total_bytes;
    let driver_allowance =
        wanted.driver_allowance.map_or(before.driver_allowance_bytes, |allowance| allowance.0);
    let quota = match (wanted.memory, memory::promise(before)) {
        (Some(quota), _) => limits::quota_on(quota, part.gpu_label(), total_bytes, driver_allowance)?,
        (None, Some(quota)) if wanted.driver_allowance.is_some() => ByteSize(quota),
        _ => return Ok(None),
    };
    Ok(Some(memory::Wanted {
        gpu_key: &part.gpu_key,
        gpu: part.gpu_label(),
        total_bytes,
        quota: Some(quota),
        driver_allowance,
        tenant: Some(part),
        kept,
    }))
}

/// The share of a tenant that only moves: the TPCs that it named, or as many as it has.
fn share_of(tenant: &Tenant, limits: &Limits) -> Share {
    let set = TpcSet::from_words(limits.set);
    if partition::has_named(tenant) { Share::Exact(set) } else { Share::Tpcs(set.len()) }
}

/// Moves scattered tenants back into few GPCs, on every GPU: those of the caller that are packed
/// and named no TPCs. Returns the moves.
///
/// # Errors
/// [`Error::Plan`], [`Error::DamagedTenant`], [`Error::RunDirectory`], [`Error::Io`].
pub fn repack(registry: &Registry) -> Result<Vec<MoveRow>, Error> {
    let lock = registry.lock_to_plan()?;
    let tenants = lock.tenants()?;
    let gpus: BTreeSet<&str> = tenants.iter().map(|tenant| tenant.gpu_key.as_str()).collect();
    let mut moves = Vec::new();
    for gpu_key in gpus {
        moves.extend(partition::repack(&tenants, gpu_key)?);
    }
    Ok(moves)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::LIMITS;

    #[test]
    fn a_refused_compaction_names_the_command_with_the_values() {
        let mut request = SetRequest::new(Whose::Name("train".to_owned()));
        request.compact = true;
        request.gpus = Some("0".parse().unwrap());
        for (name, value) in [("sm", "50%"), ("mem", "2GiB")] {
            let limit = LIMITS.iter().find(|limit| limit.name == name).unwrap();
            limit.put(&mut request.limits, value).unwrap();
        }
        let said = request.check_compact(acting_user() + 1).unwrap_err().to_string();
        assert!(said.starts_with("--compact is refused: "), "{said}");
        let command = said.split('`').nth(1).unwrap();
        assert!(command.starts_with("partita set train --gpu 0 --"), "{command}");
        assert!(command.contains(" --sm 50% ") && command.contains(" --mem 2GiB "), "{command}");
        assert!(command.ends_with(" --compact"), "{command}");
        for user in [0, acting_user()] {
            request.check_compact(user).unwrap();
        }
    }
}
