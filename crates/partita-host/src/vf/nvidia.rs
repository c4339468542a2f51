//! NVIDIA's vGPUs: on functions by the driver's own files, or as mediated devices.

use std::io;

use partita_core::vf::{Form, Place, Vgpu, VgpuType};

use super::device::{DEVICES, Device};
use super::sysfs::Sysfs;
use super::vendor::{Vendor, Write};

/// The PCI id of the vendor.
pub(super) const NVIDIA: u32 = 0x10de;

const TYPES: &str = "mdev_supported_types";

/// NVIDIA's guide allows no other way to enable the functions.
fn sriov_manage(device: &Device) -> Option<String> {
    Some(format!("/usr/lib/nvidia/sriov-manage -e {}", device.address))
}

/// A vGPU is a number that is written to a function (Linux from 6.8 on).
pub(super) struct Functions;

impl Functions {
    fn file(device: &Device, place: Place, name: &str) -> String {
        let at = match place {
            Place::Function(at) => at,
            Place::Device => 0,
        };
        format!("{DEVICES}/{}/virtfn{at}/nvidia/{name}", device.address)
    }
}

impl Vendor for Functions {
    fn words(&self) -> &'static str {
        "NVIDIA vGPU on functions"
    }

    fn form(&self) -> Form {
        Form::Functions
    }

    fn enabler(&self, device: &Device) -> Option<String> {
        sriov_manage(device)
    }

    fn driver_for_machines(&self) -> Option<&'static str> {
        None
    }

    fn types(&self, sysfs: &dyn Sysfs, device: &Device) -> io::Result<Vec<VgpuType>> {
        let mut types: Vec<VgpuType> = Vec::new();
        for at in (0..).take(device.functions.len()) {
            let text = sysfs.read(&Self::file(device, Place::Function(at), "creatable_vgpu_types"))?;
            let named = text.lines().filter_map(|line| {
                // The first line may be a heading.
                let (id, name) = line.split_once(':')?;
                Some(VgpuType::named(id.trim().parse().ok()?, name.trim()))
            });
            for one in named {
                if !types.contains(&one) {
                    types.push(one);
                }
            }
        }
        Ok(types)
    }

    fn vgpus(&self, sysfs: &dyn Sysfs, device: &Device) -> io::Result<Vec<Vgpu>> {
        let mut vgpus = Vec::new();
        for at in (0..).take(device.functions.len()) {
            let place = Place::Function(at);
            let text = sysfs.read(&Self::file(device, place, "current_vgpu_type"))?;
            let kind = text.parse().map_err(|_| {
                io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} is no number of a type"))
            })?;
            if kind != 0 {
                vgpus.push(Vgpu { place, kind, uuid: String::new() });
            }
        }
        Ok(vgpus)
    }

    fn create(&self, device: &Device, vgpu: &Vgpu) -> Write {
        Write::new(Self::file(device, vgpu.place, "current_vgpu_type"), &vgpu.kind.to_string())
    }

    fn remove(&self, device: &Device, vgpu: &Vgpu) -> Write {
        Write::new(Self::file(device, vgpu.place, "current_vgpu_type"), "0")
    }
}

/// A vGPU is a mediated device, on a function or on the GPU itself.
pub(super) struct Mediated {
    /// On the GPU itself, as before Ampere.
    pub is_on_device: bool,
}

impl Mediated {
    fn parents(&self, device: &Device) -> Vec<(Place, String)> {
        if self.is_on_device {
            return vec![(Place::Device, device.address.clone())];
        }
        let functions = (0..).map(Place::Function).zip(&device.functions);
        functions.map(|(place, function)| (place, function.address.clone())).collect()
    }

    /// The numbers of a parent's types, with the names of their directories.
    fn of_parent(sysfs: &dyn Sysfs, parent: &str) -> io::Result<Vec<(u32, String)>> {
        let names = sysfs.list(&format!("{DEVICES}/{parent}/{TYPES}"))?;
        let number = |name: String| Some((name.strip_prefix("nvidia-")?.parse().ok()?, name));
        Ok(names.into_iter().filter_map(number).collect())
    }
}

impl Vendor for Mediated {
    fn words(&self) -> &'static str {
        "NVIDIA vGPU as mediated devices"
    }

    fn form(&self) -> Form {
        if self.is_on_device { Form::MediatedDevice } else { Form::MediatedFunctions }
    }

    fn enabler(&self, device: &Device) -> Option<String> {
        sriov_manage(device).filter(|_| !self.is_on_device)
    }

    fn driver_for_machines(&self) -> Option<&'static str> {
        None
    }

    fn types(&self, sysfs: &dyn Sysfs, device: &Device) -> io::Result<Vec<VgpuType>> {
        let mut types = Vec::new();
        for (_, parent) in self.parents(device).into_iter().take(1) {
            for (id, name) in Self::of_parent(sysfs, &parent)? {
                let path = format!("{DEVICES}/{parent}/{TYPES}/{name}/name");
                types.push(VgpuType::named(id, &sysfs.read(&path)?));
            }
        }
        Ok(types)
    }

    fn vgpus(&self, sysfs: &dyn Sysfs, device: &Device) -> io::Result<Vec<Vgpu>> {
        let mut vgpus = Vec::new();
        for (place, parent) in self.parents(device) {
            for (kind, name) in Self::of_parent(sysfs, &parent)? {
                let uuids = sysfs.list(&format!("{DEVICES}/{parent}/{TYPES}/{name}/devices"))?;
                vgpus.extend(uuids.into_iter().map(|uuid| Vgpu { place, kind, uuid }));
            }
        }
        vgpus.sort();
        Ok(vgpus)
    }

    fn create(&self, device: &Device, vgpu: &Vgpu) -> Write {
        let parent = match vgpu.place {
            Place::Device => device.address.clone(),
            Place::Function(at) => format!("{}/virtfn{at}", device.address),
        };
        Write::new(format!("{DEVICES}/{parent}/{TYPES}/nvidia-{}/create", vgpu.kind), &vgpu.uuid)
    }

    fn remove(&self, _: &Device, vgpu: &Vgpu) -> Write {
        Write::new(format!("sys/bus/mdev/devices/{}/remove", vgpu.uuid), "1")
    }
}
