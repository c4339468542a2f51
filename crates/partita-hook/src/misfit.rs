//! Whether a launch can ever run inside the partition, and what is done if not.
//!
//! The hardware waits for ever for SMs that a mask has taken away: a cluster
//! runs on as many SMs of one GPC as it has blocks, and a cooperative grid needs
//! all its blocks resident at once. The driver's own checks do not see the mask,
//! so the hook checks against the tenant's set.

use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicU64, Ordering};

use partita_abi::CuResult;
use partita_ledger::{FLAG_ON_MISFIT_WIDEN, Limits};

use crate::driver::DriverCalls;
use crate::gpu::Gpu;
use crate::tenant::Tenant;

/// The first compute capability with clusters (Hopper).
const CLUSTERS_SINCE: u32 = 90;
/// `CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH`, `_HEIGHT`, `_DEPTH`.
const REQUIRED_CLUSTER: [c_int; 3] = [11, 12, 13];

/// The largest cluster that is told from larger ones, in blocks; devices run 16.
const BLOCKS_MAX: u32 = 0x7fff;
/// Stands beside the size in a process that sees several GPUs.
const SEVERAL_GPUS: u32 = 0x8000;

/// Compiled-in cluster size of functions seen lately.
///
/// One word a function: its address in the upper 48 bits, the size in blocks
/// below. A collision only costs asking the driver again.
static CLUSTER_OF: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

fn entry_of(function: *mut c_void) -> &'static AtomicU64 {
    &CLUSTER_OF[(function as usize >> 4) % CLUSTER_OF.len()]
}

/// Whether the function is known to have been compiled without clusters, in a process that sees one GPU.
#[inline(always)]
pub fn is_known_plain(function: *mut c_void) -> bool {
    entry_of(function).load(Ordering::Relaxed) == (function as u64) << 16 | 1
}

/// Forgets what was known of functions: what is loaded next may give another
/// function the same address.
pub fn forget_functions() {
    for entry in &CLUSTER_OF {
        entry.store(0, Ordering::Relaxed);
    }
}

/// A function's attribute was set: one of a cluster's size makes what is known of functions wrong.
pub fn attribute_changed(attribute: c_int) {
    if REQUIRED_CLUSTER.contains(&attribute) {
        forget_functions();
    }
}

fn compiled_cluster_blocks(tenant: &Tenant, function: *mut c_void) -> u32 {
    let (address, entry) = (function as u64, entry_of(function));
    let known = entry.load(Ordering::Relaxed);
    if known >> 16 == address & 0xffff_ffff_ffff && known != 0 {
        return (known & u64::from(BLOCKS_MAX)) as u32;
    }
    let blocks = match tenant.compute_capability < CLUSTERS_SINCE {
        true => 1,
        false => asked_cluster_blocks(tenant.driver(), function),
    };
    // A launch of a process with several GPUs has more to ask than this, and must not be known as plain.
    let several = if tenant.places().is_some() { SEVERAL_GPUS } else { 0 };
    entry.store(address << 16 | u64::from(blocks | several), Ordering::Relaxed);
    blocks
}

fn asked_cluster_blocks(driver: &DriverCalls, function: *mut c_void) -> u32 {
    REQUIRED_CLUSTER
        .iter()
        .map(|&attribute| driver.function_attribute(function, attribute).unwrap_or(0).max(1))
        .fold(1u32, u32::saturating_mul)
        .min(BLOCKS_MAX)
}

/// What a launch asks for.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// The `CUfunction` or `CUkernel`.
    pub function: *mut c_void,
    /// Blocks of the grid.
    pub grid_blocks: u64,
    /// Threads of a block.
    pub block_threads: u64,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Blocks of a cluster given at the launch, 0 for none.
    pub cluster_blocks: u64,
    /// Whether all blocks must be resident at once.
    pub cooperative: bool,
}

// SAFETY: the function is a handle, never read through by the hook.
unsafe impl Send for Shape {}

impl Shape {
    /// A launch about which only its function can say anything.
    pub fn plain(function: *mut c_void) -> Self {
        Self {
            function,
            grid_blocks: 0,
            block_threads: 0,
            shared_bytes: 0,
            cluster_blocks: 0,
            cooperative: false,
        }
    }

    /// Blocks of a cluster of this launch, 1 for none.
    pub fn cluster(&self, tenant: &Tenant) -> u64 {
        match self.cluster_blocks {
            0 => u64::from(compiled_cluster_blocks(tenant, self.function)),
            blocks => blocks,
        }
    }
}

