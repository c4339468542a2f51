//! Which partitions a program gets, beside the tenants that are there, and the tenant that has
//! them.

use std::time::{SystemTime, UNIX_EPOCH};

use partita_core::slo::Slo;
use partita_core::{Compaction, Share, Topology};
use partita_ledger::{FLAG_MEMORY_REST, FLAG_TURNS, Limits, MECHANISM_NONE, MECHANISM_PERSISTENT};
use partita_mps::partition::PartitionName;
use serde::Serialize;

use super::place::{self, Candidate};
use super::quota::{driver_allowance, memory_wanted};
use super::select::select;
use super::turn;
use crate::calibration::{Cache, Measured};
use crate::error::Error;
use crate::gpu::Gpu;
use crate::groups::GpuGroups;
use crate::install::Install;
use crate::limits::LimitSet;
use crate::offered::Via;
use crate::partition::{self, MoveRow, PartitionRow, Wanted};
use crate::policy::{Decided, Kept, Rules, Wish};
use crate::process::{ProcessId, user_name};
use crate::registry::{
    GpuMeta, Isolation, Meta, NewPart, Origin, OwnedTenant, Registry, RegistryLock, Tenant, acting_user,
    check_name,
};
use crate::request::RunRequest;
use crate::site::{self, Site};
use crate::time::Turn;
use crate::{limits, mps, slo, time};

/// Partitions that were planned beside the tenants that are there.
struct Planned<'a> {
    lock: RegistryLock<'a>,
    /// Its place in the queue, if it has waited.
    waited: Option<u64>,
    tenants: Vec<Tenant>,
    /// One for each GPU.
    parts: Vec<PlannedPart>,
}

/// A partition on one GPU.
struct PlannedPart {
    topology: Topology,
    chosen: Compaction,
    limits: Limits,
    /// The request, as the site's policy has completed it.
    request: RunRequest,
    /// How many kernels the GPU runs at once, where that was measured.
    task_slots: Option<u32>,
    /// The memory that is reserved there.
    kept: Vec<Kept>,
}

/// Plans the partitions; the registry stays locked. `name` and `run` are `None` in a dry run.
fn plan<'a>(
    install: &Install,
    request: &RunRequest,
    registry: &'a Registry,
    gpus: &[Gpu],
    name: Option<&str>,
    run: Option<ProcessId>,
) -> Result<Planned<'a>, Error> {
    let cache = Cache::open();
    let measured = |gpu| match request.limits.via() {
        // No launch descriptor is written.
        Via::Persistent => cache.get_without_masks(install, gpu),
        _ => cache.get(install, gpu).map_err(|error| match error {
            Error::Unproved { driver, gpu, reason } => {
                let reason = format!("{reason}; programs with PTX can run with --via persistent");
                Error::Unproved { driver, gpu, reason }
            }
            other => other,
        }),
    };
    let measured = gpus.iter().map(measured).collect::<Result<Vec<_>, Error>>()?;
    let lock = registry.lock_to_make()?;
    let tenants = lock.tenants()?;
    if let Some(other) = tenants.iter().find(|tenant| Some(tenant.name.as_str()) == name) {
        return Err(other.name_in_use());
    }
    // A start by this name would end its wait.
    let mut queue = lock.queue()?.into_iter();
    if let Some(waiter) = queue.find(|waiter| Some(waiter.name.as_str()) == name && Some(waiter.run) != run) {
        return Err(Error::Refused {
            what: format!("--name {}", waiter.name),
            reason: format!(
                "a program of {} that waits for room has this name; choose another one",
                user_name(waiter.user)
            ),
        });
    }
    let rules = site::present_rules()?;
    let rules = if request.is_outside { rules.for_outside() } else { rules };
    let plan_beside = |tenants: &[Tenant]| {
        if request.limits.isolation() == Isolation::Shared {
            mps::check_shared(registry, gpus, tenants)?;
        }
        let parts = gpus.iter().zip(&measured).map(|(gpu, measured)| {
            plan_on(gpu, measured, &rules, request, tenants, name).map_err(|error| match gpus.len() {
                1 => error,
                // Otherwise it would not say which.
                _ => error.on_gpu(&gpu.label()),
            })
        });
        parts.collect::<Result<Vec<_>, Error>>()
    };
    slo::check_gpus(&request.limits, gpus.len(), request.prepared.is_some())?;
    slo::check_multiple(&request.limits, request.takes_turns(), registry.is_system())?;
    let (waited, parts) = match (name, run) {
        (Some(name), Some(run)) => {
            turn::plan_in_turn(&lock, request, gpus, name, run, &tenants, plan_beside)?
        }
        _ => (None, plan_beside(&tenants)?),
    };
    Ok(Planned { lock, waited, tenants, parts })
}

