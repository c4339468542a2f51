//! `partita ps`: the tenants, their limits and their use.

use std::time::{SystemTime, UNIX_EPOCH};

use partita_core::{Quota, TpcSet};
use partita_ledger::{FLAG_GPCS_UNPROVED, HookState, Limits, MECHANISM_NONE, SlotInfo};
use serde::Serialize;

use crate::error::Error;
use crate::limits::LimitSet;
use crate::pace::{TimesRow, duty_percent};
pub use crate::partition::GpcRow;
use crate::partition::{ClusterRow, PartitionRow};
use crate::process::{ProcessId, user_name};
use crate::registry::{Origin, Registry, Tenant, acting_user, memory};
use crate::slo::{Record, TargetRow};
use crate::time::{self, TimeRow};

/// A tenant on one GPU as `ps` shows it. Values of a damaged file are missing.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TenantRow {
    /// Its name.
    pub name: String,
    /// Its owner.
    pub user: String,
    /// Its GPU's short name.
    pub gpu: String,
    /// Its GPU's UUID.
    pub gpu_uuid: Option<String>,
    /// Its TPCs, logical, as ranges; `all` without a partition.
    pub tpcs: Option<String>,
    /// The GPCs of its TPCs, if these are proved.
    pub gpcs: Option<Vec<GpcRow>>,
    /// How many SMs they have.
    pub sms: Option<u32>,
    /// How many SMs the device has.
    pub sms_of_device: Option<u32>,
    /// Device memory that its living processes hold there, in bytes.
    pub memory_used_bytes: Option<u64>,
    /// The most that they ever held together, in bytes.
    pub memory_peak_bytes: Option<u64>,
    /// Without a quota, its part of the memory that is not promised to others, in bytes; `None` if
    /// none is promised.
    pub memory_rest_bytes: Option<u64>,
    /// Its limits; nothing where its files are damaged.
    #[serde(flatten, serialize_with = "LimitSet::in_ps")]
    pub limits: LimitSet,
    /// Device memory that the driver itself uses in its living processes, in bytes: contexts, code,
    /// variables of modules, stacks. The part beyond the allowance of a process counts as used.
    pub memory_driver_bytes: Option<u64>,
    /// Host memory that its living processes have beyond the quota, in bytes.
    pub memory_spilled_bytes: Option<u64>,
    /// Kernel launches of its living processes there so far; `None` without such processes, and
    /// for tenants whose launches carry no mask and are not counted.
    pub launches: Option<u64>,
    /// Its bursts of work there: from a process's first launch after a rest to the end of all of
    /// its work, where that end is seen.
    pub bursts: Option<TimesRow>,
    /// Launches of these bursts, as far as launches are counted.
    pub burst_launches: Option<u64>,
    /// The part of the time since its start inside bursts, in percent; above 100 where several
    /// processes were busy at once. `None` before the first burst has ended.
    pub duty_percent: Option<f64>,
    /// The steps that its programs name themselves, on the first GPU that they see.
    pub steps: Option<TimesRow>,
    /// How its target stands; `None` without one.
    pub target: Option<TargetRow>,
    /// Its share of the kernels that the GPU runs at once; none without a limit.
    pub task_slot_share: Option<u32>,
    /// Its share of the GPU's time, if it has one.
    pub time: Option<TimeRow>,
    /// Launches of its living processes that did not fit and ran on the whole GPU.
    pub widened_launches: Option<u64>,
    /// Its processes that use the GPU.
    pub processes: Vec<ProcessRow>,
    /// The static partition of the MPS service that it runs in, instead of a mask.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mps_partition: Option<String>,
    /// The clusters of blocks that it can run; `None` on devices without clusters.
    pub clusters: Option<ClusterRow>,
    /// Whether its program was started.
    pub started: Option<bool>,
    /// Whether its program is stopped, by a signal or a debugger. Its kernels may run on.
    pub stopped: Option<bool>,
    /// Seconds since it was started.
    pub age_s: Option<u64>,
    /// Who wanted it.
    #[serde(serialize_with = "crate::text::option::serialize")]
    pub origin: Option<Origin>,
    /// The program and its arguments.
    pub command: Option<Vec<String>>,
    /// A problem: a damaged file, or a process that has escaped its limits.
    pub problem: Option<String>,
}

