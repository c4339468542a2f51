//! Graphs and the parameters of their nodes.

use super::{
    CUDA_MEMCPY3D, CUcontext, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphConditionalHandle,
    CUgraphNode, CUhostFn, CUkernel, CUmemAccessDesc, CUmemPoolProps, CUstream, CUstreamBatchMemOpParams,
    layout,
};
use core::ffi::c_void;

/// What a node does.
pub type CUgraphNodeType = u32;
/// Launches a kernel.
pub const CU_GRAPH_NODE_TYPE_KERNEL: CUgraphNodeType = 0;
/// Copies memory.
pub const CU_GRAPH_NODE_TYPE_MEMCPY: CUgraphNodeType = 1;
/// Fills memory.
pub const CU_GRAPH_NODE_TYPE_MEMSET: CUgraphNodeType = 2;
/// Calls a host function.
pub const CU_GRAPH_NODE_TYPE_HOST: CUgraphNodeType = 3;
/// Runs another graph.
pub const CU_GRAPH_NODE_TYPE_GRAPH: CUgraphNodeType = 4;
/// Does nothing.
pub const CU_GRAPH_NODE_TYPE_EMPTY: CUgraphNodeType = 5;
/// Waits for an event.
pub const CU_GRAPH_NODE_TYPE_WAIT_EVENT: CUgraphNodeType = 6;
/// Records an event.
pub const CU_GRAPH_NODE_TYPE_EVENT_RECORD: CUgraphNodeType = 7;
/// Signals an external semaphore.
pub const CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL: CUgraphNodeType = 8;
/// Waits for an external semaphore.
pub const CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT: CUgraphNodeType = 9;
/// Allocates memory.
pub const CU_GRAPH_NODE_TYPE_MEM_ALLOC: CUgraphNodeType = 10;
/// Frees memory.
pub const CU_GRAPH_NODE_TYPE_MEM_FREE: CUgraphNodeType = 11;
/// Does a batch of memory operations.
pub const CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: CUgraphNodeType = 12;
/// Chooses among graphs.
pub const CU_GRAPH_NODE_TYPE_CONDITIONAL: CUgraphNodeType = 13;

/// A kernel node of the API before CUDA 12.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_KERNEL_NODE_PARAMS_v1 {
    /// The kernel.
    pub func: CUfunction,
    /// Blocks of the grid in x, y and z.
    pub grid_dim: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block_dim: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_mem_bytes: u32,
    /// Pointers to the parameters.
    pub kernel_params: *mut *mut c_void,
    /// The other way of passing parameters.
    pub extra: *mut *mut c_void,
}
layout!(CUDA_KERNEL_NODE_PARAMS_v1, 56, kernel_params @ 40);

/// A kernel node; `CUDA_KERNEL_NODE_PARAMS_v3` is the same.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_KERNEL_NODE_PARAMS_v2 {
    /// The kernel, bound to a context; null when `kern` counts.
    pub func: CUfunction,
    /// Blocks of the grid in x, y and z.
    pub grid_dim: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block_dim: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_mem_bytes: u32,
    /// Pointers to the parameters.
    pub kernel_params: *mut *mut c_void,
    /// The other way of passing parameters.
    pub extra: *mut *mut c_void,
    /// The kernel of a library; null when `func` counts.
    pub kern: CUkernel,
    /// Where `kern` runs; null for the current context.
    pub ctx: CUcontext,
}
layout!(CUDA_KERNEL_NODE_PARAMS_v2, 72, kernel_params @ 40, kern @ 56, ctx @ 64);

/// A copy node of `cuGraphAddNode`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMCPY_NODE_PARAMS {
    /// Zero.
    pub flags: i32,
    /// Zero.
    pub reserved: i32,
    /// Where the copy runs.
    pub copy_ctx: CUcontext,
    /// The copy.
    pub copy_params: CUDA_MEMCPY3D,
}
layout!(CUDA_MEMCPY_NODE_PARAMS, 216, copy_params @ 16);

/// A fill node of the API before CUDA 12.2.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUDA_MEMSET_NODE_PARAMS_v1 {
    /// Destination.
    pub dst: CUdeviceptr,
    /// Bytes from one row to the next, when there are several.
    pub pitch: usize,
    /// The value of an element.
    pub value: u32,
    /// Bytes of an element: 1, 2 or 4.
    pub element_size: u32,
    /// Elements of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
}
layout!(CUDA_MEMSET_NODE_PARAMS_v1, 40);

/// A fill node of `cuGraphAddNode`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUDA_MEMSET_NODE_PARAMS_v2 {
    /// The fill.
    pub memset: CUDA_MEMSET_NODE_PARAMS_v1,
    /// Where the fill runs.
    pub ctx: CUcontext,
}
layout!(CUDA_MEMSET_NODE_PARAMS_v2, 48, ctx @ 40);

/// A host function node.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_HOST_NODE_PARAMS {
    /// The function.
    pub func: CUhostFn,
    /// Its argument.
    pub user_data: *mut c_void,
}
layout!(CUDA_HOST_NODE_PARAMS, 16);

/// An allocation node.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEM_ALLOC_NODE_PARAMS {
    /// The properties of the pool to allocate from.
    pub pool_props: CUmemPoolProps,
    /// Which other devices may access the memory.
    pub access_descs: *const CUmemAccessDesc,
    /// How many those are.
    pub access_desc_count: usize,
    /// Size, in bytes.
    pub bytesize: usize,
    /// Out: the address, fixed when the node is added.
    pub dptr: CUdeviceptr,
}
layout!(CUDA_MEM_ALLOC_NODE_PARAMS, 120, bytesize @ 104, dptr @ 112);