fn plan_on(
    gpu: &Gpu,
    measured: &Measured,
    rules: &Rules,
    request: &RunRequest,
    tenants: &[Tenant],
    name: Option<&str>,
) -> Result<PlannedPart, Error> {
    let unproved = |reason| Error::Unproved { driver: gpu.driver_version.clone(), gpu: gpu.label(), reason };
    let topology = measured.topology().map_err(unproved)?;
    let key = gpu.key();
    let takes_turns = request.takes_turns();
    let here = || tenants.iter().filter(|tenant| tenant.gpu_key == key);
    let site = Site {
        topology: &topology,
        gpu: &GpuMeta::of(gpu),
        gpu_key: &key,
        memory_bytes: measured.memory_total_bytes,
        driver_bytes: driver_allowance(request),
        tenants,
        changed: None,
    };
    let mut request = request.clone();
    if request.mps_partition.is_none() {
        let LimitSet { share, up_to, memory, place, .. } = request.limits;
        let wish = Wish {
            share,
            up_to,
            memory,
            place,
            priority: Some(request.limits.priority()),
            steered: slo::priority_in_turns(&LimitSet { priority: None, ..request.limits }),
            is_joining: matches!(time::join(here()), Some(Turn::Priority(_))),
            takes_turns,
            is_change: false,
        };
        let Decided { share, memory, place } = rules.decide(&site, &wish)?;
        request.limits = LimitSet { share, memory, place, ..request.limits };
    }
    let LimitSet { share, place, .. } = request.limits;
    limits::check_share(share.as_ref(), measured.gpcs_proved)?;
    partition::check_place(place, share.as_ref(), measured.gpcs_proved)?;
    // Tenants that take turns share their TPCs. MPS plans its own partitions.
    let is_in_way = |tenant: &&Tenant| match request.mps_partition {
        Some(_) => false,
        None => !(takes_turns && time::takes_turns(tenant)),
    };
    let beside: Vec<Tenant> = tenants.iter().filter(is_in_way).cloned().collect();
    // Beside those who take turns there may be no room for a partition, but one more can join them,
    // unless a maximum of compute units refuses turns.
    let may_take_turns = !takes_turns && rules.most_tpcs(&site) == u32::MAX;
    let or_turns = |error: Error| match (error, time::instead_of_units(here(), &rules.turns(&site))) {
        (Error::Plan { reason }, Some(turns)) if may_take_turns => {
            Error::Plan { reason: format!("{reason}; {turns}") }
        }
        (error, _) => error,
    };
    let reserved = rules.reserved_for_others(&site);
    let is_one_more = || here().any(|tenant| tenant.is_own() && time::takes_turns(tenant));
    let share = match share {
        None if takes_turns && (!reserved.is_empty() || is_one_more()) => {
            // One of those that share their TPCs. They keep them, so they leave what is reserved.
            let present = RegistryLock::present(&beside, &key)?;
            let free = partita_core::all_free(&topology, &present)
                .map_err(|error| partition::refused(error, &topology, &beside, &key))?;
            Some(Share::Exact(partition::unreserved(free, &reserved)))
        }
        share => share,
    };
    let wanted = Wanted {
        topology: &topology,
        tenants: &beside,
        gpu_key: &key,
        name: None,
        share,
        place: place.unwrap_or_default(),
        compact: request.compact,
        reserved: &reserved,
    };
    if !takes_turns {
        slo::check_sum(&request.limits, &topology, here())?;
    }
    let chosen = partition::plan(&wanted).map_err(or_turns)?;
    let label = gpu.label();
    let kept = rules.kept_memory(&site);
    let memory_wanted = memory_wanted(&request, &key, &label, measured.memory_total_bytes, &kept)?;
    memory_wanted.check(tenants)?;
    let quota = memory_wanted.quota;
    let (name, uuid) = (name.unwrap_or("dry-run"), &gpu.facts.uuid);
    let set = &chosen.plan.set;
    let mut limits = limits::new_limits(name, uuid, measured, &topology, set, quota)
        .map_err(|error| unproved(error.to_string()))?;
    if request.limits.memory.is_none() {
        limits.flags |= FLAG_MEMORY_REST;
    }
    request.limits.put_new(&mut limits);
    time::check_law(&limits, request.limits.isolation(), request.prepared.is_some())?;
    if takes_turns {
        time::check_sum(&limits, &label, here())?;
        limits.flags |= FLAG_TURNS;
        if *set == topology.all() {
            limits.mechanism = MECHANISM_NONE;
        }
    }
    if request.limits.via() == Via::Persistent {
        limits.mechanism = MECHANISM_PERSISTENT;
    }
    if request.mps_partition.is_some() {
        // It has none of the planned TPCs.
        limits.mechanism = MECHANISM_NONE;
        limits.set = Default::default();
    }
    limits::ceiling::put(&request.limits, &topology, request.limits.isolation(), &mut limits)?;
    slo::check(&request.limits, &limits, request.limits.isolation())?;
    let task_slots = measured.task_slots;
    Ok(PlannedPart { topology, chosen, limits, request, task_slots, kept })
}

