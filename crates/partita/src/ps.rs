//! `partita ps`: who runs where, with what limits and what use.

use std::time::{SystemTime, UNIX_EPOCH};

use partita_core::TpcSet;
use partita_ledger::{HookState, NO_QUOTA};
use serde::Serialize;

use crate::error::Error;
use crate::process::user_name;
use crate::registry::{Isolation, Registry, Tenant};

/// A tenant as `ps` shows it. What a damaged file would tell is missing.
#[derive(Debug, Clone, Serialize)]
pub struct TenantRow {
    /// Its name.
    pub name: String,
    /// Its owner.
    pub user: String,
    /// Its GPU's short name.
    pub gpu: String,
    /// Its GPU's UUID.
    pub gpu_uuid: Option<String>,
    /// Its TPCs, logical, as ranges.
    pub tpcs: Option<String>,
    /// How many SMs they have.
    pub sms: Option<u32>,
    /// How many SMs the device has.
    pub sms_of_device: Option<u32>,
    /// Device memory that its processes hold, in bytes.
    pub memory_used_bytes: Option<u64>,
    /// The most that they ever held together, in bytes.
    pub memory_peak_bytes: Option<u64>,
    /// Its quota in bytes, if it has one.
    pub memory_quota_bytes: Option<u64>,
    /// Kernel launches of its living processes so far.
    pub launches: Option<u64>,
    /// Its processes that use CUDA.
    pub processes: Vec<ProcessRow>,
    /// Whether it runs beside the others or takes turns with them.
    pub isolation: Option<Isolation>,
    /// Whether its program was started.
    pub started: Option<bool>,
    /// Seconds since it was started.
    pub age_s: Option<u64>,
    /// The program and its arguments.
    pub command: Option<Vec<String>>,
    /// What is wrong with it: a damaged file, or a process that its limits do not hold.
    pub problem: Option<String>,
}

/// A process of a tenant that uses CUDA.
#[derive(Debug, Clone, Serialize)]
pub struct ProcessRow {
    /// Its number, as it sees it itself.
    pub pid: i32,
    /// Device memory that it holds, in bytes.
    pub memory_bytes: u64,
    /// Its kernel launches so far.
    pub launches: u64,
    /// Its allocations that the quota refused.
    pub refused_allocations: u64,
    /// Whether its hook proved the mask and sets it on every launch.
    pub mask_verified: bool,
}

/// Every living tenant of this machine, by GPU and name.
///
/// # Errors
/// [`Error::RunDirectory`], [`Error::Io`].
pub fn ps(registry: &Registry) -> Result<Vec<TenantRow>, Error> {
    let tenants = registry.lock()?.tenants()?;
    Ok(tenants.iter().map(row).collect())
}

fn row(tenant: &Tenant) -> TenantRow {
    let mut problems: Vec<String> = Vec::new();
    let limits = tenant.limits().map_err(|error| problems.push(error.to_string())).ok();
    let meta = tenant.meta().map_err(|error| problems.push(error.to_string())).ok();
    let usage = tenant.usage().map_err(|error| problems.push(error.to_string())).ok();
    let totals = usage.as_ref().and_then(|usage| usage.totals().ok());
    let set = limits.map(|limits| TpcSet::from_words(limits.set));
    let mut processes = Vec::new();
    for slot in
        usage.iter().flat_map(|usage| usage.slots()).flatten().filter(|slot| slot.live && slot.pid > 0)
    {
        if slot.state.flags & HookState::REFUSED != 0 {
            problems.push(format!(
                "process {} was refused (code {}): its limits could not be enforced; see its stderr",
                slot.pid, slot.state.code
            ));
        }
        processes.push(ProcessRow {
            pid: slot.pid,
            memory_bytes: slot.bytes,
            launches: slot.launches,
            refused_allocations: slot.refusals,
            mask_verified: slot.state.flags & HookState::MASK_VERIFIED != 0,
        });
    }
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    TenantRow {
        name: tenant.name.clone(),
        user: user_name(tenant.user),
        gpu: meta.map_or_else(|| tenant.gpu_key.clone(), |meta| meta.gpu.label.clone()),
        gpu_uuid: meta.map(|meta| meta.gpu.uuid.clone()),
        tpcs: set.map(|set| set.to_string()),
        sms: limits.zip(set).map(|(limits, set)| set.len() * limits.sms_per_tpc),
        sms_of_device: limits.map(|limits| limits.tpc_count * limits.sms_per_tpc),
        memory_used_bytes: totals.map(|totals| totals.used),
        memory_peak_bytes: totals.map(|totals| totals.peak),
        memory_quota_bytes: limits.map(|limits| limits.memory_quota_bytes).filter(|&quota| quota != NO_QUOTA),
        launches: usage.as_ref().map(|_| processes.iter().map(|process| process.launches).sum()),
        processes,
        isolation: meta.map(|meta| meta.isolation),
        started: meta.map(|meta| meta.child.is_some()),
        age_s: meta.map(|meta| now_s.saturating_sub(meta.started_unix_s)),
        command: meta.map(|meta| meta.command.clone()),
        problem: (!problems.is_empty()).then(|| problems.join("; ")),
    }
}
