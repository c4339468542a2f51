//! Making graphs and looking at them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use partita_abi::CuResult;
use partita_abi::types::*;

use super::event::Event;
use super::gpus::runtime;
use super::graph::{self, Conditional, KernelNode, Node, NodeKind};
use super::graph_kind::{
    batch_kind, check_edges, copy_kind, fill_kind, handles, kernel_v1, kernel_v2, kind_of,
};
use super::object::object;
use super::{get, put};
use crate::shared::sys::lock;

unsafe fn add(
    to: *mut CUgraphNode,
    owner: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    kind: NodeKind,
) -> Result<(), CuResult> {
    if to.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: by the entry point's caller's word.
    unsafe {
        let made = graph::add(owner.addr(), &handles(after, count)?, kind)?;
        put(to, CUgraphNode::from_addr(made))
    }
}

unsafe fn add_any(
    to: *mut CUgraphNode,
    owner: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    params: *mut CUgraphNodeParams,
) -> Result<(), CuResult> {
    runtime()?;
    // SAFETY: by the entry point's caller's word, here and below.
    let mut wanted = unsafe { get(params.cast_const())? };
    if wanted.kind != CU_GRAPH_NODE_TYPE_CONDITIONAL {
        // SAFETY: as above.
        return unsafe { add(to, owner, after, count, kind_of(&wanted)?) };
    }
    // SAFETY: as above; the kind says which member counts.
    unsafe {
        let node = conditional(owner.addr(), &wanted.payload.conditional)?;
        wanted.payload.conditional.graphs_out = node.bodies.as_ptr().cast_mut();
        let bodies = Arc::clone(&node.bodies);
        if let Err(code) = add(to, owner, after, count, NodeKind::Conditional(node)) {
            bodies.iter().for_each(|body| graph::discard_graph(body.addr()));
            return Err(code);
        }
        put(params, wanted)
    }
}

/// A conditional node and its graphs, which are empty.
fn conditional(owner: usize, wanted: &CUDA_CONDITIONAL_NODE_PARAMS) -> Result<Conditional, CuResult> {
    /// `CU_GRAPH_COND_TYPE_*`.
    const IF: u32 = 0;
    const WHILE: u32 = 1;
    const SWITCH: u32 = 2;
    let graph = graph::graph(owner)?;
    let known = lock(&graph.conditions).iter().find(|(handle, _)| *handle == wanted.handle).copied();
    let (_, value) = known.ok_or(CuResult::INVALID_VALUE)?;
    let chosen = match (wanted.kind, wanted.size) {
        (IF, 1 | 2) => Some(if value != 0 { 0 } else { 1 }),
        (WHILE, 1) if value == 0 => None,
        // Nothing here would end the loop.
        (WHILE, 1) => return Err(CuResult::NOT_SUPPORTED),
        (SWITCH, 1..) => Some(value as usize),
        _ => return Err(CuResult::INVALID_VALUE),
    };
    let bodies: Arc<[CUgraph]> = (0..wanted.size).map(|_| CUgraph::from_addr(graph::create_body())).collect();
    let chosen = chosen.filter(|chosen| *chosen < bodies.len());
    Ok(Conditional { bodies, chosen })
}

fn node(handle: CUgraphNode) -> Result<Arc<Node>, CuResult> {
    runtime()?;
    graph::node(handle.addr())
}

fn set(handle: CUgraphNode, new: NodeKind) -> Result<(), CuResult> {
    let node = node(handle)?;
    let mut kind = lock(&node.kind);
    if kind.number() != new.number() {
        return Err(CuResult::INVALID_VALUE);
    }
    *kind = new;
    Ok(())
}

