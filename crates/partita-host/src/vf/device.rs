//! A PCI device with virtual functions, as the kernel shows it.

use std::collections::BTreeMap;
use std::io;

use partita_core::vf::Binding;

use super::sysfs::Sysfs;

/// Where the kernel has its PCI devices.
pub(super) const DEVICES: &str = "sys/bus/pci/devices";

/// A virtual function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Function {
    /// Its PCI address.
    pub address: String,
    /// The driver that has it.
    pub driver: Option<String>,
    /// The only driver that may take it (`driver_override`).
    pub forced: Option<String>,
}

/// A device.
#[derive(Debug, Clone)]
pub(super) struct Device {
    /// Its PCI address.
    pub address: String,
    /// The vendor's id.
    pub vendor: u32,
    /// The device's id.
    pub id: u32,
    /// The driver that has it.
    pub driver: Option<String>,
    /// The most virtual functions.
    pub functions_max: u16,
    /// The enabled ones, in the order of their numbers.
    pub functions: Vec<Function>,
}

impl Device {
    /// The accelerators of this machine that have virtual functions or vGPUs.
    pub fn all(sysfs: &dyn Sysfs) -> io::Result<Vec<Self>> {
        let mut devices = Vec::new();
        for address in sysfs.list(DEVICES)? {
            if is_physical(sysfs, &address) {
                devices.push(Self::read(sysfs, &address)?);
            }
        }
        Ok(devices)
    }

    /// Reads a device.
    pub fn read(sysfs: &dyn Sysfs, address: &str) -> io::Result<Self> {
        let path = |name: &str| format!("{DEVICES}/{address}/{name}");
        let count: u16 = number(sysfs.read(&path("sriov_numvfs")))?;
        let mut functions = Vec::new();
        for at in 0..count {
            functions.push(Function::read(sysfs, &sysfs.link(&path(&format!("virtfn{at}")))?)?);
        }
        Ok(Self {
            address: address.to_owned(),
            vendor: hex(&sysfs.read(&path("vendor"))?)?,
            id: hex(&sysfs.read(&path("device"))?)?,
            driver: optional(sysfs.link(&path("driver")))?,
            functions_max: number(sysfs.read(&path("sriov_totalvfs")))?,
            functions,
        })
    }

    /// The only drivers that may take its functions.
    pub fn bindings(&self) -> BTreeMap<u16, Binding> {
        let binding = |(at, function): (u16, &Function)| {
            let driver = function.forced.clone()?;
            let is_bound = function.driver.as_ref() == Some(&driver);
            Some((at, Binding { driver, is_bound }))
        };
        (0..).zip(&self.functions).filter_map(binding).collect()
    }
}

impl Function {
    fn read(sysfs: &dyn Sysfs, address: &str) -> io::Result<Self> {
        let path = |name: &str| format!("{DEVICES}/{address}/{name}");
        let forced = optional(sysfs.read(&path("driver_override")))?;
        Ok(Self {
            address: address.to_owned(),
            driver: optional(sysfs.link(&path("driver")))?,
            forced: forced.filter(|name| !name.is_empty() && name != "(null)"),
        })
    }
}

/// Whether it is an accelerator, no virtual function itself, and can be divided.
fn is_physical(sysfs: &dyn Sysfs, address: &str) -> bool {
    let path = |name: &str| format!("{DEVICES}/{address}/{name}");
    let class = sysfs.read(&path("class")).ok().and_then(|class| hex(&class).ok()).unwrap_or(0);
    // Display controllers, processing accelerators and co-processors.
    let is_accelerator = matches!(class >> 16, 0x03 | 0x12) || class >> 8 == 0x0b40;
    let functions_max: u16 = number(sysfs.read(&path("sriov_totalvfs"))).unwrap_or(0);
    let is_divided = functions_max > 0 || sysfs.list(&path("mdev_supported_types")).is_ok();
    is_accelerator && is_divided && sysfs.link(&path("physfn")).is_err()
}

/// A value that may be absent.
fn optional<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// A number; 0 without the file.
fn number(read: io::Result<String>) -> io::Result<u16> {
    optional(read)?.map_or(Ok(0), |text| text.parse().map_err(|_| invalid(&text)))
}

fn hex(text: &str) -> io::Result<u32> {
    u32::from_str_radix(text.trim_start_matches("0x"), 16).map_err(|_| invalid(text))
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} is no number"))
}