/// Plans the partitions, has others make room, and makes the tenant, in one hold of the registry's
/// lock. `run` is the `partita run` that the tenant is for.
pub(crate) fn make(
    install: &Install,
    request: &RunRequest,
    registry: &Registry,
    gpus: &[Gpu],
    name: &str,
    run: ProcessId,
) -> Result<OwnedTenant, Error> {
    let Planned { lock, waited, tenants, parts } =
        plan(install, request, registry, gpus, Some(name), Some(run))?;
    for (gpu, part) in gpus.iter().zip(&parts) {
        let (key, label) = (gpu.key(), gpu.label());
        memory_wanted(&part.request, &key, &label, part.limits.memory_total_bytes, &part.kept)?
            .make_room(&tenants)?;
    }
    for (gpu, part) in gpus.iter().zip(&parts) {
        partition::store(&part.chosen.stores, &tenants, &gpu.key(), &part.topology)?;
    }
    let new = |(gpu, part): (&Gpu, PlannedPart)| {
        let tpcs = part.chosen.plan.set.len();
        let meta =
            Meta { task_slots: part.task_slots, ..new_meta(&part.request, gpu, gpus, name, run, tpcs) };
        NewPart { gpu_key: gpu.key(), meta, limits: part.limits }
    };
    let is_controlled = slo::is_asked(&request.limits);
    let made = lock.create(gpus.iter().zip(parts).map(new).collect());
    if made.is_ok() && is_controlled {
        gpus.iter().try_for_each(|gpu| lock.make_control(&gpu.key()))?;
    }
    if made.is_ok()
        && let Some(number) = waited
    {
        // Whatever goes wrong here, the place ends with the `partita run`.
        let _ = lock.dequeue(number);
    }
    if made.is_err() {
        // Those that made room for it have no reason to.
        let _ = partition::divide(&lock);
    }
    made
}

/// The result of a run on one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DryRun {
    /// The GPU's short name.
    pub gpu: String,
    /// Its UUID.
    pub gpu_uuid: String,
    /// SMs of the device.
    pub sms_of_device: u32,
    /// The partition.
    #[serde(flatten)]
    pub partition: PartitionRow,
    /// The tenants that would make room.
    pub moves: Vec<MoveRow>,
    /// Its limits.
    #[serde(flatten, serialize_with = "LimitSet::in_plan")]
    pub limits: LimitSet,
    /// Those that it was asked for, or that the policy of the site gave it.
    #[serde(skip)]
    pub asked: LimitSet,
}

