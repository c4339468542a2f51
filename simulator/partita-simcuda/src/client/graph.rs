//! Graphs: nodes, their work and their dependencies.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use partita_abi::CuResult;
use partita_abi::types::*;

use super::context::green::Confines;
use super::event::Event;
use super::fill::Fill;
use super::function::Function;
use super::graph_memory::{self, GraphMemory};
use super::launch::Launch;
use super::object::Registry;
use super::user_object;
use crate::shared::command::{Command, Rect};
use crate::shared::sys::lock;

/// A kernel node.
#[derive(Clone, Debug)]
pub struct KernelNode {
    /// The function.
    pub function: &'static Function,
    /// Its launch.
    pub launch: Launch,
    /// Its parameters.
    pub params: Arc<[u8]>,
    /// The address of each of them, for programs that query it.
    pub pointers: Arc<[usize]>,
    /// The restrictions of the stream on which it was captured.
    pub confines: Confines,
    /// The priority of the stream that it was captured on.
    pub priority: i32,
}

impl KernelNode {
    /// A node that launches a function with these parameters.
    pub fn new(
        function: &'static Function,
        launch: Launch,
        params: &[u8],
        confines: Confines,
        priority: i32,
    ) -> Self {
        let params: Arc<[u8]> = params.into();
        let pointers =
            function.info.params.iter().map(|(offset, _)| params.as_ptr().addr() + offset).collect();
        Self { function, launch, params, pointers, confines, priority }
    }

    /// Whether both launch the same.
    pub fn is_launch_of(&self, other: &Self) -> bool {
        std::ptr::eq(self.function, other.function)
            && self.launch == other.launch
            && self.params == other.params
    }
}

/// A conditional node. Nothing on the device changes its value here, so each launch uses the
/// initial one.
#[derive(Clone, Debug)]
pub struct Conditional {
    /// The graphs that it chooses among, owned by the node. The program reads them here.
    pub bodies: Arc<[CUgraph]>,
    /// The one that runs.
    pub chosen: Option<usize>,
}

