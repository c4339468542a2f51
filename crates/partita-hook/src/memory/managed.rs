//! Calls that move managed memory, or advise the driver where to place it.
//!
//! Memory that is on the host because the quota had no room for it ([`crate::memory::spill`])
//! cannot be moved. The driver knows it as pinned memory, for which these calls fail. Programs make
//! these calls only for speed, so for such memory they succeed without effect. The driver handles
//! everything else.

use alloc::vec::Vec;
use core::ffi::{c_int, c_uint, c_void};
use core::slice;

use partita_abi::CuResult;
use partita_abi::prototypes;
use partita_abi::types::CUmemLocation;

use crate::account::tenant;
use crate::memory::spill;

/// Whether a range is on the host for want of quota.
fn stays(address: u64, bytes: usize) -> bool {
    // The driver refuses ranges of nothing.
    bytes > 0 && tenant::current().is_some() && spill::is_managed(address, bytes as u64)
}

fn unless_it_stays(address: u64, bytes: usize, call: impl FnOnce() -> CuResult) -> CuResult {
    if stays(address, bytes) { CuResult::SUCCESS } else { call() }
}

/// Wraps `cuMemPrefetchAsync` of CUDA 8.
pub unsafe fn prefetch(
    real: prototypes::cuMemPrefetchAsync,
    address: u64,
    bytes: usize,
    device: c_int,
    stream: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    unless_it_stays(address, bytes, || unsafe { real(address, bytes, device, stream) })
}

/// Wraps `cuMemPrefetchAsync` of CUDA 12.2.
pub unsafe fn prefetch_to(
    real: prototypes::cuMemPrefetchAsync_v2,
    address: u64,
    bytes: usize,
    location: CUmemLocation,
    flags: c_uint,
    stream: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    unless_it_stays(address, bytes, || unsafe { real(address, bytes, location, flags, stream) })
}

/// Wraps `cuMemAdvise` in both versions.
pub unsafe fn advise<L>(
    real: unsafe extern "C" fn(u64, usize, c_uint, L) -> CuResult,
    address: u64,
    bytes: usize,
    advice: c_uint,
    location: L,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    unless_it_stays(address, bytes, || unsafe { real(address, bytes, advice, location) })
}

/// Wraps `cuStreamAttachMemAsync`, for which no bytes mean the whole allocation.
pub unsafe fn attach(
    real: prototypes::cuStreamAttachMemAsync,
    stream: *mut c_void,
    address: u64,
    bytes: usize,
    flags: c_uint,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    unless_it_stays(address, bytes.max(1), || unsafe { real(stream, address, bytes, flags) })
}

/// The entries of a batch that the driver shall get; `None` if all.
///
/// # Safety
/// The arrays are null or have as many entries as said.
unsafe fn of_the_driver(addresses: *const u64, sizes: *const usize, count: usize) -> Option<Vec<usize>> {
    if addresses.is_null() || sizes.is_null() || count == 0 {
        return None;
    }
    // SAFETY: not null, so as the caller says.
    let (addresses, sizes) =
        unsafe { (slice::from_raw_parts(addresses, count), slice::from_raw_parts(sizes, count)) };
    let left: Vec<usize> = (0..count).filter(|&at| !stays(addresses[at], sizes[at])).collect();
    (left.len() < count).then_some(left)
}

/// Those entries of an array.
///
/// # Safety
/// The array has them.
unsafe fn picked<T: Copy>(from: *const T, entries: &[usize]) -> Vec<T> {
    // SAFETY: the caller's word.
    entries.iter().map(|&at| unsafe { *from.add(at) }).collect()
}

/// Wraps `cuMemPrefetchBatchAsync` and `cuMemDiscardAndPrefetchBatchAsync`.
#[allow(clippy::too_many_arguments, reason = "those of the driver's call")]
pub unsafe fn prefetch_batch(
    real: prototypes::cuMemPrefetchBatchAsync,
    addresses: *mut u64,
    sizes: *mut usize,
    count: usize,
    locations: *mut CUmemLocation,
    firsts: *mut usize,
    location_count: usize,
    flags: u64,
    stream: *mut c_void,
) -> CuResult {
    let told_where = !locations.is_null() && !firsts.is_null() && location_count > 0;
    // SAFETY: the caller's arrays.
    let left = if told_where { unsafe { of_the_driver(addresses, sizes, count) } } else { None };
    let Some(left) = left else {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { real(addresses, sizes, count, locations, firsts, location_count, flags, stream) };
    };
    if left.is_empty() {
        return CuResult::SUCCESS;
    }
    // SAFETY: not null, so the caller's array. A location is that of all entries from its first on,
    // up to the next one's.
    let firsts = unsafe { slice::from_raw_parts(firsts, location_count) };
    let places: Vec<usize> =
        left.iter().map(|at| firsts.partition_point(|first| first <= at).saturating_sub(1)).collect();
    // SAFETY: entries of the caller's arrays.
    let (mut addresses, mut sizes, mut locations) =
        unsafe { (picked(addresses, &left), picked(sizes, &left), picked(locations, &places)) };
    let mut firsts: Vec<usize> = (0..left.len()).collect();
    // SAFETY: arrays of as many entries as said.
    unsafe {
        real(
            addresses.as_mut_ptr(),
            sizes.as_mut_ptr(),
            left.len(),
            locations.as_mut_ptr(),
            firsts.as_mut_ptr(),
            left.len(),
            flags,
            stream,
        )
    }
}

/// Wraps `cuMemDiscardBatchAsync`. The content of a discarded range is undefined, so it may stay
/// unchanged.
pub unsafe fn discard_batch(
    real: prototypes::cuMemDiscardBatchAsync,
    addresses: *mut u64,
    sizes: *mut usize,
    count: usize,
    flags: u64,
    stream: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arrays.
    let Some(left) = (unsafe { of_the_driver(addresses, sizes, count) }) else {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { real(addresses, sizes, count, flags, stream) };
    };
    if left.is_empty() {
        return CuResult::SUCCESS;
    }
    // SAFETY: entries of the caller's arrays.
    let (mut addresses, mut sizes) = unsafe { (picked(addresses, &left), picked(sizes, &left)) };
    // SAFETY: arrays of as many entries as said.
    unsafe { real(addresses.as_mut_ptr(), sizes.as_mut_ptr(), left.len(), flags, stream) }
}
