//! Executable graphs: made, launched, changed and ended.
//!
//! Before a launch or an upload, an executable whose kernels carry another mask
//! than the tenant's is armed anew, kernel by kernel; then the driver calls back for
//! each and the mask of that moment enters its descriptor. An unchanged launch
//! costs two loads more. Where an executable cannot be armed (a node that the
//! program has destroyed, a conditional node from a clone), it runs on as long as
//! the TPCs that it was uploaded with are the tenant's, and is refused after that.

use alloc::vec::Vec;
use core::ffi::{c_char, c_uint, c_void};

use partita_abi::CuResult;
use partita_abi::types::{CU_GRAPH_NODE_TYPE_KERNEL, CUDA_GRAPH_INSTANTIATE_PARAMS};
use partita_abi::types::{CUDA_KERNEL_NODE_PARAMS_v1, CUDA_KERNEL_NODE_PARAMS_v2, CUgraphNodeParams};
use partita_ledger::Limits;

use crate::executables::{self, Armed, Destroy, Executable, KernelNode};
use crate::misfit::{self, Verdict};
use crate::tenant::{self, Tenant};
use crate::{graph_nodes, report, widen};

/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`.
const FLAG_UPLOAD: u64 = 2;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH`.
const FLAG_DEVICE_LAUNCH: u64 = 4;

type Launch = unsafe extern "C" fn(*mut c_void, *mut c_void) -> CuResult;

/// Wraps `cuGraphLaunch` and `cuGraphUpload`.
pub unsafe fn launch(real: Launch, executable: *mut c_void, stream: *mut c_void) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let launch = || unsafe { real(executable, stream) };
    let Some(tenant) = tenant::current() else {
        return if tenant::is_refused() { CuResult::NOT_INITIALIZED } else { launch() };
    };
    if executables::is_ready(executable as usize, tenant.limits.epoch()) {
        return launch();
    }
    match prepare(tenant, executable) {
        Verdict::Fits => launch(),
        Verdict::Widen => widen::run(tenant, launch),
        Verdict::Refuse(code) => code,
    }
}

/// Judges an executable by the limits of this moment and arms it for them.
#[cold]
fn prepare(tenant: &Tenant, handle: *mut c_void) -> Verdict {
    let mut table = tenant.executables();
    let Ok((epoch, limits)) = tenant.limits.load() else {
        return Verdict::Refuse(CuResult::LAUNCH_OUT_OF_RESOURCES);
    };
    let Some(executable) = table.get(handle as usize) else {
        // Not an executable of this process: the driver says so.
        return Verdict::Fits;
    };
    let verdict = judge(tenant, &limits, &executable.kernels);
    let wanted = match verdict {
        Verdict::Fits => Armed::Masked(limits.qmd_disable),
        Verdict::Widen => Armed::Wide,
        Verdict::Refuse(_) => return verdict,
    };
    if executable.armed != wanted {
        if executable.armed != Armed::Fresh && !arm(tenant, handle, executable) {
            if stays_inside(executable.armed, &limits) {
                return Verdict::Fits;
            }
            report::line(format_args!(
                "an executable graph cannot be held to the tenant's new limits and is refused: instantiate it again"
            ));
            return Verdict::Refuse(CuResult::INVALID_VALUE);
        }
        executable.armed = wanted;
    }
    if verdict == Verdict::Fits {
        executables::note_ready(handle as usize, epoch);
    }
    verdict
}

/// The hardest verdict on any of the kernels.
fn judge(tenant: &Tenant, limits: &Limits, kernels: &[KernelNode]) -> Verdict {
    let mut hardest = Verdict::Fits;
    for kernel in kernels.iter().filter(|kernel| kernel.is_demanding()) {
        match misfit::judge_by(tenant, limits, kernel.cluster_blocks, &kernel.shape) {
            Verdict::Fits => {}
            Verdict::Widen => hardest = Verdict::Widen,
            refusal @ Verdict::Refuse(_) => return refusal,
        }
    }
    hardest
}

fn arm(tenant: &Tenant, handle: *mut c_void, executable: &Executable) -> bool {
    let Some(driver) = tenant.graph_calls() else { return false };
    executable.complete
        && executable.kernels.iter().all(|kernel| driver.arm(handle, kernel.node as *mut c_void).is_ok())
}

/// Whether every TPC that an armed executable may use is the tenant's now.
fn stays_inside(armed: Armed, limits: &Limits) -> bool {
    match armed {
        Armed::Masked(disable) => limits.qmd_disable.iter().zip(disable).all(|(now, then)| now & !then == 0),
        Armed::Fresh => true,
        Armed::Wide => false,
    }
}

