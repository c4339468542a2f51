//! The entry points of memory pools and of allocation in stream order.

use core::ffi::c_int;

use partita_abi::CuResult;
use partita_abi::types::*;

use super::context::check_device;
use super::context::stream::{Stream, resolve};
use super::gpus::{runtime, runtime_at};
use super::graph_memory::GraphMemory;
use super::pool::{POOLS, Pool, allocate, device_pools, info, pool, present, with_pools};
use super::region::{Kind, Region};
use super::{capture, get, graph_memory, memory, put};
use crate::shared::command::Command;
use crate::shared::protocol::{Reply, Request};

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

    /// Destroys a pool. Its memory is released with its last allocation.
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

    /// Releases unused memory, down to a number of bytes.
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
            // High-water marks can be set to zero, which resets them to the present value.
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
        if let Some(result) = graph_memory::free(address) {
            return result;
        }
        let owned = |region: &Region| matches!(region.kind, Kind::Device | Kind::Managed) && !region.imported;
        let region = runtime.regions.remove(address, owned).ok_or(CuResult::INVALID_VALUE)?;
        memory::close_view(&region);
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
