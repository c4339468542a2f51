//! Memory pools and allocation in stream order.

use core::ffi::{c_int, c_void};
use std::sync::Mutex;

use partita_abi::CuResult;
use partita_abi::types::*;

use super::context::{check_device, current};
use super::graph_memory::GraphMemory;
use super::object::Registry;
use super::region::{Kind, Region};
use super::runtime::{Runtime, lock, runtime, runtime_at, visible};
use super::stream::{Stream, resolve};
use super::{capture, get, put};
use crate::shared::command::Command;
use crate::shared::protocol::{AllocKind, PoolStatus, Reply, Request};

/// A pool: its GPU, the board's number of it, and its settings that change nothing here.
#[derive(Clone, Copy, Debug)]
struct Pool {
    runtime: &'static Runtime,
    number: u32,
    reuse: [c_int; 3],
}

static POOLS: Registry<Pool> = Registry::new(0x1600_0000_0000);
/// Each device's default pool and the one it uses now, by ordinal.
static DEVICES: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

fn with_pools<R>(runtime: &Runtime, action: impl FnOnce(&mut (usize, usize)) -> R) -> R {
    let mut devices = lock(&DEVICES);
    for runtime in &visible()[devices.len()..] {
        // The board has it from the start, as number 0.
        let handle = POOLS.insert(Pool { runtime, number: 0, reuse: [1; 3] });
        devices.push((handle, handle));
    }
    action(&mut devices[runtime.ordinal as usize])
}

/// A device's default pool and its present one.
fn device_pools(runtime: &Runtime) -> (usize, usize) {
    with_pools(runtime, |pools| *pools)
}

/// The pool that a device allocates from.
pub fn present(runtime: &Runtime) -> usize {
    device_pools(runtime).1
}

/// What each device keeps for graphs, by ordinal; 0 before there was any.
static OF_GRAPHS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The pool of a device's graphs, which keeps what it has until it is trimmed.
///
/// # Errors
/// Those of making it.
pub fn of_graphs(runtime: &'static Runtime) -> Result<usize, CuResult> {
    let mut pools = lock(&OF_GRAPHS);
    pools.resize(visible().len(), 0);
    let of_device = &mut pools[runtime.ordinal as usize];
    if *of_device == 0 {
        let Reply::Pool(number) = runtime.call(&Request::PoolCreate { threshold: u64::MAX })? else {
            return Err(CuResult::UNKNOWN);
        };
        *of_device = POOLS.insert(Pool { runtime, number, reuse: [1; 3] });
    }
    Ok(*of_device)
}

/// What a device keeps for graphs.
///
/// # Errors
/// Those of [`of_graphs`].
pub fn status_of_graphs(runtime: &'static Runtime) -> Result<PoolStatus, CuResult> {
    info(&POOLS.get(of_graphs(runtime)?).ok_or(CuResult::UNKNOWN)?)
}

/// Returns what a device keeps for graphs unused.
///
/// # Errors
/// Those of [`of_graphs`].
pub fn trim_graphs(runtime: &'static Runtime) -> Result<(), CuResult> {
    let pool = POOLS.get(of_graphs(runtime)?).ok_or(CuResult::UNKNOWN)?.number;
    runtime.call(&Request::PoolTrim { pool, keep: 0 }).map(drop)
}

fn pool(handle: CUmemoryPool) -> Result<Pool, CuResult> {
    runtime()?;
    POOLS.get(handle.addr()).ok_or(CuResult::INVALID_VALUE)
}

/// Allocates from a pool. The memory can be used at once: every stream waits for nothing that has
/// not happened on the board yet, because a freed block comes back only when its stream has reached
/// the free.
///
/// # Errors
/// `OUT_OF_MEMORY`, `INVALID_VALUE`.
pub fn allocate(bytes: u64, handle: usize) -> Result<u64, CuResult> {
    let Pool { runtime, number, .. } = POOLS.get(handle).ok_or(CuResult::INVALID_VALUE)?;
    runtime.healthy()?;
    let context = current()?.home();
    if !std::ptr::eq(context.runtime, runtime) {
        return Err(CuResult::INVALID_CONTEXT);
    }
    let request = Request::Alloc { ctx: context.number, bytes, kind: AllocKind::Pool(number) };
    let Reply::Memory { address, extents } = runtime.call(&request)? else { return Err(CuResult::UNKNOWN) };
    let mut region = Region::new(address, bytes, Kind::Device);
    region.extents = extents;
    region.pool = handle;
    runtime.regions.insert(region);
    Ok(address)
}

fn allocate_async(
    address: *mut CUdeviceptr,
    bytes: usize,
    handle: usize,
    stream: &'static Stream,
) -> Result<(), CuResult> {
    if address.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    let at = if bytes == 0 {
        0
    } else if capture::captures(stream)? {
        let memory = GraphMemory::new(stream.runtime(), bytes as u64)?;
        let at = memory.address;
        capture::add_alloc(stream, memory)?;
        at
    } else {
        capture::refuse_unsafe()?;
        allocate(bytes as u64, handle)?
    };
    // SAFETY: not null, so valid by the program's word.
    unsafe { put(address, at) }
}

fn info(pool: &Pool) -> Result<PoolStatus, CuResult> {
    match pool.runtime.call(&Request::PoolInfo { pool: pool.number })? {
        Reply::PoolInfo(status) => Ok(status),
        _ => Err(CuResult::UNKNOWN),
    }
}

