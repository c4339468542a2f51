//! `partita ps --audit`: what the driver says of the tenants' processes, beside what their ledgers say.
//!
//! Limits are kept by a library in the tenant's processes. A process that gets rid of it (`docs/boundaries.md`) is
//! not held by them, but the driver lists it: it is found here as one that descends from a tenant's program, uses the
//! GPU, and has no slot in the tenant's ledger. For the others the difference of the two numbers is what a process
//! takes beside its allocations: context, code and queues.

mod gates;

pub use gates::{Stranger, strangers};

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use partita_ledger::SlotInfo;
use serde::{Deserialize, Serialize};

use crate::child::Job;
use crate::error::Error;
use crate::gpu::{self, Selector};
use crate::install::Install;
use crate::process::ProcessId;
use crate::registry::{Registry, Tenant};

/// The name of the job that asks the driver.
pub const JOB: &str = "audit";
const LIMIT: Duration = Duration::from_secs(30);
/// Processes between a program and its descendant; more are a loop of numbers that came back.
const ANCESTORS_MAX: usize = 1000;

/// A process as the driver lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverProcess {
    /// The GPU's UUID.
    pub gpu_uuid: String,
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
    /// Whether no limit of the tenant holds it.
    pub escaped: bool,
}

/// The processes that the management library of this process's library path lists.
///
/// # Errors
/// Why it cannot.
pub fn read_here() -> Result<Vec<DriverProcess>, String> {
    let nvml = Nvml::builder().lib_path(OsStr::new("libnvidia-ml.so.1")).init();
    nvml.and_then(|nvml| processes(&nvml)).map_err(|error| format!("NVML: {error}"))
}

fn processes(nvml: &Nvml) -> Result<Vec<DriverProcess>, NvmlError> {
    let mut found = BTreeMap::new();
    let mut devices = Vec::new();
    for index in 0..nvml.device_count()? {
        let device = nvml.device_by_index(index)?;
        if device.mig_mode().is_ok_and(|mode| mode.current != 0) {
            let instances = (0..device.mig_device_count()?).map(|number| device.mig_device_by_index(number));
            // Their numbers may have gaps.
            devices.extend(instances.flatten());
        }
        devices.push(device);
    }
    for device in devices {
        let uuid = device.uuid()?;
        // Clients of the MPS service are in a list of their own, which older drivers do not have.
        let of_service = device.mps_running_compute_processes().unwrap_or_default();
        for process in device.running_compute_processes()?.into_iter().chain(of_service) {
            let used_bytes = match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            };
            let pid = process.pid;
            found.insert((uuid.clone(), pid), DriverProcess { gpu_uuid: uuid.clone(), pid, used_bytes });
        }
    }
    Ok(found.into_values().collect())
}

/// Every process of a tenant that the driver lists, those that have escaped first.
///
/// # Errors
/// What reading the registry or asking the driver ends with.
pub fn audit(install: &Install, registry: &Registry) -> Result<Vec<AuditRow>, Error> {
    let tenants = registry.lock()?.tenants()?;
    let mut rows = Vec::new();
    let mut asked = Vec::new();
    for part in &tenants {
        let Ok(meta) = part.meta() else { continue };
        if asked.contains(&&meta.gpu.uuid) {
            continue;
        }
        asked.push(&meta.gpu.uuid);
        let selector = match &meta.gpu.sim {
            Some(sim) => Some(Selector::Sim(sim.device.clone(), meta.gpu.index.unwrap_or(0))),
            // Nobody selects an instance; the management library lists those of this machine.
            None if meta.gpu.uuid.starts_with(gpu::INSTANCE) => None,
            None => Some(Selector::Uuid(meta.gpu.uuid.clone())),
        };
        let variables = match &selector {
            Some(selector) => gpu::select(install, Some(selector))?.gpu.variables(),
            None => Vec::new(),
        };
        let listed: Vec<DriverProcess> =
            Job::new(install, JOB, &())?.envs(variables).limit(LIMIT).run()?.map_err(|error| {
                error.or(|reason| Error::Driver { reason: format!("the management library: {reason}") })
            })?;
        let here: Vec<&Tenant> = tenants.iter().filter(|tenant| tenant.gpu_key == part.gpu_key).collect();
        let of_gpu = listed.into_iter().filter(|process| process.gpu_uuid == meta.gpu.uuid);
        rows.extend(of_gpu.filter_map(|process| row(&here, &process)));
    }
    rows.sort_by(|one, other| {
        (!one.escaped, &one.tenant, one.pid).cmp(&(!other.escaped, &other.tenant, other.pid))
    });
    Ok(rows)
}

/// What a process is to the tenants of its GPU: none if it is no tenant's.
fn row(tenants: &[&Tenant], process: &DriverProcess) -> Option<AuditRow> {
    let id = ProcessId::living(process.pid)?;
    let row = |tenant: &Tenant, ledger_bytes: Option<u64>| AuditRow {
        tenant: tenant.name.clone(),
        gpu: tenant.gpu_label().to_owned(),
        pid: process.pid,
        driver_bytes: process.used_bytes,
        ledger_bytes,
        escaped: ledger_bytes.is_none(),
    };
    if let Some((tenant, bytes)) = tenants.iter().find_map(|tenant| Some((tenant, charged(tenant, id)?))) {
        return Some(row(tenant, Some(bytes)));
    }
    let ancestors: Vec<ProcessId> =
        std::iter::successors(Some(id), |process| process.parent()).take(ANCESTORS_MAX).collect();
    let is_of = |tenant: &&&Tenant| {
        tenant.meta().is_ok_and(|meta| meta.child.is_some_and(|child| ancestors.contains(&child)))
    };
    tenants.iter().find(is_of).map(|tenant| row(tenant, None))
}

/// What a tenant's ledger charges a process, if it has a slot there.
fn charged(tenant: &Tenant, process: ProcessId) -> Option<u64> {
    let numbers = process.numbers();
    // In a container it has another number, and the same start.
    let is_it = |slot: &SlotInfo| {
        slot.live
            && slot.pid > 0
            && slot.start_ticks == process.start_ticks
            && numbers.contains(&slot.pid.unsigned_abs())
    };
    tenant.usage().ok()?.slots().flatten().find(is_it).map(|slot| slot.bytes)
}
