//! Memory pools.

use core::ffi::c_int;
use std::sync::Mutex;

use partita_abi::CuResult;
use partita_abi::types::*;

use super::context::current;
use super::gpus::{runtime, visible};
use super::object::Registry;
use super::region::{Kind, Region};
use super::runtime::Runtime;
use crate::shared::protocol::{AllocKind, PoolStatus, Reply, Request};
use crate::shared::sys::lock;

/// A pool: its GPU, the board's number of it, and settings without effect here.
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    /// Its GPU.
    pub runtime: &'static Runtime,
    /// The board's number of it.
    pub number: u32,
    /// Settings without effect here.
    pub reuse: [c_int; 3],
}

pub(super) static POOLS: Registry<Pool> = Registry::new(0x1600_0000_0000);
/// Each device's default pool and the one it uses now, by ordinal.
static DEVICES: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

pub(super) fn with_pools<R>(runtime: &Runtime, action: impl FnOnce(&mut (usize, usize)) -> R) -> R {
    let mut devices = lock(&DEVICES);
    for runtime in &visible()[devices.len()..] {
        // The board has it from the start, as number 0.
        let handle = POOLS.insert(Pool { runtime, number: 0, reuse: [1; 3] });
        devices.push((handle, handle));
    }
    action(&mut devices[runtime.ordinal as usize])
}

/// A device's default pool and its present one.
pub(super) fn device_pools(runtime: &Runtime) -> (usize, usize) {
    with_pools(runtime, |pools| *pools)
}

/// The pool that a device allocates from.
pub fn present(runtime: &Runtime) -> usize {
    device_pools(runtime).1
}

/// Each device's pool for graphs, by ordinal; 0 before it exists.
static OF_GRAPHS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The pool of a device's graphs, which keeps its memory until it is trimmed.
///
/// # Errors
/// Those of its creation.
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

/// The status of a device's pool for graphs.
///
/// # Errors
/// Those of [`of_graphs`].
pub fn status_of_graphs(runtime: &'static Runtime) -> Result<PoolStatus, CuResult> {
    info(&POOLS.get(of_graphs(runtime)?).ok_or(CuResult::UNKNOWN)?)
}

/// Releases unused memory of a device's pool for graphs.
///
/// # Errors
/// Those of [`of_graphs`].
pub fn trim_graphs(runtime: &'static Runtime) -> Result<(), CuResult> {
    let pool = POOLS.get(of_graphs(runtime)?).ok_or(CuResult::UNKNOWN)?.number;
    runtime.call(&Request::PoolTrim { pool, keep: 0 }).map(drop)
}

pub(super) fn pool(handle: CUmemoryPool) -> Result<Pool, CuResult> {
    runtime()?;
    POOLS.get(handle.addr()).ok_or(CuResult::INVALID_VALUE)
}

/// Allocates from a pool. The memory can be used at once, without a wait on any stream, because a
/// freed block returns only when its stream has reached the free.
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

pub(super) fn info(pool: &Pool) -> Result<PoolStatus, CuResult> {
    match pool.runtime.call(&Request::PoolInfo { pool: pool.number })? {
        Reply::PoolInfo(status) => Ok(status),
        _ => Err(CuResult::UNKNOWN),
    }
}
