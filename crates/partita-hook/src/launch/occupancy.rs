//! Cluster queries: the program sees what its partition can run.
//!
//! The driver answers for the whole device and ignores the mask. (The number of blocks that an SM
//! holds is the same in a partition, and the number of SMs is the device's: libraries that see
//! another one compute wrong products. So a cooperative grid sized by these two may be refused at
//! its launch.) If the tenant may run misfits on the whole GPU, the driver's answer is for those.

use core::ffi::{c_int, c_void};

use partita_abi::CuResult;
use partita_abi::prototypes;
use partita_abi::types::CUlaunchConfig;
use partita_ledger::{Limits, OnMisfit};

use crate::account::locate;
use crate::account::tenant::{self, Tenant};
use crate::launch::misfit::{self, Shape};
use crate::launch::{calls, green};

/// The limits of the current context's GPU, where the tenant has a partition of it, as they are for
/// a stream.
fn partition_now(tenant: &Tenant, stream: *mut c_void) -> Option<Limits> {
    let gpu = locate::gpu_now(tenant).ok().filter(|gpu| gpu.mask.is_some())?;
    green::limits_in(tenant, gpu, stream).or_else(|| gpu.limits_now())
}

/// Wraps `cuOccupancyMaxActiveClusters`.
pub unsafe fn active_clusters(
    real: prototypes::cuOccupancyMaxActiveClusters,
    clusters: *mut c_int,
    function: *mut c_void,
    config: *const CUlaunchConfig,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(clusters, function, config) };
    let (Some(tenant), true) = (tenant::current(), result.is_ok()) else { return result };
    // SAFETY: the driver has just read the configuration and written the answer.
    let (config, answer): (&CUlaunchConfig, &mut c_int) = unsafe { (&*config, &mut *clusters) };
    // SAFETY: as above.
    let shape: Shape = unsafe { calls::shape_of(config, function) };
    let Some(limits) = partition_now(tenant, config.stream.0) else { return result };
    let size = u32::try_from(shape.needs(tenant).cluster_blocks).unwrap_or(u32::MAX);
    let threads = u32::try_from(shape.block_threads).unwrap_or(u32::MAX);
    let blocks = tenant.driver().blocks_per_sm(function, threads, shape.shared_bytes).unwrap_or(0);
    if size > limits.max_cluster_sms && OnMisfit::of(&limits) == OnMisfit::Widen {
        return result;
    }
    let inside = misfit::active_clusters(&limits, size, blocks);
    *answer = (*answer).min(c_int::try_from(inside).unwrap_or(c_int::MAX));
    result
}

/// Wraps `cuOccupancyMaxPotentialClusterSize`.
pub unsafe fn potential_cluster_size(
    real: prototypes::cuOccupancyMaxPotentialClusterSize,
    blocks: *mut c_int,
    function: *mut c_void,
    config: *const CUlaunchConfig,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(blocks, function, config) };
    let (Some(tenant), true) = (tenant::current(), result.is_ok()) else { return result };
    // SAFETY: the driver has just read the configuration.
    let stream = unsafe { (*config).stream.0 };
    let Some(limits) = partition_now(tenant, stream) else { return result };
    if OnMisfit::of(&limits) == OnMisfit::Widen {
        return result;
    }
    // The driver answers with powers of two, and programs divide their grids by the answer.
    let inside = limits.max_cluster_sms.checked_ilog2().map_or(0, |power| 1 << power);
    // SAFETY: the driver has just written the answer.
    let answer = unsafe { &mut *blocks };
    *answer = (*answer).min(inside);
    result
}
