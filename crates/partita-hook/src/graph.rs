//! Graph nodes that allocate memory when a graph runs.
//!
//! Their memory is not charged yet, so a tenant with a memory quota is refused
//! such nodes (`CUDA_ERROR_NOT_SUPPORTED`, which these calls document) rather
//! than given a way around it. Without a quota they pass. (`cuGraphNodeSetParams`
//! cannot turn a node into one: it does not support nodes that allocate.)

use core::ffi::{c_uint, c_void};

use partita_abi::CuResult;
use partita_abi::types::CU_GRAPH_NODE_TYPE_MEM_ALLOC;

use crate::tenant;

fn has_quota() -> bool {
    tenant::current().is_some_and(|tenant| tenant.quota_bytes().is_some())
}

/// Whether the node described at `parameters` allocates memory.
///
/// # Safety
/// Null, or a valid `CUgraphNodeParams`, whose first member is its type.
unsafe fn allocates(parameters: *const c_uint) -> bool {
    // SAFETY: see above.
    !parameters.is_null() && unsafe { *parameters } == CU_GRAPH_NODE_TYPE_MEM_ALLOC
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
    unsafe { real(node, graph, dependencies, count, parameters) }
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
    unsafe { real(node, graph, dependencies, edges, count, parameters) }
}
