//! The device's place on the bus.

use std::ffi::c_char;

use super::{Device, Handle, NvmlReturn, device, put};

/// PCI domain of the simulated device.
const DOMAIN: u32 = 0;
/// PCI device number of the simulated device.
const DEVICE: u32 = 0;

/// NVIDIA's PCI vendor id.
const VENDOR: u32 = 0x10de;

/// `nvmlPciInfo_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PciInfo {
    /// `domain:bus:device.function` with a domain of four digits.
    pub bus_id_legacy: [c_char; 16],
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u32,
    /// Device number.
    pub device: u32,
    /// Device id in the upper half, vendor in the lower.
    pub pci_device_id: u32,
    /// Subsystem id, its vendor in the lower half.
    pub pci_sub_system_id: u32,
    /// `domain:bus:device.function` with a domain of eight digits.
    pub bus_id: [c_char; 32],
}

const _: () = assert!(size_of::<PciInfo>() == 68);

impl PciInfo {
    fn of(device: &Device) -> Self {
        let board = device.place.spec.board;
        let bus = device.place.pci_bus();
        Self {
            bus_id_legacy: chars(&format!("{DOMAIN:04X}:{bus:02X}:{DEVICE:02X}.0")),
            domain: DOMAIN,
            bus,
            device: DEVICE,
            pci_device_id: u32::from(board.pci_device_id) << 16 | VENDOR,
            pci_sub_system_id: board.pci_subsystem_id,
            bus_id: chars(&format!("{DOMAIN:08X}:{bus:02X}:{DEVICE:02X}.0")),
        }
    }
}

/// Text, zero-padded to an array of `N` characters. The callers' texts are shorter.
fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut chars = [0; N];
    for (to, from) in chars.iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    chars
}

/// Whether `[domain:]bus:device[.function]`, in hexadecimal, names the device.
pub(super) fn is_here(device: &Device, id: &str) -> bool {
    parse(id) == Some((DOMAIN, device.place.pci_bus(), DEVICE))
}

fn parse(id: &str) -> Option<(u32, u32, u32)> {
    let (address, function) = id.split_once('.').unwrap_or((id, "0"));
    let hex = |part: &str| u32::from_str_radix(part, 16).ok();
    if hex(function)? != 0 {
        return None;
    }
    let parts: Vec<u32> = address.split(':').map(hex).collect::<Option<_>>()?;
    match parts[..] {
        [domain, bus, device] => Some((domain, bus, device)),
        [bus, device] => Some((0, bus, device)),
        _ => None,
    }
}

/// NVML's number for a PCIe generation's speed (`NVML_PCIE_LINK_MAX_SPEED_*`): the generation
/// itself.
fn link_speed(device: &Device) -> u32 {
    device.place.spec.board.pcie_generation
}

/// Transfers per second of one lane, in millions.
fn lane_speed_mtps(device: &Device) -> Result<u32, NvmlReturn> {
    match device.place.spec.board.pcie_generation {
        1 => Ok(2_500),
        generation @ 2..=6 => Ok([5_000, 8_000, 16_000, 32_000, 64_000][generation as usize - 2]),
        _ => Err(NvmlReturn::NOT_SUPPORTED),
    }
}

nvml_getters! {
    /// Place on the bus.
    fn nvmlDeviceGetPciInfo_v3 -> PciInfo = |device| PciInfo::of(&device);
    /// Highest PCIe generation of device and machine.
    fn nvmlDeviceGetMaxPcieLinkGeneration -> u32 = |device| device.place.spec.board.pcie_generation;
    /// Highest PCIe generation of the device.
    fn nvmlDeviceGetGpuMaxPcieLinkGeneration -> u32 = |device| device.place.spec.board.pcie_generation;
    /// Present PCIe generation.
    fn nvmlDeviceGetCurrPcieLinkGeneration -> u32 = |device| device.place.spec.board.pcie_generation;
    /// Most PCIe lanes.
    fn nvmlDeviceGetMaxPcieLinkWidth -> u32 = |device| device.place.spec.board.pcie_lanes;
    /// Present PCIe lanes.
    fn nvmlDeviceGetCurrPcieLinkWidth -> u32 = |device| device.place.spec.board.pcie_lanes;
    /// Highest speed of the link, as one of NVML's numbers.
    fn nvmlDeviceGetPcieLinkMaxSpeed -> u32 = |device| link_speed(&device);
    /// Speed of a lane, in millions of transfers per second.
    fn nvmlDeviceGetPcieSpeed -> u32 = |device| lane_speed_mtps(&device)?;
}

nvml_api! {
    /// Place on the bus. As the real library does, fills the same structure as the third version up
    /// to its last field, which this version does not have.
    fn nvmlDeviceGetPciInfo_v2(handle: Handle, to: *mut PciInfo) {
        put(to.cast::<[u8; 36]>(), legacy(&PciInfo::of(&*device(handle)?)))
    }
    /// Place on the bus; see the second version.
    fn nvmlDeviceGetPciInfo(handle: Handle, to: *mut PciInfo) {
        put(to.cast::<[u8; 36]>(), legacy(&PciInfo::of(&*device(handle)?)))
    }
}

/// The bytes of the older structure: everything before [`PciInfo::bus_id`].
fn legacy(info: &PciInfo) -> [u8; 36] {
    let mut bytes = [0; 36];
    let text = info.bus_id_legacy.map(|char| char as u8);
    let numbers = [info.domain, info.bus, info.device, info.pci_device_id, info.pci_sub_system_id];
    bytes[..16].copy_from_slice(&text);
    for (to, number) in bytes[16..].chunks_exact_mut(4).zip(numbers) {
        to.copy_from_slice(&number.to_ne_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_every_common_form_are_read() {
        for id in ["00000000:1B:00.0", "0000:1b:00.0", "0:1b:0", "1B:00.0", "1b:0"] {
            assert_eq!(parse(id), Some((0, 0x1b, 0)), "{id}");
        }
        for id in ["", "1b", "0000:02:00.0", "0001:1b:00.0", "0000:1b:00.1", "0000:1b:00.x", "a:b:c:d"] {
            assert_ne!(parse(id), Some((0, 0x1b, 0)), "{id}");
        }
    }
}