/// Makes an executable by `real` and records it.
///
/// # Safety
/// `executable` is where `real` puts the new handle, null or valid.
unsafe fn made(
    executable: *mut *mut c_void,
    graph: *mut c_void,
    flags: u64,
    real: impl FnOnce() -> CuResult,
) -> CuResult {
    let Some(tenant) = tenant::current() else {
        return if tenant::is_refused() { CuResult::NOT_INITIALIZED } else { real() };
    };
    if flags & FLAG_DEVICE_LAUNCH != 0 {
        // Launched by a kernel, it would keep its mask for ever and never be judged.
        report::line(format_args!(
            "a graph for launch from the device cannot be held to a partition that may change, and is refused"
        ));
        return CuResult::INVALID_VALUE;
    }
    let armed = match (flags & FLAG_UPLOAD, tenant.limits.disable_words()) {
        (0, _) => Armed::Fresh,
        (_, Ok((_, disable))) => Armed::Masked(disable),
        (_, Err(_)) => return CuResult::INVALID_VALUE,
    };
    let result = real();
    if result.is_ok() {
        let kernels = graph_nodes::kernels(tenant, graph as usize);
        let complete = kernels.is_some();
        // SAFETY: the driver has just written through it.
        let handle = unsafe { *executable } as usize;
        let kernels = kernels.unwrap_or_default();
        tenant.executables().insert(handle, Executable::new(graph as usize, kernels, complete, armed));
    }
    result
}

/// Wraps `cuGraphInstantiate` of CUDA 10 and 11.
pub unsafe fn instantiate(
    real: unsafe extern "C" fn(
        *mut *mut c_void,
        *mut c_void,
        *mut *mut c_void,
        *mut c_char,
        usize,
    ) -> CuResult,
    executable: *mut *mut c_void,
    graph: *mut c_void,
    bad_node: *mut *mut c_void,
    log: *mut c_char,
    log_bytes: usize,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    unsafe { made(executable, graph, 0, || real(executable, graph, bad_node, log, log_bytes)) }
}

/// Wraps `cuGraphInstantiateWithFlags`.
pub unsafe fn instantiate_with_flags(
    real: unsafe extern "C" fn(*mut *mut c_void, *mut c_void, u64) -> CuResult,
    executable: *mut *mut c_void,
    graph: *mut c_void,
    flags: u64,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    unsafe { made(executable, graph, flags, || real(executable, graph, flags)) }
}

/// Wraps `cuGraphInstantiateWithParams`.
pub unsafe fn instantiate_with_params(
    real: unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *mut CUDA_GRAPH_INSTANTIATE_PARAMS) -> CuResult,
    executable: *mut *mut c_void,
    graph: *mut c_void,
    parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
) -> CuResult {
    // SAFETY: the caller's parameters, null or valid.
    let flags = unsafe { parameters.as_ref() }.map_or(0, |parameters| parameters.flags);
    // SAFETY: the caller's arguments, passed on.
    unsafe { made(executable, graph, flags, || real(executable, graph, parameters)) }
}

/// Wraps `cuGraphExecDestroy`.
pub unsafe fn destroy_executable(
    real: unsafe extern "C" fn(*mut c_void) -> CuResult,
    executable: *mut c_void,
) -> CuResult {
    let Some(tenant) = tenant::current() else {
        // SAFETY: the caller's handle, passed on.
        return unsafe { real(executable) };
    };
    // Forgotten first: once the driver has freed it, another thread may be given its address.
    executables::forget_ready(executable as usize);
    let removed = tenant.executables().remove(executable as usize);
    // SAFETY: the caller's handle, passed on.
    let result = unsafe { real(executable) };
    if let (Some(graph), Some(driver)) = (removed, tenant.graph_calls()) {
        driver.destroy(graph);
    }
    result
}

/// Wraps `cuGraphDestroy`: a graph with executables ends with the last of them, because they are armed
/// through its nodes.
pub unsafe fn destroy_graph(
    real: unsafe extern "C" fn(*mut c_void) -> CuResult,
    graph: *mut c_void,
) -> CuResult {
    let end = tenant::current().map(|tenant| tenant.executables().destroy(graph as usize));
    match end {
        Some(Destroy::Later) => CuResult::SUCCESS,
        Some(Destroy::Twice) => CuResult::INVALID_VALUE,
        // SAFETY: the caller's handle, passed on.
        Some(Destroy::Now) | None => unsafe { real(graph) },
    }
}

/// Runs `change` on an executable. If it succeeds, `record` corrects what is known of it, and the next
/// launch looks again.
fn changed(
    executable: *mut c_void,
    change: impl FnOnce() -> CuResult,
    record: impl FnOnce(&Tenant, &mut Executable),
) -> CuResult {
    let result = change();
    if result.is_ok()
        && let Some(tenant) = tenant::current()
    {
        executables::forget_ready(executable as usize);
        if let Some(executable) = tenant.executables().get(executable as usize) {
            record(tenant, executable);
        }
    }
    result
}

/// Wraps `cuGraphExecUpdate`, which since CUDA 12 reports through one structure and before through two.
pub unsafe fn update_v2(
    real: unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void) -> CuResult,
    executable: *mut c_void,
    graph: *mut c_void,
    result: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    changed(
        executable,
        || unsafe { real(executable, graph, result) },
        |tenant, executable| {
            take_shapes(tenant, executable, graph);
        },
    )
}

