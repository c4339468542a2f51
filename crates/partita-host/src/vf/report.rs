//! What the commands report on virtual functions.

use serde::{Deserialize, Serialize};

/// A device that can be divided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VfReport {
    /// Its PCI address.
    pub device: String,
    /// Vendor and device ids, as `10de:2335`.
    pub id: String,
    /// How it is divided.
    pub way: String,
    /// Whether by NVIDIA's vGPUs.
    pub is_nvidia: bool,
    /// The driver that has it.
    pub driver: Option<String>,
    /// The most virtual functions.
    pub functions_max: u16,
    /// The enabled functions.
    pub functions: Vec<FunctionRow>,
    /// The types of vGPUs that can be created now.
    pub types: Vec<VgpuTypeRow>,
    /// The vGPUs.
    pub vgpus: Vec<VgpuRow>,
    /// What an administrator must do before vGPUs can be created.
    pub remedy: Option<String>,
    /// Whether a change was interrupted and is not complete.
    pub is_interrupted: bool,
}

/// A virtual function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionRow {
    /// Its number.
    pub function: u16,
    /// Its PCI address.
    pub address: String,
    /// The driver that has it.
    pub driver: Option<String>,
    /// The only driver that may take it (`driver_override`).
    pub driver_override: Option<String>,
    /// The processes that hold it, as virtual machines do.
    pub users: Vec<u32>,
}

/// A type of vGPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VgpuTypeRow {
    /// The driver's number.
    pub id: u32,
    /// The name.
    pub name: String,
    /// The memory of one in bytes, by its name; 0 if unknown.
    pub memory_bytes: u64,
}

/// A vGPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VgpuRow {
    /// Its name for `assign` and `destroy`: a UUID or the address of its function.
    pub name: String,
    /// The number of its type.
    pub kind: u32,
    /// The name of its type, or its number where the driver lists no such type now.
    pub type_name: String,
    /// The PCI address of its function or GPU.
    pub on: String,
    /// The processes that hold it.
    pub users: Vec<u32>,
}

/// A change, planned or made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VfChange {
    /// The device's PCI address.
    pub device: String,
    /// The steps, in order.
    pub steps: Vec<VfStep>,
    /// Whether they were done.
    pub is_applied: bool,
    /// Whether the change completed one that was interrupted.
    pub is_continued: bool,
    /// How a virtual machine gets each part, as it is after the change.
    pub hostdevs: Vec<Hostdev>,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VfStep {
    /// What it does.
    pub what: String,
    /// The writes, in order.
    pub writes: Vec<VfWrite>,
}

/// A write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VfWrite {
    /// The file.
    pub path: String,
    /// The value.
    pub value: String,
}

/// The lines with which a virtual machine gets a function or a vGPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hostdev {
    /// The part's name.
    pub name: String,
    /// The element for libvirt.
    pub libvirt: String,
    /// The option for QEMU.
    pub qemu: String,
}

impl Hostdev {
    /// A PCI function. `None` if it is no PCI address.
    pub(super) fn of_function(address: &str) -> Option<Self> {
        let (domain, rest) = address.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (slot, function) = rest.split_once('.')?;
        Some(Self {
            name: address.to_owned(),
            libvirt: format!(
                "<hostdev mode='subsystem' type='pci' managed='no'><source><address domain='0x{domain}' \
                 bus='0x{bus}' slot='0x{slot}' function='0x{function}'/></source></hostdev>"
            ),
            qemu: format!("-device vfio-pci,sysfsdev=/sys/bus/pci/devices/{address}"),
        })
    }

    /// A mediated device.
    pub(super) fn of_uuid(uuid: &str) -> Self {
        Self {
            name: uuid.to_owned(),
            libvirt: format!(
                "<hostdev mode='subsystem' type='mdev' model='vfio-pci' managed='no'><source><address \
                 uuid='{uuid}'/></source></hostdev>"
            ),
            qemu: format!("-device vfio-pci,sysfsdev=/sys/bus/mdev/devices/{uuid}"),
        }
    }
}
