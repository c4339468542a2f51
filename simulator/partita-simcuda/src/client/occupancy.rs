//! Occupancy. Like the real calls these consider only function, device and green context, and
//! ignore TPC masks.

use core::ffi::c_int;
use std::sync::atomic::Ordering;

use partita_abi::CuResult;
use partita_abi::types::*;

use super::context::stream::{Stream, resolve};
use super::function::Function;
use super::gpus::runtime;
use super::launch::{CLUSTER_PORTABLE_MAX, Launch, configured};
use super::object::object;
use super::put;
use super::runtime::Runtime;

fn function_of(handle: CUfunction) -> Result<&'static Function, CuResult> {
    runtime()?;
    match super::module::kernel_as_function(handle) {
        Some(function) => function,
        // SAFETY: the handle came from this library, by the word of the entry point's caller.
        None => unsafe { object(handle.0) },
    }
}

fn per_sm(function: CUfunction, threads: c_int, dynamic_shared: usize) -> Result<u32, CuResult> {
    let runtime = runtime()?;
    let function = function_of(function)?;
    let threads =
        u32::try_from(threads).ok().filter(|threads| *threads > 0).ok_or(CuResult::INVALID_VALUE)?;
    let shared = u32::try_from(dynamic_shared).map_err(|_| CuResult::INVALID_VALUE)?;
    if threads > function.threads_max(runtime)
        || function.info.shared_bytes.saturating_add(shared) > runtime.spec.sm.shared_per_block_optin_bytes
    {
        return Ok(0);
    }
    Ok(function.resident_blocks(runtime, threads, shared))
}

/// The block size that keeps most threads resident, and the grid that fills the device with it.
///
/// # Safety
/// `shared_of` is null or a function of the program.
unsafe fn potential(
    function: CUfunction,
    shared_of: CUoccupancyB2DSize,
    dynamic_shared: usize,
    limit: c_int,
) -> Result<(c_int, c_int), CuResult> {
    let runtime = runtime()?;
    let most = function_of(function)?.threads_max(runtime);
    let most = if limit > 0 { most.min(limit as u32) } else { most };
    let warp = runtime.spec.sm.warp_threads;
    let (mut best, mut best_threads, mut grid) = (0, 0, 0);
    let mut size = most / warp * warp;
    while size > 0 {
        let shared = match shared_of {
            // SAFETY: by the caller's word.
            Some(shared_of) => unsafe { shared_of(size as c_int) },
            None => dynamic_shared,
        };
        let blocks = per_sm(function, size as c_int, shared)?;
        if blocks * size > best_threads {
            (best, best_threads, grid) = (size, blocks * size, blocks * runtime.sms);
        }
        size -= warp;
    }
    Ok((grid as c_int, best as c_int))
}

/// The largest cluster that a function consents to.
fn cluster_limit(runtime: &Runtime, function: &Function) -> Result<u32, CuResult> {
    let most = runtime.spec.sm.cluster_blocks_max;
    if most < 2 {
        return Err(CuResult::NOT_SUPPORTED);
    }
    let consents = function.non_portable.load(Ordering::Relaxed);
    Ok(if consents { most } else { most.min(CLUSTER_PORTABLE_MAX) })
}

/// How many clusters of `size` blocks are resident at once, on all that a launch may use: a green
/// context's SMs where its stream is one's, and the whole device otherwise.
fn clusters(runtime: &Runtime, function: &Function, launch: &Launch, stream: &Stream, size: u32) -> u32 {
    let threads: u32 = launch.block.iter().product();
    if threads > function.threads_max(runtime) {
        return 0;
    }
    let mut work = function.work(threads, launch.dynamic_shared);
    work.cluster_blocks = size;
    work.enabled = match stream.context().green() {
        Some(green) => green.set(),
        None => runtime.spec.topology.all(),
    };
    (work.resident_blocks_max(&runtime.spec) / u64::from(size)) as u32
}

driver_api! {
    /// Blocks that one SM holds at once.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, dynamic_shared) {
        put(blocks, per_sm(function, threads, dynamic_shared)? as c_int)
    }

    /// A block size that fills the device, and the smallest grid that does.
    fn cuOccupancyMaxPotentialBlockSize(grid, block, function, shared_of, dynamic_shared, limit) {
        let (blocks, threads) = potential(function, shared_of, dynamic_shared, limit)?;
        put(grid, blocks)?;
        put(block, threads)
    }

    /// As `cuOccupancyMaxPotentialBlockSize`.
    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid, block, function, shared_of, dynamic_shared, limit, flags,
    ) {
        if flags > 1 {
            return Err(CuResult::INVALID_VALUE);
        }
        let (blocks, threads) = potential(function, shared_of, dynamic_shared, limit)?;
        put(grid, blocks)?;
        put(block, threads)
    }

    /// The largest cluster that can run.
    fn cuOccupancyMaxPotentialClusterSize(size, function, config) {
        let function = function_of(function)?;
        let (launch, stream) = configured(config)?;
        let stream = resolve(stream, false)?;
        let runtime = stream.runtime();
        let limit = cluster_limit(runtime, function)?;
        // Sizes are powers of two, and whatever size the launch itself has does not matter.
        let sizes = (0..=limit.ilog2()).rev().map(|power| 1 << power);
        let found = sizes.into_iter().find(|size| clusters(runtime, function, &launch, stream, *size) > 0);
        put(size, found.unwrap_or(0) as c_int)
    }

    /// Clusters that are resident at once.
    fn cuOccupancyMaxActiveClusters(count, function, config) {
        let function = function_of(function)?;
        let (launch, stream) = configured(config)?;
        let stream = resolve(stream, false)?;
        let runtime = stream.runtime();
        let size = launch.cluster.iter().product();
        if size > cluster_limit(runtime, function)? {
            return Err(CuResult::INVALID_CLUSTER_SIZE);
        }
        put(count, clusters(runtime, function, &launch, stream, size) as c_int)
    }
}
