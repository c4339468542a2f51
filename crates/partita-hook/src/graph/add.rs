//! Nodes that a program adds to a graph.
//!
//! The bodies of conditional nodes are recorded, because the driver does not report them later, and
//! the memory of nodes that allocate is charged (`graph_memory`). (`cuGraphNodeSetParams` cannot
//! turn a node into one: it does not support nodes that allocate.)

use core::ffi::c_void;

use partita_abi::CuResult;
use partita_abi::prototypes;
use partita_abi::types::{
    CU_GRAPH_NODE_TYPE_CONDITIONAL, CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_KERNEL,
    CU_GRAPH_NODE_TYPE_MEM_ALLOC, CUDA_MEM_ALLOC_NODE_PARAMS, CUgraphEdgeData, CUgraphNodeParams,
};

use crate::account::tenant;
use crate::graph::{nodes, place};
use crate::memory::graph_memory;
use crate::persistent::graphs;

/// The device and the bytes of the memory that the node described at `parameters` allocates, if it
/// does.
///
/// # Safety
/// Null, or a valid `CUgraphNodeParams`, whose first member is its type.
unsafe fn allocates(parameters: *const CUgraphNodeParams) -> Option<(i32, u64)> {
    // SAFETY: see above.
    if parameters.is_null() || unsafe { (*parameters).kind } != CU_GRAPH_NODE_TYPE_MEM_ALLOC {
        return None;
    }
    // SAFETY: the type says which member counts.
    Some(wanted(unsafe { &(*parameters).payload.alloc }))
}

fn wanted(parameters: &CUDA_MEM_ALLOC_NODE_PARAMS) -> (i32, u64) {
    (parameters.pool_props.location.id, parameters.bytesize as u64)
}

/// Adds a node, charged if it allocates.
///
/// # Safety
/// `parameters` as for [`allocates`].
unsafe fn added(
    node: *mut *mut c_void,
    graph: *mut c_void,
    parameters: *mut CUgraphNodeParams,
    add: impl FnOnce() -> CuResult,
) -> CuResult {
    // SAFETY: the caller guarantees it.
    let kind = unsafe { parameters.as_ref() }.map(|parameters| parameters.kind);
    let refused = match kind {
        Some(CU_GRAPH_NODE_TYPE_KERNEL) => graphs::node_refused(),
        Some(CU_GRAPH_NODE_TYPE_GRAPH) => {
            graphs::refused("a graph as a node of another one", "launch it by itself")
        }
        _ => None,
    };
    if let Some(code) = refused {
        return code;
    }
    // SAFETY: the caller guarantees it.
    let result = match unsafe { allocates(parameters) } {
        Some((device, bytes)) => graph_memory::add_node(graph, device, bytes, add, || {
            // SAFETY: the call succeeded, so the driver has written the address there.
            unsafe { (*parameters).payload.alloc.dptr }
        }),
        None => add(),
    };
    if result.is_ok() {
        // SAFETY: the call succeeded with them.
        unsafe { note(node, graph, parameters) };
    }
    result
}

/// Notes the GPU of a node that the driver has just made, and the bodies of a conditional one.
///
/// # Safety
/// The pointers as the successful call was given them.
unsafe fn note(node: *mut *mut c_void, graph: *mut c_void, parameters: *const CUgraphNodeParams) {
    if tenant::current().is_none() {
        return;
    }
    // SAFETY: the type says which member counts; the driver has filled in where it keeps as many
    // bodies as were asked for.
    unsafe {
        let parameters = &*parameters;
        place::note_added(graph, parameters);
        if parameters.kind != CU_GRAPH_NODE_TYPE_CONDITIONAL {
            return;
        }
        let conditional = parameters.payload.conditional;
        let bodies = core::slice::from_raw_parts(conditional.graphs_out, conditional.size as usize);
        nodes::note_bodies(*node as usize, bodies.iter().map(|body| body.0 as usize).collect());
    }
}

/// Wraps `cuGraphAddMemAllocNode`.
pub unsafe fn add_memory_node(
    real: prototypes::cuGraphAddMemAllocNode,
    node: *mut *mut c_void,
    graph: *mut c_void,
    dependencies: *const *mut c_void,
    count: usize,
    parameters: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let add = || unsafe { real(node, graph, dependencies, count, parameters) };
    // SAFETY: the caller's parameters, null or valid.
    let Some((device, bytes)) = (unsafe { parameters.as_ref() }).map(wanted) else { return add() };
    // SAFETY: on success the driver has written the address there.
    graph_memory::add_node(graph, device, bytes, add, || unsafe { (*parameters).dptr })
}

/// Wraps `cuGraphAddNode` of CUDA 12.2.
pub unsafe fn add_node(
    real: prototypes::cuGraphAddNode,
    node: *mut *mut c_void,
    graph: *mut c_void,
    dependencies: *const *mut c_void,
    count: usize,
    parameters: *mut CUgraphNodeParams,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    unsafe { added(node, graph, parameters, || real(node, graph, dependencies, count, parameters)) }
}

/// Wraps `cuGraphAddNode` of CUDA 12.3, which adds edge data.
pub unsafe fn add_node_v2(
    real: prototypes::cuGraphAddNode_v2,
    node: *mut *mut c_void,
    graph: *mut c_void,
    dependencies: *const *mut c_void,
    edges: *const CUgraphEdgeData,
    count: usize,
    parameters: *mut CUgraphNodeParams,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    unsafe { added(node, graph, parameters, || real(node, graph, dependencies, edges, count, parameters)) }
}
