//! The management library's (NVML's) report on the GPUs of this machine.
//!
//! It is read in a child process, for the real library and the simulated one alike: the library
//! then sees the environment that was made for it, and a driver that hangs or crashes affects only
//! the child. A program that is about to start can use the last report (`recent`).

pub(crate) mod fingerprint;
pub(crate) mod recent;

use std::ffi::OsStr;
use std::fmt;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use serde::{Deserialize, Serialize};

/// The name of the job that reads the facts.
pub const JOB: &str = "devices";

/// One GPU as NVML reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuFacts {
    /// NVML's index: the GPUs in the order of their PCI addresses.
    pub index: u32,
    /// `GPU-…`.
    pub uuid: String,
    /// The product's name.
    pub name: String,
    /// The PCI address, if the board has one.
    pub pci: Option<String>,
    /// The PCI ids of device and vendor, as `0x233510de`.
    #[serde(default)]
    pub pci_device_id: Option<u32>,
    /// The compute capability as major and minor number.
    pub compute_capability: (u32, u32),
    /// All device memory in bytes, as NVML counts it.
    pub memory_total_bytes: u64,
    /// Device memory in use by all processes at the time of the query, in bytes. 0 in a cached
    /// answer.
    pub memory_used_bytes: u64,
    /// The part of the last sampling period of NVML in which at least one kernel ran, in percent.
    /// `None` in a cached answer, and where NVML does not report it, as with MIG.
    #[serde(default)]
    pub utilization_percent: Option<u32>,
    /// The part of that period in which device memory was read or written, in percent. `None` as
    /// above.
    #[serde(default)]
    pub memory_utilization_percent: Option<u32>,
    /// Whether MIG is on; `None` if the GPU does not support it.
    pub mig_enabled: Option<bool>,
    /// The instances into which it is cut up.
    #[serde(default)]
    pub mig_instances: Vec<InstanceFacts>,
    /// Which processes may use it: `default`, `exclusive-process`, `prohibited`, or
    /// `exclusive-thread`.
    pub compute_mode: String,
}

impl GpuFacts {
    /// An H200 of 128 GiB, for tests.
    #[doc(hidden)]
    pub fn example() -> Self {
        Self {
            index: 0,
            uuid: "GPU-12".to_owned(),
            name: "NVIDIA H200".to_owned(),
            pci: None,
            pci_device_id: None,
            compute_capability: (9, 0),
            memory_total_bytes: 1 << 37,
            memory_used_bytes: 0,
            utilization_percent: None,
            memory_utilization_percent: None,
            mig_enabled: None,
            mig_instances: Vec::new(),
            compute_mode: "default".to_owned(),
        }
    }
}

/// A MIG instance as NVML reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceFacts {
    /// `MIG-…`, as `CUDA_VISIBLE_DEVICES` takes it.
    pub uuid: String,
    /// The GPU's name and the instance's profile: `NVIDIA H200 MIG 3g.71gb`.
    pub name: String,
    /// Its device memory in bytes, as NVML counts it.
    pub memory_total_bytes: u64,
    /// Device memory in use by all processes at the time of the query, in bytes. 0 in a cached
    /// answer.
    pub memory_used_bytes: u64,
}

impl InstanceFacts {
    /// The profile alone: `3g.71gb`.
    pub fn profile(&self) -> &str {
        self.name.rsplit_once(" MIG ").map_or(self.name.as_str(), |(_, profile)| profile)
    }
}

/// All GPUs of one management library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// The driver's build, as `580.159.04`.
    pub driver_version: String,
    /// The newest CUDA that the driver serves, thousands for the major: 13000 is 13.0.
    pub cuda_version: u32,
    /// The GPUs, by index.
    pub gpus: Vec<GpuFacts>,
    /// GPUs that NVML counts but cannot read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<UnreadableGpu>,
}

/// A GPU that NVML cannot read, such as one that has fallen off the bus.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadableGpu {
    /// NVML's index.
    pub index: u32,
    /// `GPU-…`, if NVML still reports it.
    pub uuid: Option<String>,
    /// NVML's error.
    pub reason: String,
}

impl Inventory {
    /// From NVML's answer for each index.
    fn of(
        driver_version: String,
        cuda_version: u32,
        answers: impl Iterator<Item = Result<GpuFacts, UnreadableGpu>>,
    ) -> Self {
        let mut inventory = Self { driver_version, cuda_version, gpus: Vec::new(), unreadable: Vec::new() };
        for answer in answers {
            match answer {
                Ok(gpu) => inventory.gpus.push(gpu),
                Err(gpu) => inventory.unreadable.push(gpu),
            }
        }
        inventory
    }
}