fn kernel_of(handle: CUgraphNode) -> Result<KernelNode, CuResult> {
    match &*lock(&node(handle)?.kind) {
        NodeKind::Kernel(kernel) => Ok(kernel.clone()),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn v2_of(kernel: &KernelNode) -> CUDA_KERNEL_NODE_PARAMS_v2 {
    CUDA_KERNEL_NODE_PARAMS_v2 {
        func: kernel.function.handle(),
        grid_dim: kernel.launch.grid,
        block_dim: kernel.launch.block,
        shared_mem_bytes: kernel.launch.dynamic_shared,
        kernel_params: kernel.pointers.as_ptr().cast_mut().cast(),
        extra: std::ptr::null_mut(),
        kern: CUkernel::NULL,
        ctx: CUcontext::NULL,
    }
}

driver_api! {
    /// Makes an empty graph.
    fn cuGraphCreate(handle, flags) {
        runtime()?;
        if flags != 0 || handle.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        put(handle, CUgraph::from_addr(graph::create()))
    }

    /// Destroys a graph; its executables remain.
    fn cuGraphDestroy(handle) {
        runtime()?;
        graph::destroy(handle.addr())
    }

    /// Makes the value of a conditional node that is to be added to a graph.
    fn cuGraphConditionalHandleCreate(handle, owner, context, value, flags) {
        /// `CU_GRAPH_COND_ASSIGN_DEFAULT`.
        const ASSIGN_DEFAULT: u32 = 1;
        static NEXT: AtomicU64 = AtomicU64::new(1);
        runtime()?;
        let _ = context;
        let graph = graph::graph(owner.addr())?;
        if handle.is_null() || flags & !ASSIGN_DEFAULT != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let value = if flags & ASSIGN_DEFAULT != 0 { value } else { 0 };
        lock(&graph.conditions).push((number, value));
        put(handle, number)
    }

    /// Copies a graph.
    fn cuGraphClone(copy, original) {
        runtime()?;
        put(copy, CUgraph::from_addr(graph::duplicate(original.addr())?))
    }

    /// The copy of a node in a copied graph.
    fn cuGraphNodeFindInClone(found, original, copy) {
        runtime()?;
        let owner = graph::graph(copy.addr())?;
        let nodes = lock(&owner.nodes).clone();
        let same = |node: &usize| graph::node(*node).is_ok_and(|node| node.original == Some(original.addr()));
        let node = nodes.into_iter().find(same).ok_or(CuResult::INVALID_VALUE)?;
        put(found, CUgraphNode::from_addr(node))
    }

    /// Adds a kernel node.
    fn cuGraphAddKernelNode(made, owner, after, count, params) {
        add(made, owner, after, count, kernel_v1(params)?)
    }

    /// Adds a kernel node.
    fn cuGraphAddKernelNode_v2(made, owner, after, count, params) {
        add(made, owner, after, count, kernel_v2(params)?)
    }

    /// Adds a copy node.
    fn cuGraphAddMemcpyNode(made, owner, after, count, params, context) {
        runtime()?;
        let _ = context;
        add(made, owner, after, count, copy_kind(&get(params)?)?)
    }

    /// Adds a fill node.
    fn cuGraphAddMemsetNode(made, owner, after, count, params, context) {
        runtime()?;
        let _ = context;
        add(made, owner, after, count, fill_kind(&get(params)?)?)
    }

    /// Adds a host function node.
    fn cuGraphAddHostNode(made, owner, after, count, params) {
        runtime()?;
        let params = get(params)?;
        if params.func.is_none() {
            return Err(CuResult::INVALID_VALUE);
        }
        add(made, owner, after, count, NodeKind::Host(params.func, params.user_data as usize))
    }

    /// Adds a node that runs a copy of another graph.
    fn cuGraphAddChildGraphNode(made, owner, after, count, child) {
        runtime()?;
        add(made, owner, after, count, NodeKind::Child(graph::duplicate(child.addr())?))
    }

    /// Adds a node that does nothing.
    fn cuGraphAddEmptyNode(made, owner, after, count) {
        runtime()?;
        add(made, owner, after, count, NodeKind::Empty)
    }

    /// Adds a node that records an event.
    fn cuGraphAddEventRecordNode(made, owner, after, count, event) {
        runtime()?;
        let event: &'static Event = object(event.0)?;
        add(made, owner, after, count, NodeKind::Record(event))
    }

    /// Adds a node that waits for an event.
    fn cuGraphAddEventWaitNode(made, owner, after, count, event) {
        runtime()?;
        let event: &'static Event = object(event.0)?;
        add(made, owner, after, count, NodeKind::Wait(event))
    }

    /// Adds a node of waits for and writes of words.
    fn cuGraphAddBatchMemOpNode(made, owner, after, count, params) {
        runtime()?;
        add(made, owner, after, count, batch_kind(&get(params)?)?)
    }

    /// Adds a node of any kind.
    fn cuGraphAddNode(made, owner, after, count, params) {
        add_any(made, owner, after, count, params)
    }

    /// Adds a node of any kind, with properties of its edges.
    fn cuGraphAddNode_v2(made, owner, after, data, count, params) {
        check_edges(data, count)?;
        add_any(made, owner, after, count, params)
    }

    /// Changes a node.
    fn cuGraphNodeSetParams(handle, params) {
        runtime()?;
        set(handle, kind_of(&get(params.cast_const())?)?)
    }

    /// A kernel node's launch.
    fn cuGraphKernelNodeGetParams(handle, params) {
        let full = v2_of(&kernel_of(handle)?);
        let old = CUDA_KERNEL_NODE_PARAMS_v1 {
            func: full.func,
            grid_dim: full.grid_dim,
            block_dim: full.block_dim,
            shared_mem_bytes: full.shared_mem_bytes,
            kernel_params: full.kernel_params,
            extra: full.extra,
        };
        put(params, old)
    }

    /// A kernel node's launch.
    fn cuGraphKernelNodeGetParams_v2(handle, params) {
        put(params, v2_of(&kernel_of(handle)?))
    }

    /// Changes a kernel node.
    fn cuGraphKernelNodeSetParams(handle, params) {
        set(handle, kernel_v1(params)?)
    }

    /// Changes a kernel node.
    fn cuGraphKernelNodeSetParams_v2(handle, params) {
        set(handle, kernel_v2(params)?)
    }

    /// Sets a launch attribute of a kernel node.
    fn cuGraphKernelNodeSetAttribute(handle, attribute, value) {
        let value = get(value)?;
        let mut kernel = kernel_of(handle)?;
        match attribute {
            CU_LAUNCH_ATTRIBUTE_COOPERATIVE => kernel.launch.cooperative = value.as_i32() != 0,
            CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => kernel.launch.cluster = value.as_dim3(),
            CU_LAUNCH_ATTRIBUTE_PRIORITY => kernel.launch.priority = Some(value.as_i32()),
            1 | 5 | 9 | 10 | 14 => {}
            _ => return Err(CuResult::INVALID_VALUE),
        }
        kernel.launch.check(runtime()?, kernel.function)?;
        set(handle, NodeKind::Kernel(kernel))
    }

    /// Reads a launch attribute of a kernel node.
    fn cuGraphKernelNodeGetAttribute(handle, attribute, value) {
        let kernel = kernel_of(handle)?;
        let found = match attribute {
            CU_LAUNCH_ATTRIBUTE_COOPERATIVE => {
                CUlaunchAttributeValue::from_i32(i32::from(kernel.launch.cooperative))
            }
            CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => CUlaunchAttributeValue::from_dim3(kernel.launch.cluster),
            CU_LAUNCH_ATTRIBUTE_PRIORITY => {
                CUlaunchAttributeValue::from_i32(kernel.launch.priority.unwrap_or(kernel.priority))
            }
            _ => return Err(CuResult::INVALID_VALUE),
        };
        put(value, found)
    }

    /// A fill node's fill.
    fn cuGraphMemsetNodeGetParams(handle, params) {
        let NodeKind::Fill(fill) = lock(&node(handle)?.kind).clone() else {
            return Err(CuResult::INVALID_VALUE);
        };
        let found = CUDA_MEMSET_NODE_PARAMS_v1 {
            dst: fill.dst,
            pitch: fill.pitch as usize,
            value: fill.value,
            element_size: u32::from(fill.element_bytes),
            width: fill.width as usize,
            height: fill.height as usize,
        };
        put(params, found)
    }

    /// Changes a fill node.
    fn cuGraphMemsetNodeSetParams(handle, params) {
        runtime()?;
        set(handle, fill_kind(&get(params)?)?)
    }

    /// The graph that a node runs.
    fn cuGraphChildGraphNodeGetGraph(handle, child) {
        match &*lock(&node(handle)?.kind) {
            NodeKind::Child(graph) => put(child, CUgraph::from_addr(*graph)),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }
}
