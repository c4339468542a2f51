//! `partita ps --audit`: compares the driver's list of the tenants' processes with the tenants'
//! ledgers.
//!
//! A library in the tenant's processes enforces the limits. A process that removes the library
//! (`docs/boundaries.md`) escapes them, but the driver still lists it. The audit finds it as a
//! process that descends from a tenant's program, uses the GPU, and has no slot in the tenant's
//! ledger. For other processes, the two numbers differ by what the process takes beside its
//! allocations: context, code and queues. If the difference exceeds the tenant's allowance, the
//! process has memory that no account is charged for, and the audit names it too.

mod charged;
mod gates;
mod load;
mod outside;

use self::charged::{Charged, charged, gpu_of};
pub use gates::{Stranger, strangers};
use load::is_hidden;
pub use load::{GpuLoad, Loads, loads};
pub use outside::Outsider;
use partita_host::child::Job;
use partita_host::error::Error;
use partita_host::install::Install;
use partita_host::process::{ProcessId, user_name};
use partita_host::registry::{GpuMeta, Registry, SimMeta, Tenant};
use partita_host::simenv::SimEnvironment;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::time::Duration;

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use serde::{Deserialize, Serialize};

/// The name of the job that queries the driver.
pub const JOB: &str = "audit";
const LIMIT: Duration = Duration::from_secs(30);
/// The most processes between a program and its descendant; a longer chain is a loop of reused
/// numbers.
const ANCESTORS_MAX: usize = 1000;

/// The users of the GPUs of one management library.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// The GPUs and instances that it reports.
    pub gpus: Vec<ListedGpu>,
    /// Its errors for GPUs that it does not report.
    pub silent: Vec<String>,
    /// Whether there is a driver.
    pub has_driver: bool,
}

/// The users of one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedGpu {
    /// NVML's index of the GPU.
    pub index: u32,
    /// The UUID of the GPU or instance.
    pub uuid: String,
    /// The product's name.
    pub name: String,
    /// Its device memory and the part in use, in bytes.
    pub memory_bytes: Option<(u64, u64)>,
    /// The part of the driver's last sample period in which a kernel ran, in percent.
    pub busy_percent: Option<u32>,
    /// The part of it in which memory was read or written, in percent.
    pub memory_busy_percent: Option<u32>,
    /// The processes, each once.
    pub processes: Vec<DriverProcess>,
}

/// A process as the driver lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverProcess {
    /// The process id in this machine's numbering.
    pub pid: u32,
    /// Device memory that it uses, in bytes, if the driver reports it.
    pub used_bytes: Option<u64>,
}

/// A process of a tenant that uses a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditRow {
    /// The tenant.
    pub tenant: String,
    /// The GPU's short name.
    pub gpu: String,
    /// The process.
    pub pid: u32,
    /// Device memory according to the driver, in bytes.
    pub driver_bytes: Option<u64>,
    /// Device memory according to the tenant's ledger, in bytes; `None` without a slot there.
    pub ledger_bytes: Option<u64>,
    /// Device memory that is neither in the ledger, shared memory included, nor within the tenant's
    /// allowance for the driver, in bytes; `None` if the driver's rounding explains the difference.
    pub beyond_bytes: Option<u64>,
    /// Whether it has escaped the tenant's limits.
    pub escaped: bool,
    /// The process, identified beyond its number, which can be reused.
    #[serde(skip)]
    pub process: ProcessId,
    /// The GPU.
    #[serde(skip)]
    pub device: GpuMeta,
}

/// A process that an audit found to have escaped. Later audits find it even if its tenant, or the
/// process between the two, has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Escape {
    /// The tenant.
    pub tenant: String,
    /// The GPU that it uses.
    pub gpu: GpuMeta,
    /// The process.
    pub process: ProcessId,
}

/// The result of an audit.
#[derive(Debug, Default)]
pub struct Audit {
    /// Every process of a tenant that the driver lists; escaped ones first.
    pub rows: Vec<AuditRow>,
    /// Processes that use a tenant's GPU and belong to no tenant.
    pub outsiders: Vec<Outsider>,
    /// GPUs that the audit could not check.
    pub unseen: Vec<Unseen>,
    /// Tenants of other users that the audit skipped, with the reason.
    pub passed_over: Vec<String>,
}

/// GPUs with tenants whose users the driver does not report.
#[derive(Debug)]
pub struct Unseen {
    /// The GPUs.
    pub gpus: Vec<GpuMeta>,
    /// Why.
    pub error: Error,
}

/// The remedy for a process that has escaped its tenant's limits.
pub fn escape_remedy(pid: u32, tenant: &str) -> String {
    format!(
        "it runs without libpartita.so (docs/boundaries.md); `kill {pid}` ends it, `partita kill \
         {tenant}` ends the tenant and those of its processes that it still finds"
    )
}