impl TenantRow {
    /// Its memory quota in bytes, if it has one.
    pub fn memory_quota_bytes(&self) -> Option<u64> {
        match self.limits.memory? {
            Quota::Bytes(bytes) => Some(bytes.0),
            // A ledger has no percentages.
            Quota::Percent(_) => None,
        }
    }
}

/// A process of a tenant that uses CUDA.
#[derive(Debug, Clone, Serialize)]
pub struct ProcessRow {
    /// Its number, as it sees it itself.
    pub pid: i32,
    /// Device memory that it holds, in bytes.
    pub memory_bytes: u64,
    /// Device memory that the driver has taken for itself in it, in bytes.
    pub driver_bytes: u64,
    /// Host memory that it has instead of device memory, in bytes.
    pub spilled_bytes: u64,
    /// Its kernel launches so far.
    pub launches: u64,
    /// Its launches that did not fit the tenant's TPCs and ran on the whole GPU.
    pub widened_launches: u64,
    /// Its allocations that the quota refused.
    pub refused_allocations: u64,
    /// Whether its hook proved the mask and sets it on every launch.
    pub mask_verified: bool,
}

/// The caller's tenant of that name: one row for each of its GPUs.
///
/// # Errors
/// [`Error::NoSuchTenant`], [`Error::RunDirectory`], [`Error::Io`].
pub fn ps_named(registry: &Registry, name: &str) -> Result<Vec<TenantRow>, Error> {
    Ok(registry.lock()?.tenant(name)?.iter().map(row).collect())
}

/// The tenant that a process is of: one row for each of its GPUs, in the order in which its
/// programs see them.
///
/// # Errors
/// [`Error::NoTenantOfProcess`], [`Error::RunDirectory`], [`Error::Io`].
pub fn ps_of(registry: &Registry, pid: u32) -> Result<Vec<TenantRow>, Error> {
    Ok(registry.lock()?.tenant_of(pid)?.iter().map(row).collect())
}

fn gpcs(limits: &Limits, set: &TpcSet) -> Option<Vec<GpcRow>> {
    // Where GPCs are not proved there is nothing to say of them.
    if limits.flags & FLAG_GPCS_UNPROVED != 0 {
        return None;
    }
    let topology = limits.topology().ok()?;
    let rows = topology.gpcs().iter().map(|gpc| GpcRow {
        gpc: gpc.id,
        tpcs: (gpc.tpcs & *set).len(),
        tpcs_of_gpc: gpc.tpcs.len(),
    });
    Some(rows.filter(|row| row.tpcs > 0).collect())
}

/// Every living tenant of this machine, by GPU and name: one row for each of its GPUs.
///
/// # Errors
/// [`Error::RunDirectory`], [`Error::Io`].
pub fn ps(registry: &Registry) -> Result<Vec<TenantRow>, Error> {
    let tenants = registry.lock()?.tenants()?;
    Ok(tenants.iter().map(row).collect())
}

/// What processes wrote to their ledger may be any number.
fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

