//! `partita ps --audit`: what the driver says of the tenants' processes, beside what their ledgers
//! say.
//!
//! Limits are kept by a library in the tenant's processes. A process that gets rid of it
//! (`docs/boundaries.md`) is not held by them, but the driver lists it: it is found here as one
//! that descends from a tenant's program, uses the GPU, and has no slot in the tenant's ledger. For
//! the others the difference of the two numbers is what a process takes beside its allocations:
//! context, code and queues. Where it is more than the tenant's allowance for these, the process
//! has memory that nothing charges, and is named too.

mod charged;
mod gates;

use self::charged::{Charged, charged, gpu_of};
pub use gates::{Stranger, strangers};
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

/// The name of the job that asks the driver.
pub const JOB: &str = "audit";
const LIMIT: Duration = Duration::from_secs(30);
/// Processes between a program and its descendant; more are a loop of numbers that came back.
const ANCESTORS_MAX: usize = 1000;

/// Who uses the GPUs of one management library.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// The GPUs and instances that it tells of.
    pub gpus: Vec<ListedGpu>,
    /// What it says of those that it tells nothing of.
    pub silent: Vec<String>,
}

/// Who uses one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedGpu {
    /// Its UUID, or an instance's.
    pub uuid: String,
    /// The processes, each once.
    pub processes: Vec<DriverProcess>,
}

/// A process as the driver lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverProcess {
    /// The process, as this machine numbers it.
    pub pid: u32,
    /// Device memory that it uses, in bytes, where the driver tells it.
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
    /// Device memory as the driver counts it, in bytes.
    pub driver_bytes: Option<u64>,
    /// Device memory as the tenant's ledger counts it, in bytes; none if it has no slot there.
    pub ledger_bytes: Option<u64>,
    /// Device memory that is neither in the ledger, shared memory included, nor within the tenant's
    /// allowance for the driver, in bytes; none if that is no more than the driver's rounding
    /// explains.
    pub beyond_bytes: Option<u64>,
    /// Whether no limit of the tenant holds it.
    pub escaped: bool,
    /// The process and no later one of its number.
    #[serde(skip)]
    pub process: ProcessId,
    /// The GPU.
    #[serde(skip)]
    pub device: GpuMeta,
}

/// A process that was seen to have escaped. It is looked for also when its tenant, or whoever links
/// it to that one, has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Escape {
    /// The tenant.
    pub tenant: String,
    /// The GPU that it uses.
    pub gpu: GpuMeta,
    /// The process.
    pub process: ProcessId,
}

/// What an audit found.
#[derive(Debug, Default)]
pub struct Look {
    /// Every process of a tenant that the driver lists, those that have escaped first.
    pub rows: Vec<AuditRow>,
    /// What could not be looked at.
    pub unseen: Vec<Unseen>,
    /// Tenants of other users that were not looked at, and why, for people.
    pub passed_over: Vec<String>,
}

/// GPUs with tenants of which nobody tells who uses them.
#[derive(Debug)]
pub struct Unseen {
    /// The GPUs.
    pub gpus: Vec<GpuMeta>,
    /// Why.
    pub error: Error,
}

/// Why a process is not held by its tenant's limits, and what ends it, for people.
pub fn escape_remedy(pid: u32, tenant: &str) -> String {
    format!(
        "it runs without libpartita.so (docs/boundaries.md); `kill {pid}` ends it, `partita kill {tenant}` the tenant and what it still \
         finds of it"
    )
}

/// What it means that a process has more memory than its ledger and the allowance say, for people.
pub const BEYOND_REMEDY: &str = "it reached the driver past libpartita.so, or keeps memory by a descriptor that it has \
                                 not closed (docs/boundaries.md); end it if it is not to have it";

/// What it means that a process has a gate open and is no tenant's, for people.
pub const STRANGER_REMEDY: &str = "is no tenant's: it can undo priorities and disturb whoever has one; end it, and let only those users in \
                                   whose tenants mean each other well (docs/boundaries.md)";

/// The processes that the management library of this process's library path lists.
///
/// # Errors
/// Why it cannot.
pub fn read_here() -> Result<Listing, String> {
    let nvml = Nvml::builder().lib_path(OsStr::new("libnvidia-ml.so.1")).init();
    nvml.and_then(|nvml| listing(&nvml)).map_err(|error| format!("NVML: {error}"))
}

fn listing(nvml: &Nvml) -> Result<Listing, NvmlError> {
    let mut listing = Listing::default();
    for index in 0..nvml.device_count()? {
        // One that has fallen off the bus does not hide the others.
        match nvml.device_by_index(index).and_then(|device| listed(&device)) {
            Ok(gpus) => listing.gpus.extend(gpus),
            Err(error) => listing.silent.push(format!("GPU {index}: {error}")),
        }
    }
    Ok(listing)
}

/// A GPU, and the instances that it is cut up into.
fn listed(device: &Device<'_>) -> Result<Vec<ListedGpu>, NvmlError> {
    let mut gpus = Vec::new();
    if device.mig_mode().is_ok_and(|mode| mode.current != 0) {
        for number in 0..device.mig_device_count()? {
            // Their numbers may have gaps.
            if let Ok(instance) = device.mig_device_by_index(number) {
                gpus.push(of_one(&instance)?);
            }
        }
    }
    gpus.push(of_one(device)?);
    Ok(gpus)
}

