//! Changes of executable graphs: their kernels are checked again.

use core::ffi::{c_uint, c_void};

use partita_abi::CuResult;
use partita_abi::prototypes;
use partita_abi::types::{
    CU_GRAPH_NODE_TYPE_KERNEL, CUDA_KERNEL_NODE_PARAMS_v1, CUDA_KERNEL_NODE_PARAMS_v2, CUDA_MEMCPY3D,
    CUDA_MEMSET_NODE_PARAMS_v1, CUcontext, CUgraphExecUpdateResultInfo, CUgraphNode, CUgraphNodeParams,
    CUkernel,
};

use crate::account::locate;
use crate::account::tenant::{self, Tenant};
use crate::driver::real;
use crate::gate::inside::{self, Inserted};
use crate::gate::lanes;
use crate::graph::executables::{self, Armed, Executable};
use crate::graph::nodes;
use crate::persistent::graphs;

/// `cuGraphExecUpdate_v2`. Runs `change` on an executable. If it succeeds, `record` updates the
/// hook's data about it, and the next launch checks it again.
fn changed(
    executable: *mut c_void,
    change: impl FnOnce(*mut c_void) -> CuResult,
    record: impl FnOnce(&Tenant, &mut Executable),
) -> CuResult {
    let Some(tenant) = tenant::current() else { return change(executable) };
    let result = change(executables::real(executable));
    if result.is_ok() {
        executables::forget_ready(executable as usize);
        if let Some(executable) = executables::lock().get(executable as usize) {
            record(tenant, executable);
            executable.again.changed();
            executable.ready = None;
            if executable.wide {
                // The next launch uploads the changed nodes, and all of them need the mask.
                executable.armed = Armed::Unknown;
            }
        }
    }
    result
}

/// Wraps `cuGraphNodeSetEnabled`: the enabled nodes are checked again.
pub unsafe fn set_enabled(
    real: prototypes::cuGraphNodeSetEnabled,
    executable: *mut c_void,
    node: *mut c_void,
    enabled: c_uint,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    changed(executable, |executable| unsafe { real(executable, node, enabled) }, |_, _| {})
}

/// Wraps `cuGraphNodeGetEnabled`.
pub unsafe fn get_enabled(
    real: prototypes::cuGraphNodeGetEnabled,
    executable: *mut c_void,
    node: *mut c_void,
    enabled: *mut c_uint,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    unsafe { real(executables::real(executable), node, enabled) }
}

/// Wraps `cuGraphExecMemcpyNodeSetParams`.
pub unsafe fn set_copy(
    real: prototypes::cuGraphExecMemcpyNodeSetParams,
    executable: *mut c_void,
    node: *mut c_void,
    parameters: *const CUDA_MEMCPY3D,
    context: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    changed(executable, |executable| unsafe { real(executable, node, parameters, context) }, |_, _| {})
}

/// Wraps `cuGraphExecMemsetNodeSetParams`.
pub unsafe fn set_fill(
    real: prototypes::cuGraphExecMemsetNodeSetParams,
    executable: *mut c_void,
    node: *mut c_void,
    parameters: *const CUDA_MEMSET_NODE_PARAMS_v1,
    context: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    changed(executable, |executable| unsafe { real(executable, node, parameters, context) }, |_, _| {})
}

/// Wraps `cuGraphExecUpdate`, which since CUDA 12 reports through one structure and before through
/// two.
pub unsafe fn update_v2(
    real: prototypes::cuGraphExecUpdate_v2,
    executable: *mut c_void,
    graph: *mut c_void,
    result: *mut CUgraphExecUpdateResultInfo,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on, or another executable for the same call.
    updated(executable, graph, |executable| unsafe { real(executable, graph, result) })
}

