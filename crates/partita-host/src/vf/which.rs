//! Which vendor's way a device has.

use super::device::{DEVICES, Device};
use super::nvidia::{Functions, Mediated, NVIDIA};
use super::sysfs::Sysfs;
use super::vendor::{Plain, Vendor};

/// The way of a device.
pub(super) fn of(sysfs: &dyn Sysfs, device: &Device) -> Box<dyn Vendor> {
    let has = |address: &str, name: &str| sysfs.list(&format!("{DEVICES}/{address}/{name}")).is_ok();
    if device.vendor != NVIDIA {
        return Box::new(Plain);
    }
    let first = device.functions.first().map(|function| function.address.as_str());
    if has(&device.address, "mdev_supported_types") {
        return Box::new(Mediated { is_on_device: true });
    }
    match first {
        Some(first) if has(first, "mdev_supported_types") => Box::new(Mediated { is_on_device: false }),
        _ => Box::new(Functions),
    }
}