fn of_one(device: &Device<'_>) -> Result<ListedGpu, NvmlError> {
    // Clients of the MPS service are in a list of their own, which older drivers do not have.
    let of_service = device.mps_running_compute_processes().unwrap_or_default();
    let mut found = BTreeMap::new();
    for process in device.running_compute_processes()?.into_iter().chain(of_service) {
        let used_bytes = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        found.insert(process.pid, DriverProcess { pid: process.pid, used_bytes });
    }
    Ok(ListedGpu { uuid: device.uuid()?, processes: found.into_values().collect() })
}

/// Every process of a tenant that the driver lists, and what has become of those that had `escaped`
/// before. A part that cannot be looked at hides no other.
///
/// # Errors
/// What reading the registry ends with.
pub fn look(install: &Install, registry: &Registry, escaped: &[Escape]) -> Result<Look, Error> {
    let tenants = registry.lock()?.tenants()?;
    let mut look = Look::default();
    // What another user's file names is neither connected to nor believed: it may be a board that
    // never answers, or hide a GPU of somebody else's tenants.
    let (looked_at, passed_over): (Vec<Tenant>, Vec<Tenant>) =
        tenants.into_iter().partition(|tenant| tenant.is_own() || is_on_its_gpu(tenant));
    look.passed_over = passed_over.iter().map(why_passed_over).collect();
    let mut tenants = looked_at;
    tenants.sort_by_key(|tenant| !tenant.is_own());
    let mut gpus: Vec<GpuMeta> = Vec::new();
    for gpu in tenants.iter().filter_map(gpu_of).chain(escaped.iter().map(|escape| escape.gpu.clone())) {
        if gpus.iter().all(|known| known.key != gpu.key) {
            gpus.push(gpu);
        }
    }
    while let Some(first) = gpus.first() {
        // One library tells of all real GPUs, or of all of one simulated machine.
        let sim = first.sim.clone();
        let (together, others) = gpus.into_iter().partition(|gpu| gpu.sim == sim);
        gpus = others;
        match ask(install, sim.as_ref()) {
            Ok(listing) => look.add(&tenants, escaped, together, &listing),
            Err(error) => look.unseen.push(Unseen { gpus: together, error }),
        }
    }
    look.rows.sort_by(|one, other| {
        (!one.escaped, &one.tenant, one.pid).cmp(&(!other.escaped, &other.tenant, other.pid))
    });
    Ok(look)
}

/// Whether the directory that a tenant is in bears the name of the real GPU that it says it is on.
fn is_on_its_gpu(tenant: &Tenant) -> bool {
    tenant.meta.as_ref().is_ok_and(|meta| meta.gpu.sim.is_none() && meta.gpu.uuid == tenant.gpu_key)
}

fn why_passed_over(tenant: &Tenant) -> String {
    let reason = match &tenant.meta {
        Ok(meta) if meta.gpu.sim.is_some() => "it is on a simulated GPU of its user's",
        Ok(_) => "it does not say which GPU it is on",
        Err(_) => "its meta.json is damaged",
    };
    format!("tenant {} of {} was not looked at: {reason}", tenant.name, user_name(tenant.user))
}

/// What the management library says, of the real GPUs or of a simulated machine.
fn ask(install: &Install, sim: Option<&SimMeta>) -> Result<Listing, Error> {
    let variables = match sim {
        Some(sim) => SimEnvironment::create(install, &sim.device)?.with_boards_in(&sim.dir).variables(),
        None => Vec::new(),
    };
    let asked = Job::new(install, JOB, &())?.envs(variables).limit(LIMIT).run()?;
    asked.map_err(|error| {
        error.or(|reason| Error::Driver { reason: format!("the management library: {reason}") })
    })
}

impl Look {
    fn add(&mut self, tenants: &[Tenant], escaped: &[Escape], gpus: Vec<GpuMeta>, listing: &Listing) {
        for gpu in gpus {
            let Some(listed) = listing.gpus.iter().find(|listed| listed.uuid == gpu.uuid) else {
                let reason = format!(
                    "the management library tells nothing of {} ({}){}",
                    gpu.label,
                    gpu.uuid,
                    listing.silent.iter().map(|said| format!("; it says: {said}")).collect::<String>()
                );
                self.unseen.push(Unseen { gpus: vec![gpu], error: Error::Driver { reason } });
                continue;
            };
            let here: Vec<&Tenant> = tenants.iter().filter(|tenant| tenant.gpu_key == gpu.key).collect();
            let escaped: Vec<&Escape> = escaped.iter().filter(|escape| escape.gpu.key == gpu.key).collect();
            self.rows
                .extend(listed.processes.iter().filter_map(|process| row(&gpu, &here, &escaped, process)));
        }
    }
}

/// What a process is to the tenants of its GPU: none if it is no tenant's.
fn row(gpu: &GpuMeta, tenants: &[&Tenant], escaped: &[&Escape], listed: &DriverProcess) -> Option<AuditRow> {
    // The slot of one that ends may be free before the driver has forgotten it.
    let process = ProcessId::living(listed.pid).filter(|process| !process.is_ending())?;
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
    // What a tenant's files say holds for its own user's processes.
    let is_of = |tenant: &&&Tenant| {
        tenant.meta().is_ok_and(|meta| {
            let is_it = |child: ProcessId| ancestors.contains(&child) && child.user() == Some(tenant.user);
            meta.child.is_some_and(is_it)
        })
    };
    let tenant = tenants.iter().find(is_of).map(|tenant| &tenant.name);
    // Nothing leads from one whose parent has ended to its tenant any more.
    let known =
        || escaped.iter().find(|escape| ancestors.contains(&escape.process)).map(|escape| &escape.tenant);
    tenant.or_else(known).map(|tenant| row(tenant, None))
}