/// Runs an update of an executable by a graph, into which the executable's waits are inserted
/// meanwhile. If that fails, the update runs again on an executable without waits, so that the
/// program's error does not depend on them.
fn updated(
    executable: *mut c_void,
    graph: *mut c_void,
    update: impl Fn(*mut c_void) -> CuResult,
) -> CuResult {
    // Programs instantiate the graph when its executable cannot be updated.
    if graphs::refused("the update of an executable graph", "instantiate the new graph").is_some() {
        return CuResult::GRAPH_EXEC_UPDATE_FAILURE;
    }
    let mut inserted = waits_of(executable, graph);
    let run = |executable| {
        let result = update(executable);
        if let Some(inserted) = &mut inserted {
            inserted.take_out();
        }
        result
    };
    let code = changed(executable, run, |tenant, executable| take_shapes(tenant, executable, graph));
    if code.is_ok() || !has_waits(executable) {
        return code;
    }
    match without_waits(executable, &update) {
        Some(told) if told.is_err() => told,
        // The executable's graph has changed, or the driver refuses the waits: return the result
        // for a graph without them. One with waits is never made again.
        _ => update(executable),
    }
}

/// Whether an executable has waits inside.
fn has_waits(executable: *mut c_void) -> bool {
    tenant::current().is_some()
        && executables::lock().get(executable as usize).is_some_and(|it| it.waits.is_some())
}

/// Updates an executable of the same graph that has no waits inside, and that is never launched.
fn without_waits(executable: *mut c_void, update: impl Fn(*mut c_void) -> CuResult) -> Option<CuResult> {
    let tenant = tenant::current()?;
    let graph = executables::lock().get(executable as usize)?.graph();
    let driver = tenant.graph_calls()?;
    let plain = driver.instantiate(graph, 0).ok()?;
    let code = update(plain);
    driver.destroy_executable(plain);
    Some(code)
}

/// Puts the waits of an executable into a graph.
fn waits_of(executable: *mut c_void, graph: *mut c_void) -> Option<Inserted> {
    let tenant = tenant::current()?;
    let (plan, gpu) = {
        let mut table = executables::lock();
        let executable = table.get(executable as usize)?;
        (executable.waits.as_ref()?.plan(), executable.gpu)
    };
    let gpu = locate::gpu_of_device(tenant, gpu.into()).ok()?;
    inside::insert_as(lanes::of(gpu)?, tenant, gpu, graph, plan)
}

/// Wraps `cuGraphExecUpdate` of CUDA 10 and 11. That call refuses graphs with waits inside
/// (measured, `docs/hardware.md`), so the later one updates an executable that has some.
pub unsafe fn update(
    real: prototypes::cuGraphExecUpdate,
    executable: *mut c_void,
    graph: *mut c_void,
    bad_node: *mut *mut c_void,
    result: *mut c_uint,
) -> CuResult {
    let later = (has_waits(executable) && !result.is_null()).then(later_update).flatten();
    updated(executable, graph, |updated| {
        if let Some(later) = later
            && updated == executable
        {
            let mut info = CUgraphExecUpdateResultInfo {
                result: 0,
                error_node: CUgraphNode::NULL,
                error_from_node: CUgraphNode::NULL,
            };
            // SAFETY: the caller's arguments, and a valid pointer.
            let code = unsafe { later(executable, graph, &mut info) };
            if code.is_ok() {
                // SAFETY: pointers of the caller's, one of which may be null.
                unsafe {
                    result.write(info.result);
                    if let Some(bad_node) = bad_node.as_mut() {
                        *bad_node = core::ptr::null_mut();
                    }
                }
                return code;
            }
        }
        // SAFETY: the caller's arguments, passed on, or another executable for the same call.
        unsafe { real(updated, graph, bad_node, result) }
    })
}

/// `cuGraphExecUpdate_v2`, from CUDA 12.0 on.
fn later_update() -> Option<prototypes::cuGraphExecUpdate_v2> {
    let address = real::symbol(c"cuGraphExecUpdate_v2");
    // SAFETY: the prototype of that name in cuda.h.
    (!address.is_null())
        .then(|| unsafe { core::mem::transmute::<*mut c_void, prototypes::cuGraphExecUpdate_v2>(address) })
}

