//! Device memory as libcuda allocates it from the kernel driver: an object below the device, by an
//! `ioctl` that other code can intercept.
//!
//! The memory itself is the board's. Only allocations without a call of the program are made here
//! too: contexts and the variables of modules.

use partita_abi::CuResult;
use partita_abi::control::{
    CLASS_DEVICE_MEMORY, DEVICE_MEMORY_BYTES, DEVICE_MEMORY_SIZE_AT, NV_ERR_NO_MEMORY, NV_OK, RM_ALLOC,
    RM_ALLOC_LONG_BYTES, RM_ALLOC_LONG_STATUS_AT, RM_OBJECT_AT, RM_PARAMETERS_AT,
};

use super::group::{Taken, ask, node};
use super::{Errno, put, put_u32, u32_at, with_kernel};

/// Where a request for an object has its class.
const CLASS_AT: usize = 12;

/// Allocates memory of the GPU on a bus.
///
/// # Errors
/// `OUT_OF_MEMORY` if it is refused, or without a descriptor for the node.
pub fn take(bus: u32, bytes: u64) -> Result<Taken, CuResult> {
    let node = node().ok_or(CuResult::OUT_OF_MEMORY)?;
    let device = with_kernel(|kernel| {
        let gpu = kernel.gpus.iter().position(|gpu| gpu.bus == bus).ok_or(libc::ENODEV)?;
        kernel.own_device(node, gpu).map_err(|_| libc::EIO)
    });
    let (client, device) = device.map_err(|_: Errno| CuResult::UNKNOWN)?;
    let mut parameters = [0; DEVICE_MEMORY_BYTES];
    put(&mut parameters, DEVICE_MEMORY_SIZE_AT, &bytes.to_le_bytes());
    let mut argument = [0; RM_ALLOC_LONG_BYTES];
    put_u32(&mut argument, 0, client);
    put_u32(&mut argument, 4, device);
    put_u32(&mut argument, CLASS_AT, CLASS_DEVICE_MEMORY);
    put(&mut argument, RM_PARAMETERS_AT, &(&raw mut parameters).expose_provenance().to_le_bytes());
    // SAFETY: its parameters live as long.
    if !unsafe { ask(node, RM_ALLOC, &mut argument) } {
        return Err(CuResult::UNKNOWN);
    }
    match u32_at(&argument, RM_ALLOC_LONG_STATUS_AT) {
        NV_OK => Ok(Taken { node, client, object: u32_at(&argument, RM_OBJECT_AT) }),
        NV_ERR_NO_MEMORY => Err(CuResult::OUT_OF_MEMORY),
        _ => Err(CuResult::UNKNOWN),
    }
}
