//! Calls that add kernels to graphs: on which GPU each runs is noted
//! ([`graph_gpus`](crate::account::graph_gpus)).

use core::ffi::c_void;

use partita_abi::CuResult;
use partita_abi::prototypes;
use partita_abi::types::{
    CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_KERNEL, CUDA_KERNEL_NODE_PARAMS_v1,
    CUDA_KERNEL_NODE_PARAMS_v2, CUgraphNodeParams,
};

use crate::account::graph_gpus::{join, note};
use crate::account::{locate, tenant};
use crate::graph::edits;
use crate::persistent::graphs;

/// Notes the GPU of a kernel that was added to a graph: that of `context`, null for the current
/// one.
fn note_in(graph: *mut c_void, context: *mut c_void) {
    if let Some(tenant) = tenant::current()
        && tenant.places().is_some()
        && let Ok(gpu) = locate::gpu_of_context(tenant, context)
    {
        note(graph as usize, gpu);
    }
}

/// The context that a kernel node names: a function has its own.
fn context_of(parameters: &CUDA_KERNEL_NODE_PARAMS_v2) -> *mut c_void {
    if parameters.func.0.is_null() { parameters.ctx.0 } else { core::ptr::null_mut() }
}

/// Records the node that `cuGraphAddNode` has added.
pub fn note_added(graph: *mut c_void, parameters: &CUgraphNodeParams) {
    // SAFETY: the type says which member counts.
    unsafe {
        match parameters.kind {
            CU_GRAPH_NODE_TYPE_KERNEL => note_in(graph, context_of(&parameters.payload.kernel)),
            CU_GRAPH_NODE_TYPE_GRAPH => join(graph as usize, parameters.payload.graph.graph.0 as usize),
            _ => {}
        }
    }
}

type AddKernel<P> =
    unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const *mut c_void, usize, *const P) -> CuResult;

/// Wraps `cuGraphAddKernelNode` of CUDA 10 and 11.
pub unsafe fn add_kernel(
    real: AddKernel<CUDA_KERNEL_NODE_PARAMS_v1>,
    node: *mut *mut c_void,
    graph: *mut c_void,
    dependencies: *const *mut c_void,
    count: usize,
    parameters: *const CUDA_KERNEL_NODE_PARAMS_v1,
) -> CuResult {
    if let Some(code) = graphs::node_refused() {
        return code;
    }
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(node, graph, dependencies, count, parameters) };
    if result.is_ok() {
        note_in(graph, core::ptr::null_mut());
    }
    result
}

/// Wraps `cuGraphAddKernelNode` of CUDA 12.
pub unsafe fn add_kernel_v2(
    real: AddKernel<CUDA_KERNEL_NODE_PARAMS_v2>,
    node: *mut *mut c_void,
    graph: *mut c_void,
    dependencies: *const *mut c_void,
    count: usize,
    parameters: *const CUDA_KERNEL_NODE_PARAMS_v2,
) -> CuResult {
    if let Some(code) = graphs::node_refused() {
        return code;
    }
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(node, graph, dependencies, count, parameters) };
    if result.is_ok() {
        // SAFETY: the driver has just read the parameters.
        note_in(graph, context_of(unsafe { &*parameters }));
    }
    result
}

/// Wraps `cuGraphAddChildGraphNode`, which embeds a copy.
pub unsafe fn add_child(
    real: prototypes::cuGraphAddChildGraphNode,
    node: *mut *mut c_void,
    graph: *mut c_void,
    dependencies: *const *mut c_void,
    count: usize,
    child: *mut c_void,
) -> CuResult {
    if let Some(code) = graphs::refused("a graph as a node of another one", "launch it by itself") {
        return code;
    }
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(node, graph, dependencies, count, child) };
    if result.is_ok() {
        join(graph as usize, child as usize);
    }
    result
}

/// Wraps `cuGraphClone`.
pub unsafe fn clone(real: prototypes::cuGraphClone, copy: *mut *mut c_void, graph: *mut c_void) -> CuResult {
    if let Some(code) = graphs::refused("a copy of a graph", "capture the work again") {
        return code;
    }
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(copy, graph) };
    if result.is_ok() {
        // SAFETY: the driver has just written the copy.
        join(unsafe { *copy } as usize, graph as usize);
    }
    result
}

/// Wraps `cuGraphKernelNodeSetParams` of CUDA 10 and 11.
pub unsafe fn set_kernel(
    real: prototypes::cuGraphKernelNodeSetParams,
    node: *mut c_void,
    parameters: *const CUDA_KERNEL_NODE_PARAMS_v1,
) -> CuResult {
    edits::note();
    // SAFETY: the caller's arguments, passed on.
    graphs::node_refused().unwrap_or_else(|| unsafe { real(node, parameters) })
}

/// Wraps `cuGraphKernelNodeSetParams` of CUDA 12.
pub unsafe fn set_kernel_v2(
    real: prototypes::cuGraphKernelNodeSetParams_v2,
    node: *mut c_void,
    parameters: *const CUDA_KERNEL_NODE_PARAMS_v2,
) -> CuResult {
    edits::note();
    // SAFETY: the caller's arguments, passed on.
    graphs::node_refused().unwrap_or_else(|| unsafe { real(node, parameters) })
}

/// Wraps `cuGraphNodeSetParams`.
pub unsafe fn set_node(
    real: prototypes::cuGraphNodeSetParams,
    node: *mut c_void,
    parameters: *mut CUgraphNodeParams,
) -> CuResult {
    edits::note();
    // SAFETY: the caller's parameters, null or valid.
    match unsafe { parameters.as_ref() } {
        Some(of) if of.kind == CU_GRAPH_NODE_TYPE_KERNEL => graphs::node_refused(),
        _ => None,
    }
    // SAFETY: the caller's arguments, passed on.
    .unwrap_or_else(|| unsafe { real(node, parameters) })
}