/// Records that an executable has taken the parameters of a graph of the same structure. Its nodes
/// stay those of its own graph.
fn take_shapes(tenant: &Tenant, executable: &mut Executable, graph: *mut c_void) {
    let others = nodes::kernels(tenant, graph as usize).unwrap_or_default();
    if others.len() == executable.kernels.len() {
        for (own, other) in executable.kernels.iter_mut().zip(others) {
            (own.needs, own.shape) = (other.needs, other.shape);
        }
    } else {
        // The driver found them alike; if the hook cannot, it no longer relies on its data.
        (executable.complete, executable.armed) = (false, Armed::Unknown);
    }
}

/// Wraps `cuGraphExecKernelNodeSetParams` of CUDA 12.
pub unsafe fn set_kernel_v2(
    real: prototypes::cuGraphExecKernelNodeSetParams_v2,
    executable: *mut c_void,
    node: *mut c_void,
    parameters: *const CUDA_KERNEL_NODE_PARAMS_v2,
) -> CuResult {
    if let Some(code) = graphs::node_refused() {
        return code;
    }
    // SAFETY: the caller's arguments, passed on.
    changed(
        executable,
        |executable| unsafe { real(executable, node, parameters) },
        |tenant, executable| {
            // SAFETY: the driver has just read the parameters.
            replace_shape(tenant, executable, node, unsafe { &*parameters });
        },
    )
}

/// Wraps `cuGraphExecKernelNodeSetParams` of CUDA 10 and 11.
pub unsafe fn set_kernel(
    real: prototypes::cuGraphExecKernelNodeSetParams,
    executable: *mut c_void,
    node: *mut c_void,
    parameters: *const CUDA_KERNEL_NODE_PARAMS_v1,
) -> CuResult {
    if let Some(code) = graphs::node_refused() {
        return code;
    }
    // SAFETY: the caller's arguments, passed on.
    changed(
        executable,
        |executable| unsafe { real(executable, node, parameters) },
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
                kern: CUkernel(null),
                ctx: CUcontext(null),
            };
            replace_shape(tenant, executable, node, &parameters);
        },
    )
}

/// Wraps `cuGraphExecNodeSetParams`.
pub unsafe fn set_node(
    real: prototypes::cuGraphExecNodeSetParams,
    executable: *mut c_void,
    node: *mut c_void,
    parameters: *mut CUgraphNodeParams,
) -> CuResult {
    // SAFETY: the caller's parameters, null or valid.
    if unsafe { parameters.as_ref() }.is_some_and(|of| of.kind == CU_GRAPH_NODE_TYPE_KERNEL)
        && let Some(code) = graphs::node_refused()
    {
        return code;
    }
    // SAFETY: the caller's arguments, passed on.
    changed(
        executable,
        |executable| unsafe { real(executable, node, parameters) },
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
    if let (Some(own), Some(new)) = (own, nodes::kernel_with(tenant, node, parameters)) {
        *own = new;
    }
}

/// Wraps `cuGraphExecChildGraphNodeSetParams`.
pub unsafe fn set_child(
    real: prototypes::cuGraphExecChildGraphNodeSetParams,
    executable: *mut c_void,
    node: *mut c_void,
    graph: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    changed(
        executable,
        |executable| unsafe { real(executable, node, graph) },
        |tenant, executable| {
            let embedded = tenant.graph_calls().and_then(|driver| driver.child(node));
            let own = embedded.and_then(|embedded| nodes::kernels(tenant, embedded as usize));
            let new = nodes::kernels(tenant, graph as usize);
            let (Some(own), Some(new)) = (own, new) else {
                (executable.complete, executable.armed) = (false, Armed::Unknown);
                return;
            };
            // The nodes stay those of the embedded graph; their launches are those of the new
            // graph.
            for (own, new) in own.iter().zip(new) {
                if let Some(kernel) = executable.kernels.iter_mut().find(|kernel| kernel.node == own.node) {
                    (kernel.needs, kernel.shape) = (new.needs, new.shape);
                }
            }
        },
    )
}