/// The work of a node.
#[derive(Clone, Debug)]
pub enum NodeKind {
    /// Launches a kernel.
    Kernel(KernelNode),
    /// Copies, with the program's parameters and as a rectangle.
    Copy(CUDA_MEMCPY3D, Rect),
    /// Fills.
    Fill(Fill),
    /// Calls a host function.
    Host(CUhostFn, usize),
    /// Runs another graph: its handle, owned by the node.
    Child(usize),
    /// Nothing.
    Empty,
    /// Records an event.
    Record(&'static Event),
    /// Waits for an event.
    Wait(&'static Event),
    /// Has allocated memory when it was added.
    Alloc(Arc<GraphMemory>),
    /// Frees such memory, which stays the graph's.
    Free(u64),
    /// Waits for and writes words.
    Batch(Vec<Command>),
    /// Runs one of its graphs, or none.
    Conditional(Conditional),
}

// SAFETY: the raw pointers inside are the program's data, which only the program reads, and
// addresses of host memory that the program promised to any thread that launches the graph.
unsafe impl Send for NodeKind {}
// SAFETY: as above.
unsafe impl Sync for NodeKind {}

impl NodeKind {
    /// Whether an executable can take the parameters of another node, as far as copies are
    /// concerned: these keep their direction.
    pub fn copies_alike(&self, other: &Self) -> bool {
        let ends = |copy: &CUDA_MEMCPY3D| (copy.src_memory_type, copy.dst_memory_type);
        match (self, other) {
            (Self::Copy(one, _), Self::Copy(other, _)) => ends(one) == ends(other),
            _ => true,
        }
    }

    /// The header's number of it.
    pub fn number(&self) -> CUgraphNodeType {
        match self {
            Self::Kernel(_) => CU_GRAPH_NODE_TYPE_KERNEL,
            Self::Copy(..) => CU_GRAPH_NODE_TYPE_MEMCPY,
            Self::Fill(_) => CU_GRAPH_NODE_TYPE_MEMSET,
            Self::Host(..) => CU_GRAPH_NODE_TYPE_HOST,
            Self::Child(_) => CU_GRAPH_NODE_TYPE_GRAPH,
            Self::Empty => CU_GRAPH_NODE_TYPE_EMPTY,
            Self::Wait(_) => CU_GRAPH_NODE_TYPE_WAIT_EVENT,
            Self::Record(_) => CU_GRAPH_NODE_TYPE_EVENT_RECORD,
            Self::Alloc(..) => CU_GRAPH_NODE_TYPE_MEM_ALLOC,
            Self::Free(_) => CU_GRAPH_NODE_TYPE_MEM_FREE,
            Self::Batch(_) => CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
            Self::Conditional(_) => CU_GRAPH_NODE_TYPE_CONDITIONAL,
        }
    }
}

/// A node.
#[derive(Debug)]
pub struct Node {
    /// Its graph's handle.
    pub graph: usize,
    /// Its work.
    pub kind: Mutex<NodeKind>,
    /// Handles of the nodes that it waits for.
    pub after: Mutex<Vec<usize>>,
    /// Handles of the nodes that wait for it, in the order in which the edges were made.
    pub before: Mutex<Vec<usize>>,
    /// When it last became a root.
    pub rooted: AtomicU64,
    /// The node that it is a copy of.
    pub original: Option<usize>,
}

/// A graph: its nodes in the order in which they were added.
#[derive(Debug, Default)]
pub struct Graph {
    /// Handles of the nodes.
    pub nodes: Mutex<Vec<usize>>,
    /// Objects of the program that it holds, and how many references to each.
    pub objects: Mutex<Vec<(usize, u32)>>,
    /// Its conditional nodes: their handles, and their values at the beginning of a launch.
    pub conditions: Mutex<Vec<(u64, u32)>>,
    /// Whether it belongs to a conditional node.
    pub is_body: bool,
    /// Held by the executable of a graph that can have one at a time.
    pub only: Arc<()>,
}

static GRAPHS: Registry<Arc<Graph>> = Registry::new(0x1700_0000_0000);
static NODES: Registry<Arc<Node>> = Registry::new(0x1800_0000_0000);

/// Makes an empty graph.
pub fn create() -> usize {
    GRAPHS.insert(Arc::new(Graph::default()))
}

/// Makes an empty graph for a conditional node.
pub fn create_body() -> usize {
    GRAPHS.insert(Arc::new(Graph { is_body: true, ..Graph::default() }))
}

/// The graph of a handle.
///
/// # Errors
/// `INVALID_VALUE`.
pub fn graph(handle: usize) -> Result<Arc<Graph>, CuResult> {
    GRAPHS.get(handle).ok_or(CuResult::INVALID_VALUE)
}

/// The node of a handle.
///
/// # Errors
/// `INVALID_VALUE`.
pub fn node(handle: usize) -> Result<Arc<Node>, CuResult> {
    NODES.get(handle).ok_or(CuResult::INVALID_VALUE)
}

/// A moment after all before.
fn moment() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Makes a node wait for another one.
///
/// # Errors
/// `INVALID_VALUE` if it does already, and for a bad node.
pub fn connect(from: usize, to: usize) -> Result<(), CuResult> {
    let (first, second) = (node(from)?, node(to)?);
    let mut after = lock(&second.after);
    if after.contains(&from) {
        return Err(CuResult::INVALID_VALUE);
    }
    after.push(from);
    lock(&first.before).push(to);
    Ok(())
}

/// Has a node wait for another one no more.
///
/// # Errors
/// `INVALID_VALUE` if it does not, and for a bad node.
pub fn disconnect(from: usize, to: usize) -> Result<(), CuResult> {
    let (first, second) = (node(from)?, node(to)?);
    let mut after = lock(&second.after);
    let at = after.iter().position(|known| *known == from).ok_or(CuResult::INVALID_VALUE)?;
    after.remove(at);
    if after.is_empty() {
        second.rooted.store(moment(), Ordering::Relaxed);
    }
    lock(&first.before).retain(|known| *known != to);
    Ok(())
}

/// The root nodes of a graph: the last one first, as in the driver.
///
/// # Errors
/// `INVALID_VALUE`.
pub fn roots(handle: usize) -> Result<Vec<usize>, CuResult> {
    let mut found = Vec::new();
    for handle in lock(&graph(handle)?.nodes).iter() {
        let node = node(*handle)?;
        if lock(&node.after).is_empty() {
            found.push((std::cmp::Reverse(node.rooted.load(Ordering::Relaxed)), *handle));
        }
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, handle)| handle).collect())
}

/// Adds a node.
///
/// # Errors
/// `INVALID_VALUE` for a bad graph and for dependencies that are not its nodes.
pub fn add(owner: usize, after: &[usize], kind: NodeKind) -> Result<usize, CuResult> {
    add_copy_of(owner, after, kind, None)
}

