//! Nodes that a program adds to a graph.
//!
//! The bodies of conditional nodes are noted, because the driver tells them
//! nobody later. The memory of nodes that allocate is not charged yet, so a
//! tenant with a memory quota is refused such nodes (`CUDA_ERROR_NOT_SUPPORTED`,
//! which these calls document) rather than given a way around it. Without a quota
//! they pass. (`cuGraphNodeSetParams` cannot turn a node into one: it does not
//! support nodes that allocate.)

use core::ffi::{c_uint, c_void};

use partita_abi::CuResult;
use partita_abi::types::{CU_GRAPH_NODE_TYPE_CONDITIONAL, CU_GRAPH_NODE_TYPE_MEM_ALLOC, CUgraphNodeParams};

use crate::{graph_nodes, graph_place, tenant};

fn has_quota() -> bool {
    tenant::current().is_some_and(|tenant| tenant.gpus().iter().any(|gpu| gpu.quota_bytes().is_some()))
}

/// Whether the node described at `parameters` allocates memory.
///
/// # Safety
/// Null, or a valid `CUgraphNodeParams`, whose first member is its type.
unsafe fn allocates(parameters: *const c_uint) -> bool {
    // SAFETY: see above.
    !parameters.is_null() && unsafe { *parameters } == CU_GRAPH_NODE_TYPE_MEM_ALLOC
}

/// Notes the GPU of a node that the driver has just made, and the bodies of a conditional one.
///
/// # Safety
/// The pointers as the successful call was given them.
unsafe fn note(node: *mut *mut c_void, graph: *mut c_void, parameters: *const c_uint) {
    if tenant::current().is_none() {
        return;
    }
    // SAFETY: the type says which member counts; the driver has filled in where it keeps as many bodies as were asked for.
    unsafe {
        let parameters = &*parameters.cast::<CUgraphNodeParams>();
        graph_place::note_added(graph, parameters);
        if parameters.kind != CU_GRAPH_NODE_TYPE_CONDITIONAL {
            return;
        }
        let conditional = parameters.payload.conditional;
        let bodies = core::slice::from_raw_parts(conditional.graphs_out, conditional.size as usize);
        graph_nodes::note_bodies(*node as usize, bodies.iter().map(|body| body.0 as usize).collect());
    }
}

type AddMemory =
    unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const *mut c_void, usize, *mut c_void) -> CuResult;

/// Wraps `cuGraphAddMemAllocNode`.
pub unsafe fn add_memory_node(
    real: AddMemory,
    node: *mut *mut c_void,
    graph: *mut c_void,
    dependencies: *const *mut c_void,
    count: usize,
    parameters: *mut c_void,
) -> CuResult {
    if has_quota() {
        return CuResult::NOT_SUPPORTED;
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real(node, graph, dependencies, count, parameters) }
}

type AddNode =
    unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const *mut c_void, usize, *mut c_uint) -> CuResult;

/// Wraps `cuGraphAddNode` of CUDA 12.2.
pub unsafe fn add_node(
    real: AddNode,
    node: *mut *mut c_void,
    graph: *mut c_void,
    dependencies: *const *mut c_void,
    count: usize,
    parameters: *mut c_uint,
) -> CuResult {
    // SAFETY: the caller's parameters.
    if unsafe { allocates(parameters) } && has_quota() {
        return CuResult::NOT_SUPPORTED;
    }
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(node, graph, dependencies, count, parameters) };
    if result.is_ok() {
        // SAFETY: the call succeeded with them.
        unsafe { note(node, graph, parameters) };
    }
    result
}

type AddNodeV2 = unsafe extern "C" fn(
    *mut *mut c_void,
    *mut c_void,
    *const *mut c_void,
    *const c_void,
    usize,
    *mut c_uint,
) -> CuResult;

/// Wraps `cuGraphAddNode` of CUDA 12.3, which adds edge data.
pub unsafe fn add_node_v2(
    real: AddNodeV2,
    node: *mut *mut c_void,
    graph: *mut c_void,
    dependencies: *const *mut c_void,
    edges: *const c_void,
    count: usize,
    parameters: *mut c_uint,
) -> CuResult {
    // SAFETY: the caller's parameters.
    if unsafe { allocates(parameters) } && has_quota() {
        return CuResult::NOT_SUPPORTED;
    }
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(node, graph, dependencies, edges, count, parameters) };
    if result.is_ok() {
        // SAFETY: the call succeeded with them.
        unsafe { note(node, graph, parameters) };
    }
    result
}