/// The remedy for a process that has more memory than its ledger and the allowance.
pub const BEYOND_REMEDY: &str = "it reached the driver past libpartita.so, or keeps memory by a \
    descriptor that it has not closed (docs/boundaries.md); end it if it must not have this memory";

/// The remedy for a process that has a gate open and belongs to no tenant.
pub const STRANGER_REMEDY: &str = "belongs to no tenant: it can undo priorities and disturb tenants \
    that have one; end it, and admit only users whose tenants trust each other (docs/boundaries.md)";

/// The processes that the management library of this process's library path lists.
///
/// # Errors
/// Why it cannot list them.
pub fn read_here() -> Result<Listing, String> {
    match Nvml::builder().lib_path(OsStr::new("libnvidia-ml.so.1")).init() {
        Err(error @ (NvmlError::LibloadingError(_) | NvmlError::DriverNotLoaded)) => {
            Ok(Listing { silent: vec![error.to_string()], ..Listing::default() })
        }
        nvml => nvml.and_then(|nvml| listing(&nvml)).map_err(|error| format!("NVML: {error}")),
    }
}

fn listing(nvml: &Nvml) -> Result<Listing, NvmlError> {
    let mut listing = Listing { has_driver: true, ..Listing::default() };
    for index in 0..nvml.device_count()? {
        // A GPU that has fallen off the bus does not hide the others.
        match nvml.device_by_index(index).and_then(|device| listed(index, &device)) {
            Ok(gpus) => listing.gpus.extend(gpus),
            Err(error) => listing.silent.push(format!("GPU {index}: {error}")),
        }
    }
    Ok(listing)
}

/// A GPU, and its MIG instances.
fn listed(index: u32, device: &Device<'_>) -> Result<Vec<ListedGpu>, NvmlError> {
    let mut gpus = Vec::new();
    if device.mig_mode().is_ok_and(|mode| mode.current != 0) {
        for number in 0..device.mig_device_count()? {
            // Their numbers can have gaps.
            if let Ok(instance) = device.mig_device_by_index(number) {
                gpus.push(of_one(index, &instance)?);
            }
        }
    }
    gpus.push(of_one(index, device)?);
    Ok(gpus)
}

fn of_one(index: u32, device: &Device<'_>) -> Result<ListedGpu, NvmlError> {
    // Clients of the MPS service are in a separate list, which older drivers do not have.
    let of_service = device.mps_running_compute_processes().unwrap_or_default();
    let mut found = BTreeMap::new();
    for process in device.running_compute_processes()?.into_iter().chain(of_service) {
        let used_bytes = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        found.insert(process.pid, DriverProcess { pid: process.pid, used_bytes });
    }
    // Instances have no utilization.
    let rates = device.utilization_rates().ok();
    Ok(ListedGpu {
        index,
        uuid: device.uuid()?,
        name: device.name()?,
        memory_bytes: device.memory_info().ok().map(|memory| (memory.total, memory.used)),
        busy_percent: rates.as_ref().map(|rates| rates.gpu),
        memory_busy_percent: rates.map(|rates| rates.memory),
        processes: found.into_values().collect(),
    })
}

/// Every process of a tenant that the driver lists, and the current state of those that had
/// `escaped` before. If one part cannot be checked, the others still are.
///
/// # Errors
/// Those of reading the registry.
pub fn run(install: &Install, registry: &Registry, escaped: &[Escape]) -> Result<Audit, Error> {
    let tenants = registry.lock()?.tenants()?;
    let mut audit = Audit::default();
    // The audit neither trusts nor follows another user's file: it may name a board that never
    // answers, or hide the GPU of other tenants.
    let (looked_at, passed_over): (Vec<Tenant>, Vec<Tenant>) = tenants.into_iter().partition(may_be_followed);
    audit.passed_over = passed_over.iter().map(why_passed_over).collect();
    let mut tenants = looked_at;
    tenants.sort_by_key(|tenant| !tenant.is_own());
    let mut gpus: Vec<GpuMeta> = Vec::new();
    for gpu in tenants.iter().filter_map(gpu_of).chain(escaped.iter().map(|escape| escape.gpu.clone())) {
        if gpus.iter().all(|known| known.key != gpu.key) {
            gpus.push(gpu);
        }
    }
    while let Some(first) = gpus.first() {
        // One library reports all real GPUs, or all of one simulated machine.
        let sim = first.sim.clone();
        let (together, others) = gpus.into_iter().partition(|gpu| gpu.sim == sim);
        gpus = others;
        match ask(install, sim.as_ref(), LIMIT) {
            Ok(listing) => audit.add(&tenants, escaped, together, &listing),
            Err(error) => audit.unseen.push(Unseen { gpus: together, error }),
        }
    }
    audit.rows.sort_by(|one, other| {
        (!one.escaped, &one.tenant, one.pid).cmp(&(!other.escaped, &other.tenant, other.pid))
    });
    Ok(audit)
}