fn add_copy_of(
    owner: usize,
    after: &[usize],
    kind: NodeKind,
    original: Option<usize>,
) -> Result<usize, CuResult> {
    let graph = graph(owner)?;
    let mut nodes = lock(&graph.nodes);
    let mut known = Vec::with_capacity(after.len());
    for before in after {
        // Handles only grow, so the list is sorted.
        if nodes.binary_search(before).is_err() || known.contains(before) {
            return Err(CuResult::INVALID_VALUE);
        }
        known.push(*before);
    }
    let node = Node {
        graph: owner,
        kind: Mutex::new(kind),
        after: Mutex::default(),
        before: Mutex::default(),
        rooted: AtomicU64::new(moment()),
        original,
    };
    let handle = NODES.insert(Arc::new(node));
    nodes.push(handle);
    known.into_iter().try_for_each(|before| connect(before, handle))?;
    Ok(handle)
}

/// Whether one of a graph's nodes allocates or frees memory: no node can be removed from such a
/// graph.
///
/// # Errors
/// `INVALID_VALUE`.
pub fn owns_memory(handle: usize) -> Result<bool, CuResult> {
    let graph = graph(handle)?;
    let nodes = lock(&graph.nodes);
    let mut kinds = nodes.iter().filter_map(|node| NODES.get(*node));
    Ok(kinds.any(|node| matches!(&*lock(&node.kind), NodeKind::Alloc(..) | NodeKind::Free(_))))
}

/// Whether a graph can have a node that frees an address: once, and only memory of graphs.
///
/// # Errors
/// `INVALID_VALUE`.
pub fn check_free(owner: usize, address: u64) -> Result<(), CuResult> {
    let nodes = lock(&graph(owner)?.nodes).clone();
    let frees = |handle: &usize| {
        node(*handle).is_ok_and(|node| matches!(*lock(&node.kind), NodeKind::Free(freed) if freed == address))
    };
    if graph_memory::is_owned(address) && !nodes.iter().any(frees) {
        Ok(())
    } else {
        Err(CuResult::INVALID_VALUE)
    }
}

/// Whether a graph has nodes that cannot be in two executables at a time: those that own memory or
/// choose among graphs.
///
/// # Errors
/// `INVALID_VALUE`.
pub fn is_single(handle: usize) -> Result<bool, CuResult> {
    let graph = graph(handle)?;
    let nodes = lock(&graph.nodes);
    let mut kinds = nodes.iter().filter_map(|node| NODES.get(*node));
    let is_single =
        |kind: &NodeKind| matches!(kind, NodeKind::Alloc(..) | NodeKind::Free(_) | NodeKind::Conditional(_));
    Ok(kinds.any(|node| is_single(&lock(&node.kind))))
}

/// Removes a node with its edges.
///
/// # Errors
/// `INVALID_VALUE`, and `NOT_SUPPORTED` in a graph that owns memory.
pub fn remove(handle: usize) -> Result<(), CuResult> {
    let gone = node(handle)?;
    if owns_memory(gone.graph)? {
        return Err(CuResult::NOT_SUPPORTED);
    }
    let graph = graph(gone.graph)?;
    let mut nodes = lock(&graph.nodes);
    nodes.retain(|node| *node != handle);
    let (after, before) = (lock(&gone.after).clone(), lock(&gone.before).clone());
    after.into_iter().try_for_each(|from| disconnect(from, handle))?;
    before.into_iter().try_for_each(|to| disconnect(handle, to))?;
    discard(handle);
    Ok(())
}

fn discard(handle: usize) {
    let Some(node) = NODES.remove(handle) else { return };
    let kind = lock(&node.kind).clone();
    match kind {
        NodeKind::Child(graph) => discard_graph(graph),
        NodeKind::Conditional(node) => node.bodies.iter().for_each(|body| discard_graph(body.addr())),
        _ => {}
    }
}

/// Destroys a graph with its nodes.
///
/// # Errors
/// `INVALID_VALUE`.
pub fn destroy(handle: usize) -> Result<(), CuResult> {
    let graph = GRAPHS.remove(handle).ok_or(CuResult::INVALID_VALUE)?;
    for node in lock(&graph.nodes).drain(..) {
        discard(node);
    }
    let objects = std::mem::take(&mut *lock(&graph.objects));
    for (object, count) in objects {
        user_object::release(object, count)?;
    }
    Ok(())
}

/// Destroys a graph that the program does not know, or no more.
pub fn discard_graph(handle: usize) {
    // It may already be gone with its parent node.
    let _ = destroy(handle);
}

