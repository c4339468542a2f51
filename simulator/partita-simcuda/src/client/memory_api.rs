//! Device memory's entry points.

use partita_abi::CuResult;
use partita_abi::types::*;

use super::context::stream::resolve;
use super::context::{Context, check_device, current};
use super::gpus::runtime_at;
use super::memory::{self, PITCH_BYTES};
use super::region::Kind;
use super::{capture, graph_memory, list, put, put_if};
use crate::shared::protocol::{AllocKind, Reply, Request};

/// Allocates for a program.
///
/// # Errors
/// `INVALID_VALUE` for 0 bytes, `OUT_OF_MEMORY`, and those of captures.
pub fn allocate(context: &'static Context, bytes: u64, kind: AllocKind) -> Result<u64, CuResult> {
    context.runtime.healthy()?;
    capture::refuse_unsafe()?;
    memory::allocate(context, bytes, kind)
}

/// Checks that flags of managed memory name one way of attaching.
fn check_attach(flags: u32) -> Result<(), CuResult> {
    match flags {
        CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST | CU_MEM_ATTACH_SINGLE => Ok(()),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

driver_api! {
    /// Allocates device memory.
    fn cuMemAlloc_v2(address, bytes) {
        let context = current()?;
        if address.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        context.calls.exclude(context.runtime)?;
        put(address, allocate(context, bytes as u64, AllocKind::Device)?)
    }

    /// Allocates rows of device memory.
    fn cuMemAllocPitch_v2(address, pitch, width_bytes, height, element_bytes) {
        let context = current()?;
        if address.is_null()
            || pitch.is_null()
            || width_bytes == 0
            || height == 0
            || !matches!(element_bytes, 4 | 8 | 16)
        {
            return Err(CuResult::INVALID_VALUE);
        }
        let row = width_bytes.checked_next_multiple_of(PITCH_BYTES).ok_or(CuResult::OUT_OF_MEMORY)?;
        let bytes = row.checked_mul(height).ok_or(CuResult::OUT_OF_MEMORY)?;
        put(address, allocate(context, bytes as u64, AllocKind::Device)?)?;
        put(pitch, row)
    }

    /// Allocates memory that host and device address alike. It stays on the device here.
    fn cuMemAllocManaged(address, bytes, flags) {
        let context = current()?;
        check_attach(flags)?;
        if address.is_null() || flags == CU_MEM_ATTACH_SINGLE {
            return Err(CuResult::INVALID_VALUE);
        }
        put(address, allocate(context, bytes as u64, AllocKind::Managed)?)
    }

    /// Frees device memory, after all work of the context.
    fn cuMemFree_v2(address) {
        let runtime = runtime_at(address)?;
        if address == 0 {
            return Ok(());
        }
        let region = runtime.regions.find(address).filter(|region| region.start == address);
        region.filter(|region| !region.imported).ok_or(CuResult::INVALID_VALUE)?;
        capture::refuse_unsafe()?;
        current()?.finish()?;
        graph_memory::free(address).unwrap_or_else(|| memory::free(runtime, address))
    }

    /// Free and total device memory, or one of them: a null pointer is skipped (an H200 with driver
    /// 580.159.04).
    fn cuMemGetInfo_v2(free, total) {
        let runtime = current()?.runtime;
        let Reply::MemInfo { free: left, total: all } = runtime.call(&Request::MemInfo)? else {
            return Err(CuResult::UNKNOWN);
        };
        put_if(free, left as usize);
        put_if(total, all as usize);
        Ok(())
    }

    /// The allocation that holds an address.
    fn cuMemGetAddressRange_v2(base, bytes, address) {
        current()?;
        let region = runtime_at(address)?.regions.find(address).ok_or(CuResult::NOT_FOUND)?;
        if region.kind == Kind::Reserved {
            return Err(CuResult::NOT_FOUND);
        }
        put_if(base, region.start);
        put_if(bytes, region.bytes as usize);
        Ok(())
    }

    /// Moves managed memory; it stays where it is here.
    fn cuMemPrefetchAsync | cuMemPrefetchAsync_ptsz [per_thread] (address, bytes, device, stream) {
        resolve(stream, per_thread)?;
        if device != -1 {
            check_device(device)?;
        }
        check_managed(address, bytes)
    }

    /// Moves managed memory; it stays where it is here.
    fn cuMemPrefetchAsync_v2 | cuMemPrefetchAsync_v2_ptsz [per_thread] (
        address, bytes, location, flags, stream,
    ) {
        resolve(stream, per_thread)?;
        let _ = location;
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        check_managed(address, bytes)
    }

    /// Moves managed memory; it stays where it is here.
    fn cuMemPrefetchBatchAsync | cuMemPrefetchBatchAsync_ptsz [per_thread] (
        addresses, sizes, count, locations, firsts, location_count, flags, stream,
    ) {
        resolve(stream, per_thread)?;
        list(locations, location_count)?;
        check_moves(list(addresses, count)?, list(sizes, count)?, list(firsts, location_count)?, flags)
    }

    /// Discards the content of managed memory and moves it; here it stays unchanged in its place.
    fn cuMemDiscardAndPrefetchBatchAsync | cuMemDiscardAndPrefetchBatchAsync_ptsz [per_thread] (
        addresses, sizes, count, locations, firsts, location_count, flags, stream,
    ) {
        resolve(stream, per_thread)?;
        list(locations, location_count)?;
        check_moves(list(addresses, count)?, list(sizes, count)?, list(firsts, location_count)?, flags)
    }

    /// Discards the content of managed memory; here it stays unchanged.
    fn cuMemDiscardBatchAsync | cuMemDiscardBatchAsync_ptsz [per_thread] (
        addresses, sizes, count, flags, stream,
    ) {
        resolve(stream, per_thread)?;
        check_batch(list(addresses, count)?, list(sizes, count)?, flags)
    }

    /// Advice on managed memory, which stays where it is here.
    fn cuMemAdvise(address, bytes, advice, device) {
        let _ = device;
        if !(1..=6).contains(&advice) {
            return Err(CuResult::INVALID_VALUE);
        }
        check_managed(address, bytes)
    }

    /// Advice on managed memory, which stays where it is here.
    fn cuMemAdvise_v2(address, bytes, advice, location) {
        let _ = location;
        if !(1..=6).contains(&advice) {
            return Err(CuResult::INVALID_VALUE);
        }
        check_managed(address, bytes)
    }

    /// Attaches managed memory to a stream, without effect here.
    fn cuStreamAttachMemAsync | cuStreamAttachMemAsync_ptsz [per_thread] (
        stream, address, bytes, flags,
    ) {
        resolve(stream, per_thread)?;
        check_attach(flags)?;
        check_managed(address, bytes)
    }
}

/// Checks a batch that is to be moved. The locations begin at its first entry and follow one
/// another.
fn check_moves(addresses: &[u64], sizes: &[usize], firsts: &[usize], flags: u64) -> Result<(), CuResult> {
    let follow = firsts.first() == Some(&0) && firsts.is_sorted_by(|one, next| one < next);
    if !follow || firsts.iter().any(|first| *first >= addresses.len()) {
        return Err(CuResult::INVALID_VALUE);
    }
    check_batch(addresses, sizes, flags)
}

fn check_batch(addresses: &[u64], sizes: &[usize], flags: u64) -> Result<(), CuResult> {
    if flags != 0 || addresses.is_empty() {
        return Err(CuResult::INVALID_VALUE);
    }
    addresses.iter().zip(sizes).try_for_each(|(address, bytes)| check_managed(*address, *bytes))
}

fn check_managed(address: u64, bytes: usize) -> Result<(), CuResult> {
    let region = runtime_at(address)?.regions.find(address).ok_or(CuResult::INVALID_VALUE)?;
    let inside = address - region.start + bytes as u64 <= region.bytes;
    if region.kind == Kind::Managed && inside { Ok(()) } else { Err(CuResult::INVALID_VALUE) }
}
