//! How a vendor's driver divides its devices.

use std::io;

use partita_core::vf::{Form, Vgpu, VgpuType};

use super::device::Device;
use super::sysfs::Sysfs;

/// One write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Write {
    /// The file, without the first `/`.
    pub path: String,
    /// The value.
    pub value: String,
}

impl Write {
    pub fn new(path: String, value: &str) -> Self {
        Self { path, value: value.to_owned() }
    }
}

/// A way to divide devices. What SR-IOV itself defines is the same for all vendors and is not here.
pub(super) trait Vendor {
    /// The words for it.
    fn words(&self) -> &'static str;
    /// How vGPUs are offered.
    fn form(&self) -> Form;
    /// Who enables the functions, if the vendor's own program must.
    fn enabler(&self, device: &Device) -> Option<String>;
    /// The driver that a function needs before a virtual machine can have it.
    fn driver_for_machines(&self) -> Option<&'static str>;
    /// The types of vGPUs.
    fn types(&self, sysfs: &dyn Sysfs, device: &Device) -> io::Result<Vec<VgpuType>>;
    /// The present vGPUs.
    fn vgpus(&self, sysfs: &dyn Sysfs, device: &Device) -> io::Result<Vec<Vgpu>>;
    /// The write that creates a vGPU.
    fn create(&self, device: &Device, vgpu: &Vgpu) -> Write;
    /// The write that removes one.
    fn remove(&self, device: &Device, vgpu: &Vgpu) -> Write;
}

/// SR-IOV alone: each function is an equal part, as of Cambricon's vMLU.
pub(super) struct Plain;

impl Vendor for Plain {
    fn words(&self) -> &'static str {
        "SR-IOV"
    }

    fn form(&self) -> Form {
        Form::Plain
    }

    fn enabler(&self, _: &Device) -> Option<String> {
        None
    }

    fn driver_for_machines(&self) -> Option<&'static str> {
        Some("vfio-pci")
    }

    fn types(&self, _: &dyn Sysfs, _: &Device) -> io::Result<Vec<VgpuType>> {
        Ok(Vec::new())
    }

    fn vgpus(&self, _: &dyn Sysfs, _: &Device) -> io::Result<Vec<Vgpu>> {
        Ok(Vec::new())
    }

    fn create(&self, device: &Device, _: &Vgpu) -> Write {
        unreachable!("{} has no types, so no vGPU of it is planned", device.address)
    }

    fn remove(&self, device: &Device, _: &Vgpu) -> Write {
        unreachable!("{} has no vGPUs, so none is removed", device.address)
    }
}
