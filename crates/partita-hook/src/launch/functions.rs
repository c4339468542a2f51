//! What only a kernel function can tell of its launches: its compiled-in cluster, and whether it
//! may launch kernels itself.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::account::tenant::Tenant;
use crate::driver::calls::{DriverCalls, ModuleCalls};
use crate::gate::pass;

/// The first compute capability with clusters (Hopper).
const CLUSTERS_SINCE: u32 = 90;
/// `CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH`, `_HEIGHT`, `_DEPTH`.
const REQUIRED_CLUSTER: [c_int; 3] = [11, 12, 13];

/// The largest cluster that is told from larger ones, in blocks; devices run 16.
const BLOCKS_MAX: u32 = 0x3fff;
/// Stands beside the size of a function that may launch kernels.
const LAUNCHES: u32 = 0x4000;
/// Stands beside the size in a process that sees several GPUs, or whose tenant has a priority.
const SEVERAL_GPUS: u32 = 0x8000;

/// Functions seen lately.
///
/// One word a function: its address in the upper 48 bits, what is known of it
/// below. A collision only costs asking the driver again.
static KNOWN: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

fn entry_of(function: *mut c_void) -> &'static AtomicU64 {
    &KNOWN[(function as usize >> 4) % KNOWN.len()]
}

/// Whether the function is known to have been compiled without clusters and to launch nothing, in a
/// process that sees one GPU.
#[inline(always)]
pub fn is_known_plain(function: *mut c_void) -> bool {
    entry_of(function).load(Ordering::Relaxed) == (function as u64) << 16 | 1
}

/// Forgets what was known of functions: what is loaded next may give another
/// function the same address.
pub fn forget() {
    for entry in &KNOWN {
        entry.store(0, Ordering::Relaxed);
    }
}

/// A function's attribute was set: one of a cluster's size makes what is known of functions wrong.
pub fn attribute_changed(attribute: c_int) {
    if REQUIRED_CLUSTER.contains(&attribute) {
        forget();
    }
}

/// What a function brings to each of its launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traits {
    /// Blocks of the cluster that it was compiled for, 1 for none.
    pub cluster_blocks: u32,
    /// Whether its module holds the device runtime, by which kernels launch kernels (dynamic
    /// parallelism).
    pub launches: bool,
}

impl Traits {
    /// Those of a `CUfunction` or `CUkernel`, asked in the current context.
    pub fn of(tenant: &Tenant, function: *mut c_void) -> Self {
        let (address, entry) = (function as u64, entry_of(function));
        let known = entry.load(Ordering::Relaxed);
        if known >> 16 == address & 0xffff_ffff_ffff && known != 0 {
            return Self {
                cluster_blocks: known as u32 & BLOCKS_MAX,
                launches: known as u32 & LAUNCHES != 0,
            };
        }
        let Some(launched) = launched(tenant, function) else {
            // A function that the driver does not know, whose launch it refuses; or one to be asked
            // about again.
            return Self { cluster_blocks: 1, launches: false };
        };
        let cluster_blocks = match tenant.compute_capability < CLUSTERS_SINCE {
            true => 1,
            false => asked_cluster_blocks(tenant.driver(), launched.function),
        };
        let launches = launched.holds_device_runtime(tenant);
        // A launch of a process with several GPUs or a priority has more to ask than this, and must
        // not be known as plain.
        let several = if tenant.places().is_some() || pass::is_any() { SEVERAL_GPUS } else { 0 };
        let launching = if launches { LAUNCHES } else { 0 };
        entry.store(address << 16 | u64::from(cluster_blocks | launching | several), Ordering::Relaxed);
        Self { cluster_blocks, launches }
    }
}

fn asked_cluster_blocks(driver: &DriverCalls, function: *mut c_void) -> u32 {
    REQUIRED_CLUSTER
        .iter()
        .map(|&attribute| driver.function_attribute(function, attribute).unwrap_or(0).max(1))
        .fold(1u32, u32::saturating_mul)
        .min(BLOCKS_MAX)
}

/// What is launched by a handle.
struct Launched {
    /// The `CUfunction` of the current context.
    function: *mut c_void,
    /// Its module; null before CUDA 11.0, where a function does not tell it.
    module: *mut c_void,
}

/// The function of a `CUfunction` or `CUkernel`. The driver tells them apart only by an error,
/// which debuggers show to their users; so what the last handle was is asked first.
fn launched(tenant: &Tenant, handle: *mut c_void) -> Option<Launched> {
    static KERNELS: AtomicBool = AtomicBool::new(true);
    let as_function = |function| match tenant.module_calls() {
        Some(modules) => Some(Launched { function, module: modules.of_function(function)? }),
        None => Some(Launched { function, module: core::ptr::null_mut() }),
    };
    let as_kernel = || as_function(tenant.driver().function_of_kernel(handle)?);
    let kernels = KERNELS.load(Ordering::Relaxed);
    let first = if kernels { as_kernel() } else { as_function(handle) };
    first.or_else(|| {
        let second = if kernels { as_function(handle) } else { as_kernel() }?;
        KERNELS.store(!kernels, Ordering::Relaxed);
        Some(second)
    })
}

impl Launched {
    /// Whether its module was linked with the device runtime. Every kernel of such a module may
    /// launch others, whose descriptors are made on the GPU: no callback sees them, and no mask
    /// holds them (measured, `docs/hardware.md`).
    fn holds_device_runtime(&self, tenant: &Tenant) -> bool {
        // The version of libcudadevrt.a, a variable that its every user is linked with.
        let has = |modules: &ModuleCalls| modules.has_global(self.module, c"__CNPRT_VERSION_NUMBER__");
        !self.module.is_null() && tenant.module_calls().is_some_and(has)
    }
}