/// x × y × z without overflow.
pub fn volume([x, y, z]: [c_uint; 3]) -> u64 {
    u64::from(x).saturating_mul(u64::from(y)).saturating_mul(u64::from(z))
}

/// How a launch may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Inside the partition.
    Fits,
    /// On the whole GPU: it does not fit, and the tenant is allowed that.
    Widen,
    /// Not at all.
    Refuse(CuResult),
}

/// Judges a launch in `stream` by the tenant's limits of this moment.
pub fn judge(tenant: &Tenant, gpu: &Gpu, stream: *mut c_void, shape: &Shape) -> Verdict {
    let cluster_blocks = shape.cluster(tenant);
    if cluster_blocks <= 1 && !shape.cooperative {
        return Verdict::Fits;
    }
    // A cluster alone is judged by two words, which cost a launch no more than its mask does.
    if !shape.cooperative
        && let Ok((cluster_sms_max, _)) = gpu.limits.misfit_words()
        && cluster_blocks <= u64::from(cluster_sms_max)
    {
        return Verdict::Fits;
    }
    let Some(limits) = gpu.limits_now() else {
        return Verdict::Refuse(CuResult::LAUNCH_OUT_OF_RESOURCES);
    };
    // What an SM holds, the driver tells of functions of the current context.
    tenant
        .in_context_of(stream, || judge_by(tenant, &limits, cluster_blocks, shape))
        .unwrap_or_else(Verdict::Refuse)
}

/// Judges a launch whose cluster has `cluster_blocks` blocks by given limits.
pub fn judge_by(tenant: &Tenant, limits: &Limits, cluster_blocks: u64, shape: &Shape) -> Verdict {
    let code = if cluster_blocks > 1 && cluster_blocks > u64::from(limits.max_cluster_sms) {
        CuResult::INVALID_CLUSTER_SIZE
    } else if shape.cooperative && !all_resident(tenant, limits, cluster_blocks, shape) {
        CuResult::COOPERATIVE_LAUNCH_TOO_LARGE
    } else {
        return Verdict::Fits;
    };
    if limits.flags & FLAG_ON_MISFIT_WIDEN != 0 { Verdict::Widen } else { Verdict::Refuse(code) }
}

fn all_resident(tenant: &Tenant, limits: &Limits, cluster_blocks: u64, shape: &Shape) -> bool {
    let threads = u32::try_from(shape.block_threads).unwrap_or(u32::MAX);
    let Some(per_sm) = tenant.driver().blocks_per_sm(shape.function, threads, shape.shared_bytes) else {
        // A launch that the driver cannot judge, it refuses itself.
        return true;
    };
    let resident = match u32::try_from(cluster_blocks) {
        Ok(size) if size > 1 => u64::from(active_clusters(limits, size, per_sm)) * cluster_blocks,
        _ => u64::from(sms(limits)) * u64::from(per_sm),
    };
    shape.grid_blocks <= resident
}

/// SMs of the tenant's set.
fn sms(limits: &Limits) -> u32 {
    let tpcs: u32 = limits.set.iter().map(|word| word.count_ones()).sum();
    tpcs * limits.sms_per_tpc
}

/// Clusters of `cluster_blocks` blocks that the set can run at once, when an SM
/// holds `blocks_per_sm` blocks.
///
/// A cluster takes as many different SMs of one GPC as it has blocks (measured,
/// `docs/hardware.md`), so a GPC with fewer enabled SMs runs none.
pub fn active_clusters(limits: &Limits, cluster_blocks: u32, blocks_per_sm: u32) -> u32 {
    if cluster_blocks == 0 || cluster_blocks > limits.max_cluster_sms {
        return 0;
    }
    let mut enabled_sms = [0u32; 256];
    for tpc in 0..limits.tpc_count as usize {
        let enabled = limits.set.get(tpc / 64).is_some_and(|word| word >> (tpc % 64) & 1 != 0);
        if enabled && let Some(&gpc) = limits.gpc_of_logical.get(tpc) {
            enabled_sms[usize::from(gpc)] += limits.sms_per_tpc;
        }
    }
    let of_gpc = |&sms: &u32| if sms < cluster_blocks { 0 } else { sms * blocks_per_sm / cluster_blocks };
    enabled_sms.iter().map(of_gpc).sum()
}