/// Wraps `cuGraphExecUpdate` of CUDA 10 and 11.
pub unsafe fn update(
    real: unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void, *mut c_uint) -> CuResult,
    executable: *mut c_void,
    graph: *mut c_void,
    bad_node: *mut *mut c_void,
    result: *mut c_uint,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    changed(
        executable,
        || unsafe { real(executable, graph, bad_node, result) },
        |tenant, executable| {
            take_shapes(tenant, executable, graph);
        },
    )
}

/// An executable has taken over the parameters of a graph of the same structure. Its nodes stay those of its
/// own graph.
fn take_shapes(tenant: &Tenant, executable: &mut Executable, graph: *mut c_void) {
    let others = graph_nodes::kernels(tenant, graph as usize).unwrap_or_default();
    if others.len() == executable.kernels.len() {
        for (own, other) in executable.kernels.iter_mut().zip(others) {
            (own.cluster_blocks, own.shape) = (other.cluster_blocks, other.shape);
        }
    } else {
        // The driver found them alike; if the hook cannot, it no longer vouches for a change of the mask.
        executable.complete = false;
        let demanding: Vec<KernelNode> = others.into_iter().filter(KernelNode::is_demanding).collect();
        executable.kernels.extend(demanding);
    }
}

/// Wraps `cuGraphExecKernelNodeSetParams` of CUDA 12.
pub unsafe fn set_kernel_v2(
    real: unsafe extern "C" fn(*mut c_void, *mut c_void, *const CUDA_KERNEL_NODE_PARAMS_v2) -> CuResult,
    executable: *mut c_void,
    node: *mut c_void,
    parameters: *const CUDA_KERNEL_NODE_PARAMS_v2,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    changed(
        executable,
        || unsafe { real(executable, node, parameters) },
        |tenant, executable| {
            // SAFETY: the driver has just read the parameters.
            replace_shape(tenant, executable, node, unsafe { &*parameters });
        },
    )
}

/// Wraps `cuGraphExecKernelNodeSetParams` of CUDA 10 and 11.
pub unsafe fn set_kernel(
    real: unsafe extern "C" fn(*mut c_void, *mut c_void, *const CUDA_KERNEL_NODE_PARAMS_v1) -> CuResult,
    executable: *mut c_void,
    node: *mut c_void,
    parameters: *const CUDA_KERNEL_NODE_PARAMS_v1,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    changed(
        executable,
        || unsafe { real(executable, node, parameters) },
        |tenant, executable| {
            // SAFETY: the driver has just read the parameters.
            let v1 = unsafe { &*parameters };
            let null = core::ptr::null_mut();
            let parameters = CUDA_KERNEL_NODE_PARAMS_v2 {
                func: v1.func,
                grid_dim: v1.grid_dim,
                block_dim: v1.block_dim,
                shared_mem_bytes: v1.shared_mem_bytes,
                kernel_params: v1.kernel_params,
                extra: v1.extra,
                kern: partita_abi::types::CUkernel(null),
                ctx: partita_abi::types::CUcontext(null),
            };
            replace_shape(tenant, executable, node, &parameters);
        },
    )
}

/// Wraps `cuGraphExecNodeSetParams`.
pub unsafe fn set_node(
    real: unsafe extern "C" fn(*mut c_void, *mut c_void, *mut CUgraphNodeParams) -> CuResult,
    executable: *mut c_void,
    node: *mut c_void,
    parameters: *mut CUgraphNodeParams,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    changed(
        executable,
        || unsafe { real(executable, node, parameters) },
        |tenant, executable| {
            // SAFETY: the driver has just read the parameters.
            let parameters = unsafe { &*parameters };
            if parameters.kind == CU_GRAPH_NODE_TYPE_KERNEL {
                // SAFETY: the member that the kind names.
                replace_shape(tenant, executable, node, unsafe { &parameters.payload.kernel });
            }
        },
    )
}

fn replace_shape(
    tenant: &Tenant,
    executable: &mut Executable,
    node: *mut c_void,
    parameters: &CUDA_KERNEL_NODE_PARAMS_v2,
) {
    let own = executable.kernels.iter_mut().find(|kernel| kernel.node == node as usize);
    if let (Some(own), Some(new)) = (own, graph_nodes::kernel_with(tenant, node, parameters)) {
        *own = new;
    }
}

/// Wraps `cuGraphExecChildGraphNodeSetParams`.
pub unsafe fn set_child(
    real: unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void) -> CuResult,
    executable: *mut c_void,
    node: *mut c_void,
    graph: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    changed(
        executable,
        || unsafe { real(executable, node, graph) },
        |tenant, executable| {
            let embedded = tenant.graph_calls().and_then(|driver| driver.child(node));
            let own = embedded.and_then(|embedded| graph_nodes::kernels(tenant, embedded as usize));
            let new = graph_nodes::kernels(tenant, graph as usize);
            let (Some(own), Some(new)) = (own, new) else {
                executable.complete = false;
                return;
            };
            // The nodes stay those of the embedded graph; what they launch is the new graph's.
            for (own, new) in own.iter().zip(new) {
                if let Some(kernel) = executable.kernels.iter_mut().find(|kernel| kernel.node == own.node) {
                    (kernel.cluster_blocks, kernel.shape) = (new.cluster_blocks, new.shape);
                }
            }
        },
    )
}
