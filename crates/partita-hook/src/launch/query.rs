//! Device queries: the program sees its quota as the memory and, if the user wants, its partition
//! as the SMs.

use core::ffi::{c_int, c_uint, c_void};

use partita_abi::CuResult;
use partita_abi::attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
use partita_abi::prototypes;
use partita_abi::types::{CUdevice_attribute, CUoccupancyB2DSize};
use partita_ledger::{FLAG_SM_COUNT_PARTITION, Limits};

use crate::account::gpu::Gpu;
use crate::account::{locate, tenant};
use crate::driver::word::Word;
use crate::launch::{caller, misfit};
use crate::memory::pools;

/// Wraps `cuMemGetInfo`: the total is the quota, and the free bytes are the rest of it or of the
/// device, whichever is less.
pub unsafe fn mem_info<W: Word>(
    real: unsafe extern "C" fn(*mut W, *mut W) -> CuResult,
    free: *mut W,
    total: *mut W,
) -> CuResult {
    // SAFETY: the caller's pointers, passed on.
    let result = unsafe { real(free, total) };
    let Some(gpu) = tenant::current().and_then(|tenant| locate::gpu_now(tenant).ok()) else { return result };
    let Some(quota_bytes) = gpu.quota_bytes() else { return result };
    if result.is_ok() {
        if let Some(tenant) = tenant::current() {
            pools::look_after(tenant);
        }
        let left_bytes = quota_bytes.saturating_sub(gpu.used_bytes());
        // One of them may be asked for alone, as OptiX is said to (HAMi-core's issues 321 and 333);
        // driver 580.159.04 answers.
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
        && let Some(gpu) = tenant::current().and_then(|tenant| locate::gpu_of_device(tenant, device).ok())
        && let Some(quota_bytes) = gpu.quota_bytes()
    {
        // SAFETY: the driver has just written through the pointer.
        unsafe { *bytes = W::from_u64((*bytes).to_u64().min(quota_bytes)) };
    }
    result
}

/// The limits of a GPU by which the calling program sees SMs: `None` if it sees the device's
/// (`--sm-count`).
fn partition_told(gpu: &Gpu) -> Option<Limits> {
    gpu.mask.as_ref()?;
    let (_, flags) = gpu.limits.misfit_words().ok()?;
    if flags & FLAG_SM_COUNT_PARTITION == 0 || !caller::is_program() {
        return None;
    }
    gpu.limits_now()
}

/// Wraps `cuDeviceGetAttribute`.
pub unsafe fn device_attribute(
    real: prototypes::cuDeviceGetAttribute,
    value: *mut c_int,
    attribute: CUdevice_attribute,
    device: c_int,
) -> CuResult {
    // SAFETY: the caller's pointer, passed on.
    let result = unsafe { real(value, attribute, device) };
    if attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        && result.is_ok()
        && let Some(limits) = tenant::current()
            .and_then(|tenant| locate::gpu_of_device(tenant, device).ok())
            .and_then(partition_told)
    {
        let sms = c_int::try_from(misfit::sms(&limits)).unwrap_or(c_int::MAX);
        // SAFETY: the driver has just written through the pointer.
        unsafe { *value = (*value).min(sms) };
    }
    result
}

/// Wraps `cuOccupancyMaxPotentialBlockSize`, whose grid fills every SM that the program sees.
pub unsafe fn potential_block_size(
    real: prototypes::cuOccupancyMaxPotentialBlockSize,
    grid_blocks: *mut c_int,
    block_threads: *mut c_int,
    function: *mut c_void,
    shared_bytes_of: CUoccupancyB2DSize,
    shared_bytes: usize,
    threads_max: c_int,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    unsafe {
        let result = real(grid_blocks, block_threads, function, shared_bytes_of, shared_bytes, threads_max);
        told_of_partition(result, grid_blocks)
    }
}

/// Wraps `cuOccupancyMaxPotentialBlockSizeWithFlags`.
#[expect(clippy::too_many_arguments, reason = "the driver's prototype")]
pub unsafe fn potential_block_size_with_flags(
    real: prototypes::cuOccupancyMaxPotentialBlockSizeWithFlags,
    grid_blocks: *mut c_int,
    block_threads: *mut c_int,
    function: *mut c_void,
    shared_bytes_of: CUoccupancyB2DSize,
    shared_bytes: usize,
    threads_max: c_int,
    flags: c_uint,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    unsafe {
        let result =
            real(grid_blocks, block_threads, function, shared_bytes_of, shared_bytes, threads_max, flags);
        told_of_partition(result, grid_blocks)
    }
}

/// Reduces a grid that fills the device to one that fills the partition, for a program that sees
/// its partition.
///
/// # Safety
/// After a success the driver has written through `grid_blocks`.
unsafe fn told_of_partition(result: CuResult, grid_blocks: *mut c_int) -> CuResult {
    if result.is_ok()
        && let Some(limits) =
            tenant::current().and_then(|tenant| locate::gpu_now(tenant).ok()).and_then(partition_told)
    {
        // SAFETY: as the caller says.
        let grid_blocks = unsafe { &mut *grid_blocks };
        let of_partition = i64::from(*grid_blocks) * i64::from(misfit::sms(&limits))
            / i64::from(misfit::device_sms(&limits));
        *grid_blocks = c_int::try_from(of_partition).unwrap_or(*grid_blocks);
    }
    result
}