/// Copies a graph.
///
/// # Errors
/// `INVALID_VALUE`, and `NOT_SUPPORTED` for one with nodes that own memory or choose among graphs.
pub fn duplicate(handle: usize) -> Result<usize, CuResult> {
    let from = graph(handle)?;
    if from.is_body {
        return Err(CuResult::NOT_SUPPORTED);
    }
    let nodes = lock(&from.nodes).clone();
    let copy = create();
    duplicate_into(copy, &nodes).inspect_err(|_| discard_graph(copy))?;
    Ok(copy)
}

fn duplicate_into(copy: usize, nodes: &[usize]) -> Result<(), CuResult> {
    let mut copies: Vec<(usize, usize)> = Vec::with_capacity(nodes.len());
    // Edges may have been added in any order, so first all nodes, then all edges.
    for original in nodes {
        let node = node(*original)?;
        let kind = match &*lock(&node.kind) {
            NodeKind::Child(child) => NodeKind::Child(duplicate(*child)?),
            NodeKind::Alloc(..) | NodeKind::Free(_) | NodeKind::Conditional(_) => {
                return Err(CuResult::NOT_SUPPORTED);
            }
            kind => kind.clone(),
        };
        copies.push((*original, add_copy_of(copy, &[], kind, Some(*original))?));
    }
    let copy_of =
        |wanted: usize| copies.iter().find(|(original, _)| *original == wanted).map(|(_, copy)| *copy);
    for (original, made) in &copies {
        let (old, new) = (node(*original)?, node(*made)?);
        *lock(&new.after) = lock(&old.after).iter().copied().filter_map(copy_of).collect();
        *lock(&new.before) = lock(&old.before).iter().copied().filter_map(copy_of).collect();
        new.rooted.store(old.rooted.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    Ok(())
}

/// A node of a graph that waits for itself, in it or in a graph inside it.
///
/// # Errors
/// `INVALID_VALUE` for a bad graph.
pub fn circle(handle: usize) -> Result<Option<usize>, CuResult> {
    if ordered(handle).is_err() {
        return Ok(lock(&graph(handle)?.nodes).first().copied());
    }
    for inner in inner(handle)? {
        if let Some(node) = circle(inner.0)? {
            return Ok(Some(node));
        }
    }
    Ok(None)
}

/// The graphs inside a graph, and whether a conditional node has them.
fn inner(handle: usize) -> Result<Vec<(usize, bool)>, CuResult> {
    let mut found = Vec::new();
    for handle in lock(&graph(handle)?.nodes).iter() {
        match &*lock(&node(*handle)?.kind) {
            NodeKind::Child(child) => found.push((*child, false)),
            NodeKind::Conditional(node) => found.extend(node.bodies.iter().map(|body| (body.addr(), true))),
            _ => {}
        }
    }
    Ok(found)
}

/// The first node in a conditional node's graph that cannot run there. `in_body`: whether the graph
/// itself is in one.
///
/// # Errors
/// `INVALID_VALUE` for a bad graph.
pub fn unfit_for_body(handle: usize, in_body: bool) -> Result<Option<usize>, CuResult> {
    if in_body {
        for handle in lock(&graph(handle)?.nodes).iter() {
            if matches!(
                &*lock(&node(*handle)?.kind),
                NodeKind::Host(..)
                    | NodeKind::Record(_)
                    | NodeKind::Wait(_)
                    | NodeKind::Batch(_)
                    | NodeKind::Alloc(_)
                    | NodeKind::Free(_)
            ) {
                return Ok(Some(*handle));
            }
        }
    }
    for (inner, is_body) in inner(handle)? {
        if let Some(node) = unfit_for_body(inner, in_body || is_body)? {
            return Ok(Some(node));
        }
    }
    Ok(None)
}

/// The nodes of a graph, each after all that it waits for.
///
/// # Errors
/// `INVALID_VALUE` for a bad graph and one that waits for itself.
pub fn ordered(handle: usize) -> Result<Vec<(usize, Arc<Node>)>, CuResult> {
    let mut waiting: Vec<(usize, Arc<Node>)> = Vec::new();
    for handle in lock(&graph(handle)?.nodes).iter() {
        waiting.push((*handle, node(*handle)?));
    }
    let mut done: Vec<(usize, Arc<Node>)> = Vec::with_capacity(waiting.len());
    let mut placed = std::collections::HashSet::new();
    while !waiting.is_empty() {
        let before = waiting.len();
        let mut later = Vec::new();
        for (handle, node) in waiting {
            if lock(&node.after).iter().all(|after| placed.contains(after)) {
                placed.insert(handle);
                done.push((handle, node));
            } else {
                later.push((handle, node));
            }
        }
        if later.len() == before {
            return Err(CuResult::INVALID_VALUE);
        }
        waiting = later;
    }
    Ok(done)
}
