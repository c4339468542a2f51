//! Looking at graphs, and changing their edges.

use std::sync::Arc;

use partita_abi::CuResult;
use partita_abi::types::*;

use super::gpus::runtime;
use super::graph::{self, Node};
use super::graph_kind::handles;
use super::{get, put};
use crate::shared::sys::lock;

fn node(handle: CUgraphNode) -> Result<Arc<Node>, CuResult> {
    runtime()?;
    graph::node(handle.addr())
}

/// Returns a list to a program in CUDA's way: for a null array, the length; else the array is
/// filled, the rest with null, and the count set to the number of elements.
unsafe fn give(all: &[usize], to: *mut CUgraphNode, count: *mut usize) -> Result<(), CuResult> {
    // SAFETY: by the entry point's caller's word, here and below.
    unsafe {
        if to.is_null() {
            return put(count, all.len());
        }
        let room = room(count)?;
        for index in 0..room {
            let node = all.get(index).map_or(CUgraphNode::NULL, |node| CUgraphNode::from_addr(*node));
            put(to.add(index), node)?;
        }
        put(count, all.len().min(room))
    }
}

/// The length of a program's array.
///
/// # Errors
/// `INVALID_VALUE` for 0: the driver requires at least one element.
unsafe fn room(count: *const usize) -> Result<usize, CuResult> {
    // SAFETY: by the entry point's caller's word.
    match unsafe { get(count)? } {
        0 => Err(CuResult::INVALID_VALUE),
        room => Ok(room),
    }
}

fn dependents(handle: CUgraphNode) -> Result<Vec<usize>, CuResult> {
    Ok(lock(&node(handle)?.before).clone())
}

/// By the node that is waited for, as the driver has them.
fn edges(handle: CUgraph) -> Result<Vec<(usize, usize)>, CuResult> {
    runtime()?;
    let owner = graph::graph(handle.addr())?;
    let mut edges = Vec::new();
    for from in lock(&owner.nodes).iter() {
        edges.extend(lock(&graph::node(*from)?.before).iter().map(|to| (*from, *to)));
    }
    Ok(edges)
}

unsafe fn give_edges(
    handle: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Result<(), CuResult> {
    let edges = edges(handle)?;
    // SAFETY: by the entry point's caller's word.
    unsafe {
        if from.is_null() && to.is_null() {
            return put(count, edges.len());
        }
        let room = room(count)?;
        for (index, (before, after)) in edges.iter().take(room).enumerate() {
            put(from.add(index), CUgraphNode::from_addr(*before))?;
            put(to.add(index), CUgraphNode::from_addr(*after))?;
            if !data.is_null() {
                put(data.add(index), CUgraphEdgeData::default())?;
            }
        }
        put(count, edges.len().min(room))
    }
}

unsafe fn connect(
    owner: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> Result<(), CuResult> {
    runtime()?;
    graph::graph(owner.addr())?;
    // SAFETY: by the entry point's caller's word.
    let (from, to) = unsafe { (handles(from, count)?, handles(to, count)?) };
    for (before, after) in from.into_iter().zip(to) {
        let (first, second) = (graph::node(before)?, graph::node(after)?);
        if first.graph != owner.addr() || second.graph != owner.addr() || before == after {
            return Err(CuResult::INVALID_VALUE);
        }
        graph::connect(before, after)?;
    }
    Ok(())
}

unsafe fn disconnect(from: *const CUgraphNode, to: *const CUgraphNode, count: usize) -> Result<(), CuResult> {
    runtime()?;
    // SAFETY: by the entry point's caller's word.
    let (from, to) = unsafe { (handles(from, count)?, handles(to, count)?) };
    for (before, after) in from.into_iter().zip(to) {
        let second = graph::node(after)?;
        if graph::owns_memory(second.graph)? {
            return Err(CuResult::NOT_SUPPORTED);
        }
        graph::disconnect(before, after)?;
    }
    Ok(())
}

driver_api! {
    /// The kind of a node.
    fn cuGraphNodeGetType(handle, kind) {
        let number = lock(&node(handle)?.kind).number();
        put(kind, number)
    }

    /// A graph's nodes.
    fn cuGraphGetNodes(handle, nodes, count) {
        runtime()?;
        let all = lock(&graph::graph(handle.addr())?.nodes).clone();
        give(&all, nodes, count)
    }

    /// A graph's root nodes.
    fn cuGraphGetRootNodes(handle, nodes, count) {
        runtime()?;
        give(&graph::roots(handle.addr())?, nodes, count)
    }

    /// A graph's edges.
    fn cuGraphGetEdges(handle, from, to, count) {
        give_edges(handle, from, to, std::ptr::null_mut(), count)
    }

    /// A graph's edges, with their properties.
    fn cuGraphGetEdges_v2(handle, from, to, data, count) {
        give_edges(handle, from, to, data, count)
    }

    /// The nodes that a node waits for.
    fn cuGraphNodeGetDependencies(handle, nodes, count) {
        let all = lock(&node(handle)?.after).clone();
        give(&all, nodes, count)
    }

    /// The nodes that wait for a node.
    fn cuGraphNodeGetDependentNodes(handle, nodes, count) {
        give(&dependents(handle)?, nodes, count)
    }

    /// Adds edges.
    fn cuGraphAddDependencies(owner, from, to, count) {
        connect(owner, from, to, count)
    }

    /// Removes edges.
    fn cuGraphRemoveDependencies(owner, from, to, count) {
        let _ = owner;
        disconnect(from, to, count)
    }

    /// Removes a node with its edges.
    fn cuGraphDestroyNode(handle) {
        runtime()?;
        graph::remove(handle.addr())
    }
}
