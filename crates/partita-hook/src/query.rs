//! What a program is told of the device's memory: its quota.

use core::ffi::c_int;

use partita_abi::CuResult;

use crate::tenant;

/// An unsigned integer of the driver's interface: 32 bits wide in the calls of
/// CUDA 3.1 and before, 64 bits since.
pub trait Word: Copy {
    /// Widens the value.
    fn to_u64(self) -> u64;
    /// Narrows a value, saturating, as the driver's 32-bit calls do.
    fn from_u64(value: u64) -> Self;
}

impl Word for u32 {
    fn to_u64(self) -> u64 {
        self.into()
    }
    fn from_u64(value: u64) -> Self {
        u32::try_from(value).unwrap_or(u32::MAX)
    }
}

impl Word for u64 {
    fn to_u64(self) -> u64 {
        self
    }
    fn from_u64(value: u64) -> Self {
        value
    }
}

impl Word for usize {
    fn to_u64(self) -> u64 {
        self as u64
    }
    fn from_u64(value: u64) -> Self {
        value as usize
    }
}

/// Wraps `cuMemGetInfo`: the total is the quota, and the free bytes are what is
/// left of it or what the device can still give, whichever is less.
pub unsafe fn mem_info<W: Word>(
    real: unsafe extern "C" fn(*mut W, *mut W) -> CuResult,
    free: *mut W,
    total: *mut W,
) -> CuResult {
    // SAFETY: the caller's pointers, passed on.
    let result = unsafe { real(free, total) };
    let Some(gpu) = tenant::current().and_then(|tenant| tenant.gpu_now().ok()) else { return result };
    let Some(quota_bytes) = gpu.quota_bytes() else { return result };
    if result.is_ok() {
        if let Some(tenant) = tenant::current() {
            tenant.look_after_pools();
        }
        let left_bytes = quota_bytes.saturating_sub(gpu.used_bytes());
        // One of them may be asked for alone, as OptiX is said to (HAMi-core's issues 321 and 333); driver 580.159.04 answers.
        for (to, most) in [(free, left_bytes), (total, quota_bytes)] {
            if !to.is_null() {
                // SAFETY: the driver has just written through the pointer.
                unsafe { *to = W::from_u64((*to).to_u64().min(most)) };
            }
        }
    }
    result
}

/// Wraps `cuDeviceTotalMem`.
pub unsafe fn total_mem<W: Word>(
    real: unsafe extern "C" fn(*mut W, c_int) -> CuResult,
    bytes: *mut W,
    device: c_int,
) -> CuResult {
    // SAFETY: the caller's pointer, passed on.
    let result = unsafe { real(bytes, device) };
    if result.is_ok()
        && let Some(gpu) = tenant::current().and_then(|tenant| tenant.gpu_of_device(device).ok())
        && let Some(quota_bytes) = gpu.quota_bytes()
    {
        // SAFETY: the driver has just written through the pointer.
        unsafe { *bytes = W::from_u64((*bytes).to_u64().min(quota_bytes)) };
    }
    result
}