/// Whether the tenant's file may say which GPU to query.
fn may_be_followed(tenant: &Tenant) -> bool {
    tenant.is_own() || is_on_its_gpu(tenant)
}

/// Whether the tenant's directory has the name of the real GPU that the tenant claims to be on.
fn is_on_its_gpu(tenant: &Tenant) -> bool {
    tenant.meta.as_ref().is_ok_and(|meta| meta.gpu.sim.is_none() && meta.gpu.uuid == tenant.gpu_key)
}

fn why_passed_over(tenant: &Tenant) -> String {
    let reason = match &tenant.meta {
        Ok(meta) if meta.gpu.sim.is_some() => "it is on a simulated GPU of its user",
        Ok(_) => "it does not name its GPU",
        Err(_) => "its meta.json is damaged",
    };
    format!("tenant {} of {} was skipped: {reason}", tenant.name, user_name(tenant.user))
}

/// Queries the management library, for the real GPUs or for a simulated machine.
fn ask(install: &Install, sim: Option<&SimMeta>, limit: Duration) -> Result<Listing, Error> {
    let variables = match sim {
        Some(sim) => SimEnvironment::create(install, &sim.device)?.with_boards_in(&sim.dir).variables(),
        None => Vec::new(),
    };
    let asked = Job::new(install, JOB, &())?.envs(variables).limit(limit).run()?;
    asked.map_err(|error| {
        error.or(|reason| Error::Driver { reason: format!("the management library: {reason}") })
    })
}

impl Audit {
    fn add(&mut self, tenants: &[Tenant], escaped: &[Escape], gpus: Vec<GpuMeta>, listing: &Listing) {
        for gpu in gpus {
            let Some(listed) = listing.gpus.iter().find(|listed| listed.uuid == gpu.uuid) else {
                let reason = format!(
                    "the management library does not report {} ({}){}",
                    gpu.label,
                    gpu.uuid,
                    listing.silent.iter().map(|said| format!("; it says: {said}")).collect::<String>()
                );
                self.unseen.push(Unseen { gpus: vec![gpu], error: Error::Driver { reason } });
                continue;
            };
            let here: Vec<&Tenant> = tenants.iter().filter(|tenant| tenant.gpu_key == gpu.key).collect();
            let escaped: Vec<&Escape> = escaped.iter().filter(|escape| escape.gpu.key == gpu.key).collect();
            for listed in &listed.processes {
                // An exiting process can lose its slot before the driver removes it from the list.
                let process = ProcessId::living(listed.pid).filter(|process| !process.is_ending());
                let Some(process) = process else { continue };
                match row(&gpu, &here, &escaped, listed, process) {
                    Some(row) => self.rows.push(row),
                    None if is_hidden(&here, process) => {}
                    None => self.outsiders.extend(Outsider::of(&gpu, listed, process)),
                }
            }
        }
    }
}

/// Relates a process to the tenants of its GPU; `None` if it belongs to none.
fn row(
    gpu: &GpuMeta,
    tenants: &[&Tenant],
    escaped: &[&Escape],
    listed: &DriverProcess,
    process: ProcessId,
) -> Option<AuditRow> {
    let row = |tenant: &str, charged: Option<Charged>| AuditRow {
        tenant: tenant.to_owned(),
        gpu: gpu.label.clone(),
        pid: listed.pid,
        driver_bytes: listed.used_bytes,
        ledger_bytes: charged.map(|charged| charged.own_bytes),
        beyond_bytes: charged.zip(listed.used_bytes).and_then(|(charged, used)| charged.missing_bytes(used)),
        escaped: charged.is_none(),
        process,
        device: gpu.clone(),
    };
    if let Some((tenant, charged)) =
        tenants.iter().find_map(|tenant| Some((tenant, charged(tenant, process)?)))
    {
        return Some(row(&tenant.name, Some(charged)));
    }
    let ancestors: Vec<ProcessId> =
        std::iter::successors(Some(process), |process| process.parent()).take(ANCESTORS_MAX).collect();
    // A tenant's files can only speak for processes of its own user.
    let is_of = |tenant: &&&Tenant| {
        // A container without the library, or a program in it that the library cannot hold.
        tenant.is_in_container(process)
            || tenant.meta().is_ok_and(|meta| {
                let is_it =
                    |child: ProcessId| ancestors.contains(&child) && child.user() == Some(tenant.user);
                meta.child.is_some_and(is_it)
            })
    };
    let tenant = tenants.iter().find(is_of).map(|tenant| &tenant.name);
    // Once the parent of a process has ended, nothing links the process to its tenant.
    let known =
        || escaped.iter().find(|escape| ancestors.contains(&escape.process)).map(|escape| &escape.tenant);
    tenant.or_else(known).map(|tenant| row(tenant, None))
}