driver_api! {
    /// The device's default pool.
    fn cuDeviceGetDefaultMemPool(handle, device) {
        put(handle, CUmemoryPool::from_addr(device_pools(check_device(device)?).0))
    }

    /// The pool that the device allocates from.
    fn cuDeviceGetMemPool(handle, device) {
        put(handle, CUmemoryPool::from_addr(device_pools(check_device(device)?).1))
    }

    /// Sets the pool that the device allocates from.
    fn cuDeviceSetMemPool(device, handle) {
        let runtime = check_device(device)?;
        if !std::ptr::eq(pool(handle)?.runtime, runtime) {
            return Err(CuResult::INVALID_VALUE);
        }
        with_pools(runtime, |pools| pools.1 = handle.addr());
        Ok(())
    }

    /// Makes a pool.
    fn cuMemPoolCreate(handle, properties) {
        runtime()?;
        let properties = get(properties)?;
        if properties.alloc_type != CU_MEM_ALLOCATION_TYPE_PINNED || handle.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        if properties.location.kind != CU_MEM_LOCATION_TYPE_DEVICE {
            return Err(CuResult::NOT_SUPPORTED);
        }
        let runtime = check_device(properties.location.id)?;
        let Reply::Pool(number) = runtime.call(&Request::PoolCreate { threshold: 0 })? else {
            return Err(CuResult::UNKNOWN);
        };
        put(handle, CUmemoryPool::from_addr(POOLS.insert(Pool { runtime, number, reuse: [1; 3] })))
    }

    /// Ends a pool. Its memory goes with its last allocation.
    fn cuMemPoolDestroy(handle) {
        let runtime = pool(handle)?.runtime;
        if handle.addr() == device_pools(runtime).0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let gone = POOLS.remove(handle.addr()).ok_or(CuResult::INVALID_VALUE)?;
        with_pools(runtime, |(default, present)| {
            if handle.addr() == *present {
                *present = *default;
            }
        });
        runtime.call(&Request::PoolDestroy { pool: gone.number }).map(drop)
    }

    /// Gives unused memory back, down to a number of bytes.
    fn cuMemPoolTrimTo(handle, keep) {
        let Pool { runtime, number: pool, .. } = pool(handle)?;
        runtime.call(&Request::PoolTrim { pool, keep: keep as u64 }).map(drop)
    }

    /// Sets an attribute of a pool.
    fn cuMemPoolSetAttribute(handle, attribute, value) {
        let mut found = pool(handle)?;
        let runtime = found.runtime;
        let pool = found.number;
        match attribute {
            CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
            | CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
            | CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
                found.reuse[attribute as usize - 1] = get(value.cast::<c_int>())?;
                POOLS.replace(handle.addr(), found);
                Ok(())
            }
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => {
                let bytes = get(value.cast::<u64>())?;
                runtime.call(&Request::PoolThreshold { pool, bytes }).map(drop)
            }
            // High-water marks can be set to zero, which means to the present value.
            CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH | CU_MEMPOOL_ATTR_USED_MEM_HIGH => {
                if get(value.cast::<u64>())? != 0 {
                    return Err(CuResult::INVALID_VALUE);
                }
                let reserved = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
                runtime.call(&Request::PoolResetHigh { pool, reserved, used: !reserved }).map(drop)
            }
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    /// Reads an attribute of a pool.
    fn cuMemPoolGetAttribute(handle, attribute, value) {
        let found = pool(handle)?;
        let status = info(&found)?;
        let number = match attribute {
            CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
            | CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
            | CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
                return put(value.cast::<c_int>(), found.reuse[attribute as usize - 1]);
            }
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => status.threshold,
            CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => status.reserved,
            CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => status.reserved_high,
            CU_MEMPOOL_ATTR_USED_MEM_CURRENT => status.used,
            CU_MEMPOOL_ATTR_USED_MEM_HIGH => status.used_high,
            _ => return Err(CuResult::INVALID_VALUE),
        };
        put(value.cast::<u64>(), number)
    }

    /// Allocates from the device's pool, in stream order.
    fn cuMemAllocAsync | cuMemAllocAsync_ptsz [per_thread] (address, bytes, stream) {
        runtime()?;
        let stream = resolve(stream, per_thread)?;
        allocate_async(address, bytes, present(stream.runtime()), stream)
    }

    /// Allocates from a pool, in stream order.
    fn cuMemAllocFromPoolAsync | cuMemAllocFromPoolAsync_ptsz [per_thread] (
        address, bytes, handle, stream,
    ) {
        pool(handle)?;
        allocate_async(address, bytes, handle.addr(), resolve(stream, per_thread)?)
    }

    /// Frees, in stream order.
    fn cuMemFreeAsync | cuMemFreeAsync_ptsz [per_thread] (address, stream) {
        let runtime = runtime_at(address)?;
        let stream = resolve(stream, per_thread)?;
        if address == 0 {
            return Ok(());
        }
        if capture::captures(stream)? {
            return capture::add_free(stream, address);
        }
        if !std::ptr::eq(runtime, stream.runtime()) {
            return Err(CuResult::INVALID_VALUE);
        }
        if let Some(result) = super::graph_memory::free(address) {
            return result;
        }
        let owned = |region: &Region| matches!(region.kind, Kind::Device | Kind::Managed) && !region.imported;
        let region = runtime.regions.remove(address, owned).ok_or(CuResult::INVALID_VALUE)?;
        super::memory::close_view(runtime, &region);
        runtime.command(stream, &Command::Free { address }).map(drop)
    }

    /// Sets the pool of a place.
    fn cuMemSetMemPool(location, kind, handle) {
        let location = get(location)?;
        if location.kind != CU_MEM_LOCATION_TYPE_DEVICE || kind != CU_MEM_ALLOCATION_TYPE_PINNED {
            return Err(CuResult::NOT_SUPPORTED);
        }
        cuDeviceSetMemPool(location.id, handle).ok()
    }
}
