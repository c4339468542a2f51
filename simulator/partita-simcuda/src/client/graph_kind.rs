//! The work of graph nodes, from a program's structures.

use core::ffi::c_void;

use partita_abi::CuResult;
use partita_abi::types::*;

use super::context::green::Confines;
use super::fill::Fill;
use super::function::Function;
use super::gpus::runtime;
use super::graph::{self, KernelNode, NodeKind};
use super::launch::{Launch, ParamBuffer};
use super::memcpy::rect_3d;
use super::object::object;
use super::stream_ops::batch_command;
use super::{get, list, module};

/// The handles in a program's list.
///
/// # Errors
/// `INVALID_VALUE` for a null list of something.
///
/// # Safety
/// The pointer is null or points to as many handles.
pub unsafe fn handles(from: *const CUgraphNode, count: usize) -> Result<Vec<usize>, CuResult> {
    // SAFETY: by the entry point's caller's word.
    Ok(unsafe { list(from, count)? }.iter().map(|node| node.addr()).collect())
}

/// A kernel node of its parts.
///
/// # Safety
/// Handles and parameter pointers are the program's, as `cuda.h` demands.
unsafe fn kernel(
    function: CUfunction,
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared: u32,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<NodeKind, CuResult> {
    let runtime = runtime()?;
    let function: &'static Function = match module::kernel_as_function(function) {
        Some(function) => function?,
        // SAFETY: by the caller's word.
        None => unsafe { object(function.0)? },
    };
    let launch = Launch { grid, block, dynamic_shared, cluster: [1; 3], cooperative: false, priority: None };
    launch.check(runtime, function)?;
    // SAFETY: by the caller's word.
    let params = unsafe { ParamBuffer::gather(function, params, extra)? };
    Ok(NodeKind::Kernel(KernelNode::new(function, launch, params.bytes(), Confines::default(), 0)))
}

/// A kernel node of the older structure.
///
/// # Errors
/// Those of a launch.
///
/// # Safety
/// The pointer is null or valid.
pub unsafe fn kernel_v1(params: *const CUDA_KERNEL_NODE_PARAMS_v1) -> Result<NodeKind, CuResult> {
    // SAFETY: by the caller's word.
    unsafe {
        let p = get(params)?;
        kernel(p.func, p.grid_dim, p.block_dim, p.shared_mem_bytes, p.kernel_params, p.extra)
    }
}

/// A kernel node of the present structure.
///
/// # Errors
/// Those of a launch.
///
/// # Safety
/// The pointer is null or valid.
pub unsafe fn kernel_v2(params: *const CUDA_KERNEL_NODE_PARAMS_v2) -> Result<NodeKind, CuResult> {
    // SAFETY: by the caller's word.
    unsafe {
        let p = get(params)?;
        let function = if p.func.is_null() { CUfunction(p.kern.0) } else { p.func };
        kernel(function, p.grid_dim, p.block_dim, p.shared_mem_bytes, p.kernel_params, p.extra)
    }
}

/// A copy node.
///
/// # Errors
/// `INVALID_VALUE`, `INVALID_HANDLE` for a bad array.
pub fn copy_kind(copy: &CUDA_MEMCPY3D) -> Result<NodeKind, CuResult> {
    Ok(NodeKind::Copy(*copy, rect_3d(copy)?))
}

/// A fill node.
///
/// # Errors
/// `INVALID_VALUE`.
pub fn fill_kind(fill: &CUDA_MEMSET_NODE_PARAMS_v1) -> Result<NodeKind, CuResult> {
    let fill = Fill {
        dst: fill.dst,
        pitch: fill.pitch as u64,
        width: fill.width as u64,
        height: fill.height as u64,
        value: fill.value,
        element_bytes: u8::try_from(fill.element_size).map_err(|_| CuResult::INVALID_VALUE)?,
    };
    fill.command()?;
    Ok(NodeKind::Fill(fill))
}

/// A node of the general structure.
///
/// # Errors
/// Those of its kind; `NOT_SUPPORTED` for kinds that are not simulated.
///
/// # Safety
/// The member that the kind names is valid.
pub unsafe fn kind_of(params: &CUgraphNodeParams) -> Result<NodeKind, CuResult> {
    // SAFETY: by the caller's word.
    unsafe {
        Ok(match params.kind {
            CU_GRAPH_NODE_TYPE_KERNEL => kernel_v2(&params.payload.kernel)?,
            CU_GRAPH_NODE_TYPE_MEMCPY => copy_kind(&params.payload.memcpy.copy_params)?,
            CU_GRAPH_NODE_TYPE_MEMSET => fill_kind(&params.payload.memset.memset)?,
            CU_GRAPH_NODE_TYPE_HOST => {
                NodeKind::Host(params.payload.host.func, params.payload.host.user_data as usize)
            }
            CU_GRAPH_NODE_TYPE_GRAPH => NodeKind::Child(graph::duplicate(params.payload.graph.graph.addr())?),
            CU_GRAPH_NODE_TYPE_EMPTY => NodeKind::Empty,
            CU_GRAPH_NODE_TYPE_WAIT_EVENT => NodeKind::Wait(object(params.payload.event.event.0)?),
            CU_GRAPH_NODE_TYPE_EVENT_RECORD => NodeKind::Record(object(params.payload.event.event.0)?),
            CU_GRAPH_NODE_TYPE_BATCH_MEM_OP => batch_kind(&params.payload.mem_op)?,
            _ => return Err(CuResult::NOT_SUPPORTED),
        })
    }
}

/// A node that waits for and writes words.
///
/// # Errors
/// Those of the single operations.
///
/// # Safety
/// The list is as long as the structure says.
pub unsafe fn batch_kind(params: &CUDA_BATCH_MEM_OP_NODE_PARAMS) -> Result<NodeKind, CuResult> {
    // SAFETY: by the caller's word.
    let operations = unsafe { list(params.param_array.cast_const(), params.count as usize)? };
    let commands: Result<Vec<_>, _> = operations.iter().map(batch_command).collect();
    Ok(NodeKind::Batch(commands?.into_iter().flatten().collect()))
}

/// Only full dependencies are simulated; programmatic ones would have to start nodes early.
///
/// # Errors
/// `NOT_SUPPORTED` for others.
///
/// # Safety
/// The pointer is null or points to as many properties.
pub unsafe fn check_edges(data: *const CUgraphEdgeData, count: usize) -> Result<(), CuResult> {
    if data.is_null() {
        return Ok(());
    }
    // SAFETY: by the entry point's caller's word.
    let plain = unsafe { list(data, count)? }.iter().all(|edge| edge.kind == 0);
    if plain { Ok(()) } else { Err(CuResult::NOT_SUPPORTED) }
}