fn row(tenant: &Tenant) -> TenantRow {
    let mut problems: Vec<String> = Vec::new();
    let limits = tenant.limits().map_err(|error| problems.push(error.to_string())).ok();
    let meta = tenant.meta().map_err(|error| problems.push(error.to_string())).ok();
    // Only root sees the use of other users.
    let may_look = [0, tenant.user].contains(&acting_user());
    let usage = may_look.then(|| tenant.usage().map_err(|error| problems.push(error.to_string())).ok());
    let usage = usage.flatten();
    // First: what is released after this was counted, and is not subtracted.
    let totals = usage.as_ref().and_then(|usage| usage.totals().ok());
    let slots: Vec<SlotInfo> = usage.iter().flat_map(|usage| usage.slots()).flatten().collect();
    let pace = usage.as_ref().and_then(|usage| usage.pace().ok());
    let of_the_dead = sum(slots.iter().filter(|slot| !slot.live).map(|slot| slot.bytes));
    let set = limits.map(|limits| TpcSet::from_words(limits.set));
    let sms_of_device = limits.map(|limits| limits.tpc_count * limits.sms_per_tpc);
    // Made by an environment without a core limit: nothing of the device is known but its SMs.
    let is_free =
        limits.zip(set).is_some_and(|(limits, set)| limits.mechanism == MECHANISM_NONE && set.is_empty());
    // Only MPS knows what MPS gives it.
    let mps_partition = meta.and_then(|meta| meta.mps_partition.clone());
    let mut processes = Vec::new();
    for slot in slots.iter().filter(|slot| slot.live && slot.pid > 0) {
        if slot.state.flags & HookState::REFUSED != 0 {
            problems.push(format!(
                "process {} was refused (code {}): its limits could not be enforced; see its stderr",
                slot.pid, slot.state.code
            ));
        }
        processes.push(ProcessRow {
            pid: slot.pid,
            memory_bytes: slot.bytes,
            driver_bytes: slot.driver_bytes,
            spilled_bytes: slot.spilled_bytes,
            launches: slot.launches,
            widened_launches: slot.widened,
            refused_allocations: slot.refusals,
            mask_verified: slot.state.flags & HookState::MASK_VERIFIED != 0,
        });
    }
    problems.extend(tenant.dead().iter().map(|dead| dead.describe(&tenant.name)));
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let age_s = meta.map(|meta| now_s.saturating_sub(meta.started_unix_s));
    TenantRow {
        name: tenant.name.clone(),
        user: user_name(tenant.user),
        gpu: meta.map_or_else(|| tenant.gpu_key.clone(), |meta| meta.gpu.label.clone()),
        gpu_uuid: meta.map(|meta| meta.gpu.uuid.clone()),
        tpcs: set
            .filter(|_| mps_partition.is_none())
            .map(|set| if is_free { "all".to_owned() } else { set.to_string() }),
        gpcs: limits.zip(set).filter(|_| !is_free).and_then(|(limits, set)| gpcs(limits, &set)),
        sms: if mps_partition.is_some() {
            None
        } else if is_free {
            sms_of_device
        } else {
            limits.zip(set).map(|(limits, set)| set.len() * limits.sms_per_tpc)
        },
        sms_of_device,
        memory_used_bytes: totals.map(|totals| totals.used.saturating_sub(of_the_dead)),
        memory_peak_bytes: totals.map(|totals| totals.peak),
        memory_rest_bytes: limits.and_then(memory::rest),
        limits: LimitSet::of(limits, meta),
        memory_driver_bytes: usage
            .as_ref()
            .map(|_| sum(processes.iter().map(|process| process.driver_bytes))),
        memory_spilled_bytes: usage
            .as_ref()
            .map(|_| sum(processes.iter().map(|process| process.spilled_bytes))),
        launches: usage
            .as_ref()
            .filter(|_| mps_partition.is_none() && !processes.is_empty())
            .map(|_| sum(processes.iter().map(|process| process.launches)))
            // The hook counts where it sets masks.
            .filter(|&launches| launches > 0 || !limits.is_some_and(Limits::takes_turns)),
        bursts: pace.map(|pace| pace.bursts.into()),
        burst_launches: pace.map(|pace| pace.launches),
        duty_percent: pace.zip(age_s).and_then(|(pace, age_s)| duty_percent(&pace.bursts, age_s)),
        steps: pace.map(|pace| pace.steps.into()),
        target: meta.and_then(|meta| meta.target()).map(|target| {
            // What is written may be of a target before this one.
            let record = Record::of(tenant);
            let is_of_it = record.slo == Some(target.to_string());
            record.target.filter(|_| is_of_it).unwrap_or_default()
        }),
        task_slot_share: limits.map(|limits| limits.task_slots).filter(|slots| *slots != 0),
        time: limits.and_then(|limits| time::row(tenant, limits)),
        widened_launches: usage
            .as_ref()
            .map(|_| sum(processes.iter().map(|process| process.widened_launches))),
        processes,
        mps_partition,
        clusters: limits
            .filter(|_| !is_free)
            .and_then(|limits| PartitionRow::of(limits).ok())
            .and_then(|row| row.clusters),
        started: meta.map(|meta| meta.child.is_some()),
        stopped: meta.and_then(|meta| meta.child).map(ProcessId::is_stopped),
        age_s,
        origin: meta.map(|meta| meta.origin),
        command: meta.map(|meta| meta.command.clone()),
        problem: (!problems.is_empty()).then(|| problems.join("; ")),
    }
}
