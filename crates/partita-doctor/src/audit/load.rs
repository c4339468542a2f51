//! The load of every GPU as NVML reports it, and the processes there that belong to no tenant.

use std::time::Duration;

use partita_host::error::Error;
use partita_host::gpu::Selector;
use partita_host::gpus::Selectors;
use partita_host::install::Install;
use partita_host::process::ProcessId;
use partita_host::registry::{GpuMeta, Registry, SimMeta, Tenant};
use partita_host::simenv;
use serde::Serialize;

use super::charged::gpu_of;
use super::{ListedGpu, Listing, Outsider, ask, may_be_followed, row};

/// A driver that takes longer is not waited for: `ps` must show the tenants in any case.
const LIMIT: Duration = Duration::from_secs(10);

/// A GPU and its load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GpuLoad {
    /// The GPU's short name.
    pub gpu: String,
    /// The GPU's UUID.
    pub gpu_uuid: String,
    /// Its device memory, in bytes.
    pub memory_total_bytes: Option<u64>,
    /// Device memory that all programs use, in bytes.
    pub memory_used_bytes: Option<u64>,
    /// The part of the driver's last sample period, a second or less, in which a kernel ran, in
    /// percent.
    pub busy_percent: Option<u32>,
    /// The part of it in which memory was read or written, in percent.
    pub memory_busy_percent: Option<u32>,
}

/// The loads of all GPUs of this machine, and those of simulated ones.
#[derive(Debug, Clone, Default)]
pub struct Loads {
    /// Each GPU.
    pub gpus: Vec<GpuLoad>,
    /// Processes that belong to no tenant, by GPU and number.
    pub outsiders: Vec<Outsider>,
    /// Why some GPUs are missing, one line each.
    pub unseen: Vec<String>,
}

/// Queries the drivers of this machine's GPUs, of the tenants' simulated ones, and of those that
/// `wanted` names. A simulated GPU that no program uses is not started for this.
///
/// # Errors
/// Those of reading the registry.
pub fn loads(install: &Install, registry: &Registry, wanted: Option<&Selectors>) -> Result<Loads, Error> {
    let tenants = registry.lock()?.tenants()?;
    let mut loads = Loads::default();
    let real = match ask(install, None, LIMIT) {
        Ok(listing) => listing,
        Err(error) => {
            loads.unseen.push(format!("programs outside of tenants are not shown: {error}"));
            Listing::default()
        }
    };
    loads.add(None, &real, &tenants);
    let mut sims: Vec<SimMeta> = tenants
        .iter()
        .filter(|tenant| may_be_followed(tenant))
        .filter_map(|tenant| gpu_of(tenant)?.sim)
        .chain(simulated(wanted, real.has_driver))
        .collect();
    sims.sort_unstable_by(|one, other| (&one.device, &one.dir).cmp(&(&other.device, &other.dir)));
    sims.dedup();
    for sim in sims {
        match ask(install, Some(&sim), LIMIT) {
            Ok(listing) => loads.add(Some(&sim), &listing, &tenants),
            Err(error) => {
                loads
                    .unseen
                    .push(format!("sim:{}: programs outside of tenants are not shown: {error}", sim.device));
            }
        }
    }
    Ok(loads)
}

/// The simulated machines that commands of this process use, if they run.
fn simulated(wanted: Option<&Selectors>, has_driver: bool) -> Vec<SimMeta> {
    let Some(dir) = simenv::running_boards() else { return Vec::new() };
    let inherited = std::env::var("PARTITA_SIM_DEVICE").ok().filter(|device| !device.is_empty());
    let devices: Vec<String> = match wanted {
        Some(Selectors::List(list)) => {
            let device = |selector: &Selector| match selector {
                Selector::Sim(device, _) => Some(device.clone()),
                _ => None,
            };
            list.iter().filter_map(device).collect()
        }
        Some(Selectors::All(device) | Selectors::Any(device)) => device.clone().into_iter().collect(),
        None if has_driver => inherited.into_iter().collect(),
        None => vec![inherited.unwrap_or_else(|| simenv::DEFAULT_DEVICE.to_owned())],
    };
    devices.into_iter().map(|device| SimMeta { device, dir: dir.clone() }).collect()
}

impl Loads {
    fn add(&mut self, sim: Option<&SimMeta>, listing: &Listing, tenants: &[Tenant]) {
        if listing.has_driver {
            self.unseen
                .extend(listing.silent.iter().map(|reason| format!("the driver does not report {reason}")));
        }
        for listed in &listing.gpus {
            let here: Vec<&Tenant> = tenants
                .iter()
                .filter(|tenant| {
                    gpu_of(tenant).is_some_and(|gpu| gpu.uuid == listed.uuid && gpu.sim.as_ref() == sim)
                })
                .collect();
            let gpu = here.first().and_then(|tenant| gpu_of(tenant)).unwrap_or_else(|| meta(sim, listed));
            for process in &listed.processes {
                let Some(id) = ProcessId::living(process.pid).filter(|id| !id.is_ending()) else { continue };
                if row(&gpu, &here, &[], process, id).is_none() && !is_hidden(&here, id) {
                    self.outsiders.extend(Outsider::of(&gpu, process, id));
                }
            }
            self.gpus.push(GpuLoad {
                gpu: gpu.label,
                gpu_uuid: gpu.uuid,
                memory_total_bytes: listed.memory_bytes.map(|(total, _)| total),
                memory_used_bytes: listed.memory_bytes.map(|(_, used)| used),
                busy_percent: listed.busy_percent,
                memory_busy_percent: listed.memory_busy_percent,
            });
        }
    }
}

/// Whether the process may be of a tenant of its user, whose files this user cannot read, or which
/// are damaged.
pub(super) fn is_hidden(tenants: &[&Tenant], process: ProcessId) -> bool {
    let is_unknown = |tenant: &&Tenant| tenant.usage().is_err() || tenant.meta.is_err();
    tenants.iter().any(|tenant| process.user() == Some(tenant.user) && is_unknown(tenant))
}

/// A GPU without tenants.
fn meta(sim: Option<&SimMeta>, listed: &ListedGpu) -> GpuMeta {
    let label = match sim {
        Some(sim) => Selector::Sim(sim.device.clone(), listed.index).to_string(),
        None => format!("GPU {} ({})", listed.index, listed.name),
    };
    GpuMeta {
        key: String::new(),
        uuid: listed.uuid.clone(),
        index: Some(listed.index),
        label,
        sim: sim.cloned(),
    }
}
