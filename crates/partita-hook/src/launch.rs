//! Launches that can be too large for a partition, judged at the call.
//!
//! The hardware waits for ever for SMs that a mask has taken away: a cluster
//! runs on as many SMs of one GPC as it has blocks, and a cooperative grid needs
//! all its blocks resident at once. The driver's own checks and the occupancy
//! calls do not see the mask, so the hook checks against the tenant's set.

use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicU64, Ordering};

use partita_abi::CuResult;
use partita_abi::types::{
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, CUlaunchAttribute, CUlaunchConfig,
};

use crate::driver::DriverCalls;
use crate::tenant::{self, Tenant};

/// The first compute capability with clusters (Hopper).
const CLUSTERS_SINCE: u32 = 90;
/// `CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH`, `_HEIGHT`, `_DEPTH`.
const REQUIRED_CLUSTER: [c_int; 3] = [11, 12, 13];

/// Compiled-in cluster size of functions seen lately.
///
/// One word a function: its address in the upper 48 bits, the size in blocks
/// below. A collision only costs asking the driver again.
static CLUSTER_OF: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

fn entry_of(function: *mut c_void) -> &'static AtomicU64 {
    &CLUSTER_OF[(function as usize >> 4) % CLUSTER_OF.len()]
}

/// Whether the function is known to have been compiled without clusters.
#[inline(always)]
fn is_known_plain(function: *mut c_void) -> bool {
    entry_of(function).load(Ordering::Relaxed) == (function as u64) << 16 | 1
}

fn compiled_cluster_blocks(driver: &DriverCalls, function: *mut c_void) -> u32 {
    let (address, entry) = (function as u64, entry_of(function));
    let known = entry.load(Ordering::Relaxed);
    if known >> 16 == address & 0xffff_ffff_ffff && known != 0 {
        return (known & 0xffff) as u32;
    }
    let blocks = REQUIRED_CLUSTER
        .iter()
        .map(|&attribute| driver.function_attribute(function, attribute).unwrap_or(0).max(1))
        .fold(1u32, u32::saturating_mul)
        .min(0xffff);
    entry.store(address << 16 | u64::from(blocks), Ordering::Relaxed);
    blocks
}

/// What a launch asks for.
struct Shape {
    function: *mut c_void,
    grid_blocks: u64,
    block_threads: u64,
    shared_bytes: u32,
    /// Blocks of a cluster given at the launch, 0 for none.
    cluster_blocks: u64,
    cooperative: bool,
}

