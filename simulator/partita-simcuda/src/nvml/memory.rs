//! Memory in use.

use super::{Handle, NvmlReturn, device, get, put};
use crate::shared::place::usable_bytes;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// All of it, in bytes.
    pub total: u64,
    /// Not in use, in bytes.
    pub free: u64,
    /// In use, in bytes.
    pub used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryV2 {
    /// Size and version of the structure.
    pub version: u32,
    /// All of it, in bytes.
    pub total: u64,
    /// The reserve of driver and firmware, in bytes, which the driver API does not count as the
    /// device's.
    pub reserved: u64,
    /// Not in use, in bytes.
    pub free: u64,
    /// In use by programs, in bytes.
    pub used: u64,
}

/// The version that programs write into [`MemoryV2`].
const MEMORY_V2: u32 = size_of::<MemoryV2>() as u32 | 2 << 24;

const _: () = assert!(size_of::<Memory>() == 24 && MEMORY_V2 == 0x0200_0028);

fn memory(handle: Handle) -> Result<MemoryV2, NvmlReturn> {
    let device = device(handle)?;
    let total = device.place.spec.memory.capacity_bytes;
    let usable = usable_bytes(&device.place.spec);
    let used = device.status().used_bytes.min(usable);
    Ok(MemoryV2 { version: MEMORY_V2, total, reserved: total - usable, free: usable - used, used })
}

nvml_api! {
    /// Memory. As in the real library, the reserve counts as used here.
    fn nvmlDeviceGetMemoryInfo(handle: Handle, to: *mut Memory) {
        let MemoryV2 { total, reserved, free, used, .. } = memory(handle)?;
        put(to, Memory { total, free, used: used + reserved })
    }
    /// Memory, with the driver's reserve as a separate number.
    fn nvmlDeviceGetMemoryInfo_v2(handle: Handle, to: *mut MemoryV2) {
        device(handle)?;
        // Only the version is read: a program need not have set the rest.
        if get(to.cast::<u32>())? != MEMORY_V2 {
            return Err(NvmlReturn::ARGUMENT_VERSION_MISMATCH);
        }
        put(to, memory(handle)?)
    }
}
