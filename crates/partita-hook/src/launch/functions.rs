//! Facts about launches that depend on the kernel function: its compiled-in cluster, and whether it
//! may launch kernels itself.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};

use partita_abi::types::CUfunction_attribute;

use crate::account::tenant::Tenant;
use crate::driver::calls::{DriverCalls, ModuleCalls};
use crate::launch::fast_path::{self, Traits};

/// The first compute capability with clusters (Hopper).
const CLUSTERS_SINCE: u32 = 90;
/// `CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH`, `_HEIGHT`, `_DEPTH`.
const REQUIRED_CLUSTER: [CUfunction_attribute; 3] = [11, 12, 13];

/// A function's attribute was set: one of a cluster's size invalidates the cached data of
/// functions.
pub fn attribute_changed(attribute: CUfunction_attribute) {
    if REQUIRED_CLUSTER.contains(&attribute) {
        fast_path::forget();
    }
}

/// The traits of a `CUfunction` or `CUkernel`, queried in the current context.
pub fn traits(tenant: &Tenant, function: *mut c_void) -> Traits {
    if let Some(known) = fast_path::known(function) {
        return known;
    }
    let Some(launched) = launched(tenant, function) else {
        // A function that the driver does not know, whose launch it refuses; or one to query again.
        return Traits { cluster_blocks: 1, launches: false };
    };
    let cluster_blocks = match tenant.compute_capability < CLUSTERS_SINCE {
        true => 1,
        false => asked_cluster_blocks(tenant.driver(), launched.function),
    };
    let traits = Traits { cluster_blocks, launches: launched.holds_device_runtime(tenant) };
    fast_path::note(tenant, function, traits);
    traits
}

fn asked_cluster_blocks(driver: &DriverCalls, function: *mut c_void) -> u32 {
    REQUIRED_CLUSTER
        .iter()
        .map(|&attribute| driver.function_attribute(function, attribute).unwrap_or(0).max(1))
        .fold(1u32, u32::saturating_mul)
        .min(fast_path::CLUSTER_BLOCKS_MAX)
}

/// The function behind a handle.
struct Launched {
    /// The `CUfunction` of the current context.
    function: *mut c_void,
    /// Its module; null before CUDA 11.0, where a function does not report it.
    module: *mut c_void,
}

/// The function of a `CUfunction` or `CUkernel`. The driver distinguishes them only by an error,
/// which debuggers show to their users; so the kind of the last handle is tried first.
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
    /// applies to them (measured, `docs/hardware.md`).
    fn holds_device_runtime(&self, tenant: &Tenant) -> bool {
        // The version of libcudadevrt.a, a variable that its every user is linked with.
        let has = |modules: &ModuleCalls| modules.has_global(self.module, c"__CNPRT_VERSION_NUMBER__");
        !self.module.is_null() && tenant.module_calls().is_some_and(has)
    }
}
