//! Memory in use.

use super::{Handle, NvmlReturn, device, get, put};

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
    /// Kept by driver and firmware, in bytes. The simulated device keeps none for itself.
    pub reserved: u64,
    /// Not in use, in bytes.
    pub free: u64,
    /// In use by programs, in bytes.
    pub used: u64,
}

/// The version that programs write into [`MemoryV2`].
const MEMORY_V2: u32 = size_of::<MemoryV2>() as u32 | 2 << 24;

const _: () = assert!(size_of::<Memory>() == 24 && MEMORY_V2 == 0x0200_0028);

fn memory(handle: Handle) -> Result<Memory, NvmlReturn> {
    let device = device(handle)?;
    let total = device.place.spec.memory.capacity_bytes;
    let used = device.status().used_bytes.min(total);
    Ok(Memory { total, free: total - used, used })
}

nvml_api! {
    /// Memory.
    fn nvmlDeviceGetMemoryInfo(handle: Handle, to: *mut Memory) { put(to, memory(handle)?) }
    /// Memory, with what the driver keeps told apart.
    fn nvmlDeviceGetMemoryInfo_v2(handle: Handle, to: *mut MemoryV2) {
        device(handle)?;
        // Only the version is read: a program need not have set the rest.
        if get(to.cast::<u32>())? != MEMORY_V2 {
            return Err(NvmlReturn::ARGUMENT_VERSION_MISMATCH);
        }
        let Memory { total, free, used } = memory(handle)?;
        put(to, MemoryV2 { version: MEMORY_V2, total, reserved: 0, free, used })
    }
}