impl fmt::Display for UnreadableGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {} cannot be read: {}", self.index, self.reason)
    }
}

/// The result of the job: an inventory, or a machine without a driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// There is a driver.
    Driver(Inventory),
    /// There is no driver, for this reason.
    NoDriver(String),
}

/// Loads the management library of this process's library path and reads its report.
///
/// # Errors
/// One line if there is a driver that does not work.
pub fn read() -> Result<Reading, String> {
    let nvml = match Nvml::builder().lib_path(OsStr::new("libnvidia-ml.so.1")).init() {
        Ok(nvml) => nvml,
        Err(NvmlError::LibloadingError(_)) => {
            return Ok(Reading::NoDriver("libnvidia-ml.so.1 is not installed".to_owned()));
        }
        Err(NvmlError::DriverNotLoaded) => {
            return Ok(Reading::NoDriver("the NVIDIA kernel module is not loaded".to_owned()));
        }
        Err(NvmlError::LibRmVersionMismatch) => {
            return Err(
                "the kernel module and the libraries are of different versions: restart the machine \
                        after a driver update"
                    .to_owned(),
            );
        }
        Err(error) => return Err(format!("NVML does not start: {error}")),
    };
    let inventory = inventory(&nvml).map_err(|error| format!("NVML: {error}"))?;
    match inventory.unreadable.first().filter(|_| inventory.gpus.is_empty()) {
        Some(first) => Err(first.to_string()),
        None => Ok(Reading::Driver(inventory)),
    }
}

fn inventory(nvml: &Nvml) -> Result<Inventory, NvmlError> {
    let answer = |index| {
        facts(nvml, index).map_err(|error| UnreadableGpu {
            index,
            uuid: nvml.device_by_index(index).and_then(|device| device.uuid()).ok(),
            reason: format!("NVML: {error}"),
        })
    };
    let cuda_version = u32::try_from(nvml.sys_cuda_driver_version()?).unwrap_or(0);
    Ok(Inventory::of(nvml.sys_driver_version()?, cuda_version, (0..nvml.device_count()?).map(answer)))
}

fn facts(nvml: &Nvml, index: u32) -> Result<GpuFacts, NvmlError> {
    use nvml_wrapper::enum_wrappers::device::ComputeMode;

    let device = nvml.device_by_index(index)?;
    let capability = device.cuda_compute_capability()?;
    let memory = device.memory_info()?;
    let pci = device.pci_info().ok();
    let rates = device.utilization_rates().ok();
    let number = |value: i32| u32::try_from(value).unwrap_or(0);
    Ok(GpuFacts {
        index,
        uuid: device.uuid()?,
        name: device.name()?,
        pci_device_id: pci.as_ref().map(|pci| pci.pci_device_id),
        pci: pci.map(|pci| pci.bus_id),
        compute_capability: (number(capability.major), number(capability.minor)),
        memory_total_bytes: memory.total,
        memory_used_bytes: memory.used,
        utilization_percent: rates.as_ref().map(|rates| rates.gpu),
        memory_utilization_percent: rates.as_ref().map(|rates| rates.memory),
        mig_enabled: device.mig_mode().ok().map(|mode| mode.current != 0),
        mig_instances: instances(&device)?,
        compute_mode: match device.compute_mode()? {
            ComputeMode::Default => "default",
            ComputeMode::ExclusiveProcess => "exclusive-process",
            ComputeMode::ExclusiveThread => "exclusive-thread",
            ComputeMode::Prohibited => "prohibited",
        }
        .to_owned(),
    })
}

/// The instances of a GPU; their numbers may have gaps.
fn instances(device: &nvml_wrapper::Device<'_>) -> Result<Vec<InstanceFacts>, NvmlError> {
    if !device.mig_mode().is_ok_and(|mode| mode.current != 0) {
        return Ok(Vec::new());
    }
    let facts = |number| -> Result<Option<InstanceFacts>, NvmlError> {
        let instance = match device.mig_device_by_index(number) {
            Err(NvmlError::NotFound) => return Ok(None),
            instance => instance?,
        };
        let memory = instance.memory_info()?;
        Ok(Some(InstanceFacts {
            uuid: instance.uuid()?,
            name: instance.name()?,
            memory_total_bytes: memory.total,
            memory_used_bytes: memory.used,
        }))
    };
    (0..device.mig_device_count()?).filter_map(|number| facts(number).transpose()).collect()
}
