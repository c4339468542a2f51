//! Changes of graphs, counted: whether a graph is still what its executable was made from.
//!
//! Counted are the changes that the list of a graph's nodes does not show: of edges, of parameters,
//! and a node that is destroyed, whose address another node may get.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};

use partita_abi::CuResult;
use partita_abi::prototypes;
use partita_abi::types::{
    CU_GRAPH_NODE_TYPE_EMPTY, CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_MEMCPY,
    CU_GRAPH_NODE_TYPE_MEMSET, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS_v1, CUgraphEdgeData,
    CUlaunchAttributeID, CUlaunchAttributeValue,
};

use crate::account::tenant::Tenant;

/// How deep graphs may lie in one another before the hook gives up.
pub const DEPTH_MAX: u32 = 64;

static EDITS: AtomicU64 = AtomicU64::new(0);

/// How many changes the process has made to its graphs.
pub fn count() -> u64 {
    EDITS.load(Ordering::Acquire)
}

/// Counts a change, before it is made.
pub fn note() {
    EDITS.fetch_add(1, Ordering::AcqRel);
}

/// A number that tells the nodes of a graph and their kinds, embedded graphs included; `None` if
/// the hook does not see every change of some of them in an executable.
pub fn fingerprint(tenant: &Tenant, graph: usize) -> Option<u64> {
    fingerprint_within(tenant, graph, DEPTH_MAX)
}

fn fingerprint_within(tenant: &Tenant, graph: usize, depth: u32) -> Option<u64> {
    let driver = tenant.graph_calls()?;
    // FNV-1a, word by word.
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for node in driver.nodes(graph as *mut c_void)? {
        let kind = driver.node_type(node)?;
        hash = mix(mix(hash, node as u64), kind.into());
        match kind {
            CU_GRAPH_NODE_TYPE_KERNEL
            | CU_GRAPH_NODE_TYPE_MEMCPY
            | CU_GRAPH_NODE_TYPE_MEMSET
            | CU_GRAPH_NODE_TYPE_EMPTY => {}
            CU_GRAPH_NODE_TYPE_GRAPH => {
                let child = driver.child(node)? as usize;
                hash = mix(hash, fingerprint_within(tenant, child, depth.checked_sub(1)?)?);
            }
            _ => return None,
        }
    }
    Some(hash)
}

/// Defines wrappers that count the call and pass it on.
macro_rules! edits {
    ($($(#[$doc:meta])* $body:ident = $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        $(#[$doc])*
        pub unsafe fn $body(real: prototypes::$name, $($argument: $type),*) -> CuResult {
            note();
            // SAFETY: the caller's arguments, passed on.
            unsafe { real($($argument),*) }
        }
    )*};
}

edits! {
    /// Wraps `cuGraphAddDependencies`.
    add_edges = cuGraphAddDependencies(
        graph: *mut c_void, from: *const *mut c_void, to: *const *mut c_void, count: usize
    );
    /// Wraps `cuGraphAddDependencies_v2`.
    add_edges_v2 = cuGraphAddDependencies_v2(
        graph: *mut c_void, from: *const *mut c_void, to: *const *mut c_void, data: *const CUgraphEdgeData,
        count: usize
    );
    /// Wraps `cuGraphRemoveDependencies`.
    remove_edges = cuGraphRemoveDependencies(
        graph: *mut c_void, from: *const *mut c_void, to: *const *mut c_void, count: usize
    );
    /// Wraps `cuGraphRemoveDependencies_v2`.
    remove_edges_v2 = cuGraphRemoveDependencies_v2(
        graph: *mut c_void, from: *const *mut c_void, to: *const *mut c_void, data: *const CUgraphEdgeData,
        count: usize
    );
    /// Wraps `cuGraphDestroyNode`.
    destroy_node = cuGraphDestroyNode(node: *mut c_void);
    /// Wraps `cuGraphMemcpyNodeSetParams`.
    set_copy = cuGraphMemcpyNodeSetParams(node: *mut c_void, parameters: *const CUDA_MEMCPY3D);
    /// Wraps `cuGraphMemsetNodeSetParams`.
    set_fill = cuGraphMemsetNodeSetParams(node: *mut c_void, parameters: *const CUDA_MEMSET_NODE_PARAMS_v1);
    /// Wraps `cuGraphKernelNodeSetAttribute`.
    set_attribute = cuGraphKernelNodeSetAttribute(
        node: *mut c_void, attribute: CUlaunchAttributeID, value: *const CUlaunchAttributeValue
    );
    /// Wraps `cuGraphKernelNodeCopyAttributes`.
    copy_attributes = cuGraphKernelNodeCopyAttributes(to: *mut c_void, from: *mut c_void);
}