/// The error for a launch that could never run inside the partition.
fn judge(tenant: &Tenant, shape: &Shape) -> Result<(), CuResult> {
    let clusters = tenant.compute_capability >= CLUSTERS_SINCE;
    let cluster_blocks = match shape.cluster_blocks {
        0 if !clusters => {
            // No function has clusters; known from now on.
            entry_of(shape.function).store((shape.function as u64) << 16 | 1, Ordering::Relaxed);
            1
        }
        0 => u64::from(compiled_cluster_blocks(tenant.driver(), shape.function)),
        blocks => blocks,
    };
    if cluster_blocks <= 1 && !shape.cooperative {
        return Ok(());
    }
    let Some(limits) = tenant.limits_now() else { return Err(CuResult::LAUNCH_OUT_OF_RESOURCES) };
    if cluster_blocks > u64::from(limits.max_cluster_sms) {
        return Err(CuResult::INVALID_CLUSTER_SIZE);
    }
    if shape.cooperative {
        let tpcs: u32 = limits.set.iter().map(|word| word.count_ones()).sum();
        let sms = u64::from(tpcs) * u64::from(limits.sms_per_tpc);
        let threads = u32::try_from(shape.block_threads).unwrap_or(u32::MAX);
        // A launch that the driver cannot judge, it refuses itself.
        if let Some(blocks_per_sm) =
            tenant.driver().blocks_per_sm(shape.function, threads, shape.shared_bytes)
            && shape.grid_blocks > sms * u64::from(blocks_per_sm)
        {
            return Err(CuResult::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
    }
    Ok(())
}

fn volume(x: c_uint, y: c_uint, z: c_uint) -> u64 {
    u64::from(x).saturating_mul(u64::from(y)).saturating_mul(u64::from(z))
}

/// Runs `launch` unless the tenant's partition rules the shape out.
fn judged(shape: impl FnOnce() -> Shape, launch: impl FnOnce() -> CuResult) -> CuResult {
    match judge_or_refuse(&shape()) {
        Ok(()) => launch(),
        Err(code) => code,
    }
}

#[cold]
fn judge_or_refuse(shape: &Shape) -> Result<(), CuResult> {
    match tenant::current() {
        Some(tenant) => judge(tenant, shape),
        None if tenant::is_refused() => Err(CuResult::NOT_INITIALIZED),
        None => Ok(()),
    }
}

type Kernel = unsafe extern "C" fn(
    *mut c_void,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> CuResult;

/// Wraps `cuLaunchKernel`.
#[expect(clippy::too_many_arguments, reason = "the driver's prototype")]
#[inline]
pub unsafe fn kernel(
    real: Kernel,
    function: *mut c_void,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: *mut c_void,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CuResult {
    // The launch path of most programs: nothing to judge but whether the function
    // was compiled for clusters, which is known after its first launch.
    if !is_known_plain(function) || tenant::current().is_none() {
        let shape = Shape {
            function,
            grid_blocks: 0,
            block_threads: 0,
            shared_bytes,
            cluster_blocks: 0,
            cooperative: false,
        };
        if let Err(code) = judge_or_refuse(&shape) {
            return code;
        }
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe {
        real(
            function,
            grid_x,
            grid_y,
            grid_z,
            block_x,
            block_y,
            block_z,
            shared_bytes,
            stream,
            parameters,
            extra,
        )
    }
}

type CooperativeKernel = unsafe extern "C" fn(
    *mut c_void,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    *mut c_void,
    *mut *mut c_void,
) -> CuResult;

/// Wraps `cuLaunchCooperativeKernel`.
#[expect(clippy::too_many_arguments, reason = "the driver's prototype")]
pub unsafe fn cooperative_kernel(
    real: CooperativeKernel,
    function: *mut c_void,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: *mut c_void,
    parameters: *mut *mut c_void,
) -> CuResult {
    let shape = || Shape {
        function,
        grid_blocks: volume(grid_x, grid_y, grid_z),
        block_threads: volume(block_x, block_y, block_z),
        shared_bytes,
        cluster_blocks: 0,
        cooperative: true,
    };
    // SAFETY: the caller's arguments, passed on.
    judged(shape, || unsafe {
        real(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters)
    })
}

type KernelEx =
    unsafe extern "C" fn(*const CUlaunchConfig, *mut c_void, *mut *mut c_void, *mut *mut c_void) -> CuResult;

/// Wraps `cuLaunchKernelEx`.
pub unsafe fn kernel_ex(
    real: KernelEx,
    config: *const CUlaunchConfig,
    function: *mut c_void,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let launch = || unsafe { real(config, function, parameters, extra) };
    // SAFETY: the caller's configuration, null or valid.
    match unsafe { config.as_ref() } {
        // SAFETY: the caller's configuration, with as many attributes as it says.
        Some(config) => judged(|| unsafe { shape_of(config, function) }, launch),
        None => launch(),
    }
}

/// # Safety
/// `config.attrs` holds `config.num_attrs` attributes.
unsafe fn shape_of(config: &CUlaunchConfig, function: *mut c_void) -> Shape {
    let mut shape = Shape {
        function,
        grid_blocks: volume(config.grid_dim_x, config.grid_dim_y, config.grid_dim_z),
        block_threads: volume(config.block_dim_x, config.block_dim_y, config.block_dim_z),
        shared_bytes: config.shared_mem_bytes,
        cluster_blocks: 0,
        cooperative: false,
    };
    let attributes: &[CUlaunchAttribute] = if config.attrs.is_null() {
        &[]
    } else {
        // SAFETY: passed on to the caller.
        unsafe { core::slice::from_raw_parts(config.attrs, config.num_attrs as usize) }
    };
    for attribute in attributes {
        match attribute.id {
            CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                let [x, y, z] = attribute.value.as_dim3();
                shape.cluster_blocks = volume(x, y, z);
            }
            CU_LAUNCH_ATTRIBUTE_COOPERATIVE => {
                shape.cooperative = attribute.value.as_i32() != 0;
            }
            _ => {}
        }
    }
    shape
}

/// Wraps `cuModuleUnload` and `cuLibraryUnload`: what is loaded next may give
/// another function the same address.
pub unsafe fn unload(real: unsafe extern "C" fn(*mut c_void) -> CuResult, module: *mut c_void) -> CuResult {
    for entry in &CLUSTER_OF {
        entry.store(0, Ordering::Relaxed);
    }
    // SAFETY: the caller's handle, passed on.
    unsafe { real(module) }
}

/// Wraps `cuLaunchCooperativeKernelMultiDevice`, deprecated since CUDA 11.3: a
/// partition lies on one GPU, so a launch over several never fits one.
pub unsafe fn multi_device(
    real: unsafe extern "C" fn(*mut c_void, c_uint, c_uint) -> CuResult,
    launches: *mut c_void,
    devices: c_uint,
    flags: c_uint,
) -> CuResult {
    if tenant::current().is_some() || tenant::is_refused() {
        return CuResult::COOPERATIVE_LAUNCH_TOO_LARGE;
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real(launches, devices, flags) }
}