/// A free node.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUDA_MEM_FREE_NODE_PARAMS {
    /// The address.
    pub dptr: CUdeviceptr,
}
layout!(CUDA_MEM_FREE_NODE_PARAMS, 8);

/// A child graph node.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_CHILD_GRAPH_NODE_PARAMS {
    /// The graph.
    pub graph: CUgraph,
    /// 0 when it is cloned, 1 when it is moved.
    pub ownership: u32,
}
layout!(CUDA_CHILD_GRAPH_NODE_PARAMS, 16);

/// A node that records or awaits an event.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_EVENT_NODE_PARAMS {
    /// The event.
    pub event: CUevent,
}
layout!(CUDA_EVENT_NODE_PARAMS, 8);

/// A node of memory operations.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_BATCH_MEM_OP_NODE_PARAMS {
    /// Where the operations run.
    pub ctx: CUcontext,
    /// How many operations there are.
    pub count: u32,
    /// The operations.
    pub param_array: *mut CUstreamBatchMemOpParams,
    /// Zero.
    pub flags: u32,
}
layout!(CUDA_BATCH_MEM_OP_NODE_PARAMS, 32, param_array @ 16);

/// A conditional node.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_CONDITIONAL_NODE_PARAMS {
    /// The value that it tests.
    pub handle: CUgraphConditionalHandle,
    /// 0 if, 1 while, 2 switch.
    pub kind: u32,
    /// How many bodies there are.
    pub size: u32,
    /// Out: the bodies.
    pub graphs_out: *mut CUgraph,
    /// Where it runs.
    pub ctx: CUcontext,
}
layout!(CUDA_CONDITIONAL_NODE_PARAMS, 32, graphs_out @ 16);

/// The parameters of one kind of node; `kind` of [`CUgraphNodeParams`] says
/// which member counts.
#[repr(C)]
#[derive(Clone, Copy)]
pub union CUgraphNodePayload {
    /// Fixes the size.
    pub reserved: [i64; 29],
    /// `CU_GRAPH_NODE_TYPE_KERNEL`.
    pub kernel: CUDA_KERNEL_NODE_PARAMS_v2,
    /// `CU_GRAPH_NODE_TYPE_MEMCPY`.
    pub memcpy: CUDA_MEMCPY_NODE_PARAMS,
    /// `CU_GRAPH_NODE_TYPE_MEMSET`.
    pub memset: CUDA_MEMSET_NODE_PARAMS_v2,
    /// `CU_GRAPH_NODE_TYPE_HOST`.
    pub host: CUDA_HOST_NODE_PARAMS,
    /// `CU_GRAPH_NODE_TYPE_GRAPH`.
    pub graph: CUDA_CHILD_GRAPH_NODE_PARAMS,
    /// `CU_GRAPH_NODE_TYPE_WAIT_EVENT` and `CU_GRAPH_NODE_TYPE_EVENT_RECORD`.
    pub event: CUDA_EVENT_NODE_PARAMS,
    /// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`.
    pub alloc: CUDA_MEM_ALLOC_NODE_PARAMS,
    /// `CU_GRAPH_NODE_TYPE_MEM_FREE`.
    pub free: CUDA_MEM_FREE_NODE_PARAMS,
    /// `CU_GRAPH_NODE_TYPE_BATCH_MEM_OP`.
    pub mem_op: CUDA_BATCH_MEM_OP_NODE_PARAMS,
    /// `CU_GRAPH_NODE_TYPE_CONDITIONAL`.
    pub conditional: CUDA_CONDITIONAL_NODE_PARAMS,
}
layout!(CUgraphNodePayload, 232);

/// A node, for `cuGraphAddNode`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUgraphNodeParams {
    /// What the node does.
    pub kind: CUgraphNodeType,
    /// Zero.
    pub reserved0: [i32; 3],
    /// Its parameters.
    pub payload: CUgraphNodePayload,
    /// Zero.
    pub reserved2: i64,
}
layout!(CUgraphNodeParams, 256, payload @ 16, reserved2 @ 248);

/// How one node depends on another.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUgraphEdgeData {
    /// When the first node counts as done: 0 when it ends.
    pub from_port: u8,
    /// What of the second node waits: 0 for all of it.
    pub to_port: u8,
    /// 0 for a full dependency, 1 for a programmatic one.
    pub kind: u8,
    /// Zero.
    pub reserved: [u8; 5],
}
layout!(CUgraphEdgeData, 8);

/// The parameters of `cuGraphInstantiateWithParams`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_GRAPH_INSTANTIATE_PARAMS {
    /// `CUDA_GRAPH_INSTANTIATE_FLAG_*`.
    pub flags: u64,
    /// The stream to upload in.
    pub upload_stream: CUstream,
    /// Out: the node at fault.
    pub err_node_out: CUgraphNode,
    /// Out: what is wrong; 0 for nothing.
    pub result_out: u32,
}
layout!(CUDA_GRAPH_INSTANTIATE_PARAMS, 32, result_out @ 24);

/// The result of `cuGraphExecUpdate_v2`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUgraphExecUpdateResultInfo {
    /// What is wrong; 0 for nothing.
    pub result: u32,
    /// The node at fault.
    pub error_node: CUgraphNode,
    /// The node that the edge at fault comes from.
    pub error_from_node: CUgraphNode,
}
layout!(CUgraphExecUpdateResultInfo, 24, error_node @ 8);

/// Memory that a graph allocates and does not free is freed at its next launch.
pub const CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH: u64 = 1;
/// The graph is uploaded when it is instantiated.
pub const CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD: u64 = 2;
/// The graph may be launched from the device.
pub const CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH: u64 = 4;
/// Nodes run at their own priority and not at the stream's.
pub const CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY: u64 = 8;
