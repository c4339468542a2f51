//! Virtual functions of accelerators, and NVIDIA's vGPUs: shown, planned, created, given to virtual
//! machines, and destroyed.
//!
//! The kernel's files are read and written in this process. A change has a lock and a journal, as
//! one of MIG instances has. Functions of an NVIDIA GPU are enabled by NVIDIA's own program alone.

mod device;
mod journal;
mod meaning;
mod nvidia;
mod nvml;
mod report;
mod sysfs;
mod target;
#[cfg(test)]
mod tests;
mod users;
mod vendor;
mod which;
mod work;

use std::time::{Duration, Instant};

use crate::error::Error;
use crate::gpus::{self, Selectors};
use crate::install::Install;
use crate::registry::Registry;

pub use report::{FunctionRow, Hostdev, VfChange, VfReport, VfStep, VfWrite, VgpuRow, VgpuTypeRow};
pub use target::{VfTarget, VfTime};

use device::Device;
use nvidia::NVIDIA;
use nvml::{Absent, Host, OfGpu};
pub(crate) use nvml::{JOB, work_here};
use sysfs::{Sysfs, System};
use work::Here;

/// How long to wait for another change.
const LOCK_LIMIT: Duration = Duration::from_secs(60);

/// The devices of this machine that can be divided, and what they have.
///
/// # Errors
/// [`Error::Refused`] with the reason.
pub fn list(install: &Install, registry: &Registry) -> Result<Vec<VfReport>, Error> {
    let system = System::here();
    let devices = devices(&system)?;
    let report = |device: &Device| {
        let journal = journal::of(registry.root(), &device.address);
        let host = host_of(install, &system, &device.address);
        let here = Here::read(&system, &*host, &device.address)?;
        Ok(here.report(journal.before()?.is_some()))
    };
    devices.iter().map(|device| report(device).map_err(|reason| refused(&device.address, reason))).collect()
}

/// What a change to `target` would do. Nothing changes.
///
/// # Errors
/// [`Error::Refused`] with the reason why there is no way.
pub fn plan(
    install: &Install,
    registry: &Registry,
    device: Option<&str>,
    target: &VfTarget,
    time: VfTime,
) -> Result<VfChange, Error> {
    let system = System::here();
    let address = choose(&system, device, target)?;
    let work = || {
        let host = host_of(install, &system, &address);
        let here = Here::read(&system, &*host, &address)?;
        let before = journal::of(registry.root(), &address).before()?.map(Into::into);
        let wanted = here.wanted(target, time, before)?;
        here.steps_to(&wanted)
    };
    work().map_err(|reason| refused(&address, reason))
}

/// Changes a device. If a write fails, what was before is restored. If the process is killed, the
/// next call continues.
///
/// # Errors
/// As [`plan`]; the write that failed, and whether everything is as before.
pub fn apply(
    install: &Install,
    registry: &Registry,
    device: Option<&str>,
    target: &VfTarget,
    time: VfTime,
) -> Result<VfChange, Error> {
    let system = System::here();
    let address = choose(&system, device, target)?;
    if !system.may_write() {
        return Err(refused(&address, "only root changes it; run the command as root".to_owned()));
    }
    let deadline = Instant::now() + LOCK_LIMIT;
    let _lock = loop {
        match registry.try_lock_device(&address)? {
            Some(lock) => break lock,
            None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            None => return Err(refused(&address, "another command changes it; try again later".to_owned())),
        }
    };
    let journal = journal::of(registry.root(), &address);
    let host = host_of(install, &system, &address);
    work::apply(&system, &*host, &journal, &address, target, time).map_err(|reason| refused(&address, reason))
}

/// The vGPU driver of a device, if it is a GPU that NVML shows.
fn host_of<'a>(install: &'a Install, sysfs: &dyn Sysfs, address: &str) -> Box<dyn Host + 'a> {
    let is_nvidia = Device::read(sysfs, address).is_ok_and(|device| device.vendor == NVIDIA);
    if !is_nvidia {
        return Box::new(Absent);
    }
    // `PARTITA_GPU` may name a simulated machine.
    let named = std::env::var("PARTITA_GPU").ok().and_then(|text| text.parse::<Selectors>().ok());
    let selectors = named.unwrap_or(Selectors::All(None));
    let found = gpus::select(install, Some(&selectors)).map(|selected| selected.gpus).unwrap_or_default();
    let is_meant = |pci: &str| pci.to_ascii_lowercase().ends_with(&address.to_ascii_lowercase());
    let gpu = found.into_iter().find(|gpu| gpu.facts.pci.as_deref().is_some_and(is_meant));
    gpu.map_or_else(|| Box::new(Absent) as Box<dyn Host>, |gpu| Box::new(OfGpu::new(install, gpu)))
}

fn refused(address: &str, reason: String) -> Error {
    Error::Refused { what: format!("virtual functions of {address}"), reason }
}

fn devices(sysfs: &dyn Sysfs) -> Result<Vec<Device>, Error> {
    match Device::all(sysfs) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        devices => devices.map_err(|error| refused("this machine", error.to_string())),
    }
}

/// The device that is meant: the named one, the one with the named parts, or the only one.
fn choose(sysfs: &dyn Sysfs, named: Option<&str>, target: &VfTarget) -> Result<String, Error> {
    let devices = devices(sysfs)?;
    let known: Vec<&str> = devices.iter().map(|device| device.address.as_str()).collect();
    let shown = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    if let Some(named) = named {
        let found = known.iter().find(|address| address.eq_ignore_ascii_case(named));
        return found.map(|address| (*address).to_owned()).ok_or_else(|| {
            refused(named, format!("no accelerator there can be divided; there are {shown}"))
        });
    }
    if let VfTarget::Without(names) | VfTarget::Bound(names) | VfTarget::Released(names) = target {
        for device in &devices {
            let here = Here::read(sysfs, &Absent, &device.address)
                .map_err(|reason| refused(&device.address, reason))?;
            let report = here.report(false);
            let mut parts = report.functions.iter().map(|one| &one.address);
            if parts.any(|part| names.contains(part))
                || report.vgpus.iter().any(|one| names.contains(&one.name))
            {
                return Ok(device.address.clone());
            }
        }
    }
    match known[..] {
        [only] => Ok(only.to_owned()),
        [] => Err(refused(
            "this machine",
            "no accelerator here has SR-IOV or vGPUs; use `partita mig` or `partita run --sm`".to_owned(),
        )),
        _ => Err(refused("this machine", format!("name one of {shown} with --device"))),
    }
}