/// Plans as [`run`](super::run) does, and makes and starts nothing. One for each GPU.
///
/// # Errors
/// As [`run`](super::run), as far as the partitions are concerned.
pub fn dry_run(
    install: &Install,
    request: &RunRequest,
    mut say: impl FnMut(&str),
) -> Result<Vec<DryRun>, Error> {
    request.name.as_deref().map_or(Ok(()), check_name)?;
    let registry = Registry::open()?;
    let gpus = select(install, request, &mut say)?;
    let candidates = place::candidates(install, request, &registry, gpus)?;
    let attempt = |candidate: &Candidate| dry_run_on(install, request, &registry, &candidate.gpus);
    let (candidate, rows) = place::first(candidates, attempt)?;
    candidate.reason.iter().for_each(|reason| say(&place::said(reason)));
    Ok(rows)
}

fn dry_run_on(
    install: &Install,
    request: &RunRequest,
    registry: &Registry,
    gpus: &[Gpu],
) -> Result<Vec<DryRun>, Error> {
    if registry.is_system() {
        GpuGroups::of_environment()?.check_all(gpus, acting_user())?;
    }
    let request = &request.settled(registry, gpus)?;
    let planned = plan(install, request, registry, gpus, request.name.as_deref(), None)?;
    let row = |(gpu, part): (&Gpu, PlannedPart)| {
        let unproved =
            |reason| Error::Unproved { driver: gpu.driver_version.clone(), gpu: gpu.label(), reason };
        Ok(DryRun {
            gpu: gpu.label(),
            gpu_uuid: gpu.facts.uuid.clone(),
            sms_of_device: part.topology.sm_count(),
            partition: PartitionRow::of(&part.limits).map_err(|error| unproved(error.to_string()))?,
            moves: part.chosen.moves.iter().map(MoveRow::from).collect(),
            limits: LimitSet {
                share: request.limits.share,
                up_to: request.limits.up_to,
                place: Some(request.limits.place.unwrap_or_default()),
                isolation: Some(request.limits.isolation()),
                slo: request.limits.slo,
                goal: request.limits.goal,
                ..LimitSet::of(Some(&part.limits), None)
            },
            asked: request.limits,
        })
    };
    gpus.iter().zip(planned.parts).map(row).collect()
}

fn new_meta(request: &RunRequest, gpu: &Gpu, gpus: &[Gpu], name: &str, run: ProcessId, tpcs: u32) -> Meta {
    Meta {
        version: crate::registry::META_VERSION,
        name: name.to_owned(),
        gpu: GpuMeta::of(gpu),
        gpus: if gpus.len() == 1 { Vec::new() } else { gpus.iter().map(GpuMeta::of).collect() },
        run,
        child: None,
        command: match &request.description {
            Some(text) => vec![text.clone()],
            None => request.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        },
        started_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        share: match request.limits.share {
            // A chain divides its TPCs itself, and so keeps their number.
            None if request.description.is_some() => Some(Share::Tpcs(tpcs).to_string()),
            share => share.map(|share| share.to_string()),
        },
        place: request.limits.place.unwrap_or_default(),
        isolation: request.limits.isolation(),
        task_slots: None,
        mps_partition: request.mps_partition.as_ref().map(PartitionName::to_string),
        slo: match request.limits.slo {
            Some(Slo::Target(target)) => Some(target.to_string()),
            Some(Slo::None) | None => None,
        },
        goal: request.limits.goal.unwrap_or_default(),
        placed: request.placed.clone(),
        is_put_in_turns: request.is_put_in_turns,
        has_ceiling: request.limits.up_to.is_some(),
        prepared_boot: request.prepared.and_then(|_| crate::registry::boot().ok()),
        prepared_limits: request.prepared.map(|asked| asked.to_string()),
        origin: if request.is_outside { Origin::Policy } else { Origin::Request },
    }
}
