//! Executable graphs.
//!
//! As measured on hardware: the debug callback sees a kernel node when the executable is first
//! uploaded, and its answer is stored in the executable. Later launches, and new parameters that
//! equal the old ones, keep the stored mask. A node that was disabled and enabled again, or whose
//! parameters changed, is shown again at the next launch. The first upload calls the callback once
//! more, for the launch itself. The nodes of the graph from which the executable was made name its
//! nodes, as long as that graph exists.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use partita_abi::CuResult;
use partita_abi::types::*;

use super::context::stream::Stream;
use super::copy::{Plan, plan};
use super::event::Event;
use super::gpus::runtime;
use super::graph::{self, KernelNode, NodeKind};
use super::graph_memory::{self, GraphMemory};
use super::moves::moves;
use super::object::Registry;
use super::runtime::Runtime;
use super::worker::{self, HostWork};
use super::{callback, capture, user_object};
use crate::shared::command::Command;
use crate::shared::protocol::{GraphNode, NodeWork, Request};
use crate::shared::qmd::{self, Image};
use crate::shared::sys::lock;

/// A node, flattened out of its graphs.
#[derive(Debug)]
pub(super) struct ExecNode {
    /// The node that it was made of.
    source: usize,
    pub(super) kind: NodeKind,
    after: Vec<u32>,
    pub(super) enabled: bool,
    /// Whether it is part of a conditional node's graph that does not run.
    idle: bool,
    /// Whether the board must still get it; a kernel is shown to the subscriber then.
    pub(super) pending: bool,
    pub(super) token: Option<u64>,
    /// Its kernels before its parameters changed, which a running launch may still call.
    pub(super) former: Vec<u64>,
    /// A kernel's descriptor after the subscriber. The driver builds it once and shows it unchanged
    /// when the node is updated.
    image: Option<Box<Image>>,
}

/// A graph in which the nodes of nested graphs are its own.
#[derive(Debug, Default)]
pub(super) struct Flat {
    pub(super) nodes: Vec<ExecNode>,
    /// Nodes that run another graph, with the places of that graph's nodes.
    children: Vec<(usize, Range<usize>)>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) flat: Flat,
    /// Whether the launch itself is to be shown to the subscriber at the next upload.
    pub(super) rearmed: bool,
    pub(super) last: Option<(&'static Stream, u64)>,
}

/// An executable graph.
#[derive(Debug)]
pub(super) struct Exec {
    /// Its GPU.
    pub(super) runtime: &'static Runtime,
    /// The board's number.
    pub(super) number: u64,
    pub(super) flags: u64,
    pub(super) state: Mutex<State>,
    /// Objects of the program that it holds, as its graph did when it was made.
    pub(super) objects: Vec<(usize, u32)>,
    /// Its graph's, if that can have no second one.
    only: Option<Arc<()>>,
}

pub(super) static EXECS: Registry<Arc<Exec>> = Registry::new(0x1900_0000_0000);
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Roughly how many bytes of nodes go into one message.
const MESSAGE_ROOM: usize = 48 * 1024;

pub(super) fn exec(handle: CUgraphExec) -> Result<Arc<Exec>, CuResult> {
    runtime()?;
    EXECS.get(handle.addr()).ok_or(CuResult::INVALID_VALUE)
}

/// Flattens a graph after `after`; returns the places of the nodes without successors. `idle`: it
/// does not run.
fn flatten(handle: usize, after: &[u32], idle: bool, into: &mut Flat) -> Result<Vec<u32>, CuResult> {
    let mut ends: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    let mut awaited = std::collections::HashSet::new();
    for (source, node) in graph::ordered(handle)? {
        let before = lock(&node.after).clone();
        awaited.extend(before.iter().copied());
        let mut places: Vec<u32> = before.iter().flat_map(|before| ends[before].iter().copied()).collect();
        if before.is_empty() {
            places.extend_from_slice(after);
        }
        let kind = lock(&node.kind).clone();
        let mut push = |kind, after: Vec<u32>| {
            into.nodes.push(ExecNode {
                source,
                kind,
                after,
                enabled: true,
                idle,
                pending: true,
                token: None,
                former: Vec::new(),
                image: None,
            });
            into.nodes.len() as u32 - 1
        };
        let last = match kind {
            NodeKind::Child(child) => {
                let first = into.nodes.len();
                let inner = flatten(child, &places, idle, into)?;
                into.children.push((source, first..into.nodes.len()));
                if inner.is_empty() { places } else { inner }
            }
            NodeKind::Conditional(conditional) => {
                let mut last = vec![push(NodeKind::Conditional(conditional.clone()), places)];
                let chooser = last.clone();
                for (number, body) in conditional.bodies.iter().enumerate() {
                    let is_chosen = conditional.chosen == Some(number);
                    let inner = flatten(body.addr(), &chooser, idle || !is_chosen, into)?;
                    if is_chosen && !inner.is_empty() {
                        last = inner;
                    }
                }
                last
            }
            NodeKind::Batch(commands) => {
                let mut last = places;
                for command in commands {
                    last = vec![push(NodeKind::Batch(vec![command]), last)];
                }
                last
            }
            kind => vec![push(kind, places)],
        };
        ends.insert(source, last);
    }
    // In the order of handles: executables of one graph are alike.
    let ends = ends.into_iter().filter(|(source, _)| !awaited.contains(source));
    Ok(ends.flat_map(|(_, places)| places).collect())
}

/// Why a graph cannot be executed: the code, `CUDA_GRAPH_INSTANTIATE_*` and the node at fault.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: CuResult,
    pub(super) result: u32,
    pub(super) node: usize,
}

impl From<CuResult> for Refusal {
    fn from(code: CuResult) -> Self {
        Self { code, result: 1, node: 0 }
    }
}

pub(super) fn instantiate(handle: usize, flags: u64) -> Result<usize, Refusal> {
    const INVALID_STRUCTURE: u32 = 2;
    const NODE_OPERATION_NOT_SUPPORTED: u32 = 3;
    let known = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
        | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
        | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    if flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH != 0 {
        return Err(CuResult::NOT_SUPPORTED.into());
    }
    if flags & !known != 0 {
        return Err(CuResult::INVALID_VALUE.into());
    }
    capture::refuse_unsafe()?;
    let graph = graph::graph(handle)?;
    // A conditional node's graph has no separate executable.
    let has_one = Arc::strong_count(&graph.only) > 1;
    if graph.is_body || has_one {
        return Err(CuResult::NOT_SUPPORTED.into());
    }
    let only = graph::is_single(handle)?.then(|| Arc::clone(&graph.only));
    if let Some(node) = graph::circle(handle)? {
        return Err(Refusal { code: CuResult::INVALID_VALUE, result: INVALID_STRUCTURE, node });
    }
    if let Some(node) = graph::unfit_for_body(handle, false)? {
        return Err(Refusal { code: CuResult::INVALID_VALUE, result: NODE_OPERATION_NOT_SUPPORTED, node });
    }
    let mut flat = Flat::default();
    flatten(handle, &[], false, &mut flat)?;
    let objects = lock(&graph.objects).clone();
    for (object, count) in &objects {
        user_object::retain(*object, *count)?;
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let exec = Exec {
        runtime: runtime()?,
        number,
        flags,
        state: Mutex::new(State { flat, rearmed: true, last: None }),
        objects,
        only,
    };
    Ok(EXECS.insert(Arc::new(exec)))
}

/// Events of other devices are no part of graphs here.
fn own(runtime: &Runtime, event: &Event) -> Result<(), CuResult> {
    if std::ptr::eq(runtime, event.runtime()) { Ok(()) } else { Err(CuResult::NOT_SUPPORTED) }
}

impl ExecNode {
    /// Builds a kernel's descriptor, if it has none, and shows it; at the first upload even that of
    /// a disabled node.
    fn describe(&mut self, runtime: &'static Runtime) -> Result<(), CuResult> {
        if let (NodeKind::Kernel(kernel), None) = (&self.kind, &self.image) {
            let KernelNode { function, confines, priority, .. } = kernel;
            let mut image = Box::new(kernel.launch.describe(runtime, function, confines, *priority)?);
            callback::show(&mut image);
            self.image = Some(image);
        }
        Ok(())
    }

    fn work(&mut self, runtime: &'static Runtime) -> Result<NodeWork, CuResult> {
        if !self.enabled || self.idle {
            self.describe(runtime)?;
            return Ok(NodeWork::Empty);
        }
        let command = match self.kind.clone() {
            NodeKind::Kernel(kernel) => {
                kernel.function.check_device(runtime)?;
                match &mut self.image {
                    Some(image) => callback::show(image),
                    None => self.describe(runtime)?,
                }
                let image = self.image.as_deref().ok_or(CuResult::UNKNOWN)?;
                return Ok(NodeWork::Kernel {
                    head: kernel.launch.head(runtime, kernel.params.len()),
                    qmd: qmd::bytes(image, runtime.qmd).to_vec(),
                    params: kernel.params.to_vec(),
                });
            }
            NodeKind::Copy(_, rect) if rect.bytes() == 0 => return Ok(NodeWork::Empty),
            NodeKind::Copy(_, rect) => match plan(runtime, &rect) {
                Plan::Board(route) => Command::Copy { route, rect },
                Plan::Pinned(route) | Plan::Pageable(route) => {
                    let work = HostWork::Copy(moves(runtime, &rect)?.into());
                    let token = self.lasting(runtime, work);
                    Command::HostCopy { route, bytes: rect.bytes(), token }
                }
            },
            NodeKind::Fill(fill) => fill.command()?,
            NodeKind::Host(function, data) => {
                Command::Host { token: self.lasting(runtime, HostWork::Function(function, data)) }
            }
            NodeKind::Record(event) => {
                own(runtime, event)?;
                event.next_recording()?
            }
            NodeKind::Wait(event) => match own(runtime, event).and_then(|()| event.last_recording())? {
                Some(wait) => wait,
                None => return Ok(NodeWork::Empty),
            },
            NodeKind::Batch(commands) => match commands.first() {
                Some(command) => *command,
                None => return Ok(NodeWork::Empty),
            },
            NodeKind::Empty
            | NodeKind::Child(_)
            | NodeKind::Conditional(_)
            | NodeKind::Alloc(..)
            | NodeKind::Free(_) => return Ok(NodeWork::Empty),
        };
        Ok(NodeWork::Command(command))
    }

    /// Registers host work for the life of the executable. Earlier work remains for running
    /// launches.
    fn lasting(&mut self, runtime: &'static Runtime, work: HostWork) -> u64 {
        let token = worker::prepare(runtime, work, true);
        self.former.extend(self.token.replace(token));
        token
    }

    /// Whether programs may switch it on and off.
    pub(super) fn can_be_disabled(&self) -> bool {
        matches!(self.kind, NodeKind::Kernel(_) | NodeKind::Copy(..) | NodeKind::Fill(_))
    }

    /// Whether the board needs it again for each launch: recordings are counted.
    fn is_counted(&self) -> bool {
        matches!(self.kind, NodeKind::Record(_) | NodeKind::Wait(_))
    }
}

/// Applies the allocations and frees of a launch. `frees_first`: first frees the allocations of the
/// last launch.
///
/// # Errors
/// `INVALID_VALUE` for memory that is already allocated, and for a free of another graph's memory
/// that is not.
fn launch_memory(flat: &Flat, frees_first: bool) -> Result<(), CuResult> {
    let runs = || flat.nodes.iter().map(|node| &node.kind);
    let own: BTreeMap<u64, &Arc<GraphMemory>> = runs()
        .filter_map(|kind| match kind {
            NodeKind::Alloc(memory) => Some((memory.address, memory)),
            _ => None,
        })
        .collect();
    let freed: Vec<u64> = runs()
        .filter_map(|kind| match kind {
            NodeKind::Free(address) => Some(*address),
            _ => None,
        })
        .collect();
    let is_there = |address: &u64| graph_memory::is_allocated(*address);
    if !frees_first && own.keys().any(is_there) {
        return Err(CuResult::INVALID_VALUE);
    }
    if freed.iter().any(|address| !own.contains_key(address) && !graph_memory::is_allocated(*address)) {
        return Err(CuResult::INVALID_VALUE);
    }
    for address in &freed {
        let _ = graph_memory::free(*address);
    }
    for (_, memory) in own.into_iter().filter(|(address, _)| !freed.contains(address)) {
        graph_memory::hold(memory);
    }
    Ok(())
}

/// Sends the board what it does not know yet; recordings and waits for them only for their launch.
pub(super) fn upload(exec: &Exec, state: &mut State, is_launch: bool) -> Result<(), CuResult> {
    let runtime = exec.runtime;
    if state.last.is_none_or(|(stream, seq)| stream.reached(seq)) {
        let former = state.flat.nodes.iter_mut().flat_map(|node| node.former.drain(..));
        former.for_each(|token| worker::forget(runtime, token));
    }
    let (mut batch, mut room) = (Vec::new(), MESSAGE_ROOM);
    let send = |nodes: Vec<GraphNode>| {
        if nodes.is_empty() {
            return Ok(());
        }
        runtime.call(&Request::GraphNodes { graph: exec.number, nodes }).map(drop)
    };
    for (index, node) in state.flat.nodes.iter_mut().enumerate() {
        let is_due = if node.is_counted() { is_launch } else { node.pending };
        if !is_due {
            continue;
        }
        let work = node.work(runtime)?;
        node.pending = false;
        let bytes = match &work {
            NodeWork::Kernel { qmd, params, .. } => qmd.len() + params.len(),
            _ => 128,
        } + node.after.len() * 5
            + 64;
        if bytes > room {
            send(std::mem::take(&mut batch))?;
            room = MESSAGE_ROOM;
        }
        room = room.saturating_sub(bytes);
        batch.push(GraphNode { index: index as u32, after: node.after.clone(), work });
    }
    send(batch)?;
    let kernels = state.flat.nodes.iter().any(|node| matches!(node.kind, NodeKind::Kernel(_)));
    if std::mem::take(&mut state.rearmed) && kernels {
        // The launch of the graph as a whole, which runs nowhere here.
        callback::show(&mut runtime.qmd.empty_image());
    }
    Ok(())
}

pub(super) fn launch(handle: CUgraphExec, stream: &'static Stream) -> Result<(), CuResult> {
    let exec = exec(handle)?;
    let runtime = exec.runtime;
    runtime.healthy()?;
    // An executable belongs to the device of the context that it was made in.
    if !std::ptr::eq(runtime, stream.runtime()) {
        return Err(CuResult::INVALID_VALUE);
    }
    capture::refuse_captured(stream)?;
    // A graph's nodes have their stored masks; the driver checks the rest of the structure.
    stream.enter_launch()?;
    let mut state = lock(&exec.state);
    launch_memory(&state.flat, exec.flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH != 0)?;
    upload(&exec, &mut state, true)?;
    let seq = runtime.command(stream, &Command::Graph { graph: exec.number })?;
    state.last = Some((stream, seq));
    Ok(())
}

/// The place of the node that was made from `source`, which must exist.
pub(super) fn place(state: &State, source: CUgraphNode) -> Result<usize, CuResult> {
    graph::node(source.addr())?;
    let found = state.flat.nodes.iter().position(|node| node.source == source.addr());
    found.ok_or(CuResult::INVALID_VALUE)
}

/// Sets new parameters of a node. A captured node keeps the restrictions of its stream.
fn replace(node: &mut ExecNode, new: NodeKind) {
    let new = match (&node.kind, new) {
        (NodeKind::Kernel(old), NodeKind::Kernel(new)) => {
            let new = KernelNode { confines: old.confines, priority: old.priority, ..new };
            if new.is_launch_of(old) {
                return;
            }
            NodeKind::Kernel(new)
        }
        (_, new) => new,
    };
    node.kind = new;
    node.pending = true;
    node.image = None;
}

/// Changes the node that was made of `source`.
pub(super) fn change(handle: CUgraphExec, source: CUgraphNode, new: NodeKind) -> Result<(), CuResult> {
    let exec = exec(handle)?;
    let mut state = lock(&exec.state);
    let at = place(&state, source)?;
    let node = &mut state.flat.nodes[at];
    if node.kind.number() != new.number() || !node.kind.copies_alike(&new) {
        return Err(CuResult::INVALID_VALUE);
    }
    replace(node, new);
    Ok(())
}

/// How many nodes wait for each.
fn dependents(nodes: &[ExecNode]) -> Vec<usize> {
    let mut counts = vec![0; nodes.len()];
    for before in nodes.iter().flat_map(|node| &node.after) {
        counts[*before as usize] += 1;
    }
    counts
}

/// Whether a graph has nodes that wait for and write words.
///
/// # Errors
/// `INVALID_VALUE` for an executable or a graph that does not exist.
pub(super) fn has_batches(handle: CUgraphExec, graph: CUgraph) -> Result<bool, CuResult> {
    exec(handle)?;
    let mut flat = Flat::default();
    flatten(graph.addr(), &[], false, &mut flat)?;
    Ok(flat.nodes.iter().any(|node| matches!(node.kind, NodeKind::Batch(_))))
}

/// Takes all parameters from another graph of the same shape; otherwise returns the code,
/// `CU_GRAPH_EXEC_UPDATE_*`, and the node at fault.
pub(super) fn update(
    handle: CUgraphExec,
    graph: CUgraph,
) -> Result<Result<(), (CuResult, u32, usize)>, CuResult> {
    const TOPOLOGY_CHANGED: u32 = 2;
    const NODE_TYPE_CHANGED: u32 = 3;
    const PARAMETERS_CHANGED: u32 = 5;
    let exec = exec(handle)?;
    let owner = graph::graph(graph.addr())?;
    if owner.is_body {
        return Ok(Err((CuResult::INVALID_VALUE, 0, 0)));
    }
    let is_own = exec.only.as_ref().is_some_and(|only| Arc::ptr_eq(only, &owner.only));
    if graph::owns_memory(graph.addr())? && !is_own {
        return Ok(Err((CuResult::NOT_SUPPORTED, 0, 0)));
    }
    let differs = |result, node| Ok(Err((CuResult::GRAPH_EXEC_UPDATE_FAILURE, result, node)));
    let mut new = Flat::default();
    flatten(graph.addr(), &[], false, &mut new)?;
    let mut state = lock(&exec.state);
    let old = &mut state.flat.nodes;
    if new.nodes.len() != old.len() {
        return differs(TOPOLOGY_CHANGED, 0);
    }
    let (before, behind) = (dependents(old), dependents(&new.nodes));
    for (at, (old, new)) in old.iter().zip(&new.nodes).enumerate() {
        if old.after != new.after || before[at] != behind[at] {
            return differs(TOPOLOGY_CHANGED, new.source);
        }
        if old.kind.number() != new.kind.number() {
            return differs(NODE_TYPE_CHANGED, new.source);
        }
        if !old.kind.copies_alike(&new.kind) {
            return differs(PARAMETERS_CHANGED, new.source);
        }
    }
    for (old, new) in old.iter_mut().zip(new.nodes) {
        if std::mem::replace(&mut old.idle, new.idle) != new.idle {
            old.pending = true;
        }
        replace(old, new.kind);
    }
    Ok(Ok(()))
}

/// Makes the node from `source` run another graph of the same shape: the nodes keep their names and
/// take its parameters.
///
/// # Errors
/// `INVALID_VALUE` for a node that runs no graph, and for a graph of another shape.
pub(super) fn change_child(handle: CUgraphExec, source: CUgraphNode, graph: CUgraph) -> Result<(), CuResult> {
    let exec = exec(handle)?;
    graph::node(source.addr())?;
    let mut new = Flat::default();
    flatten(graph.addr(), &[], false, &mut new)?;
    let mut state = lock(&exec.state);
    let found = state.flat.children.iter().find(|(child, _)| *child == source.addr());
    let places = found.map(|(_, places)| places.clone()).ok_or(CuResult::INVALID_VALUE)?;
    // The dependencies of the whole graph come before it.
    let first = places.start as u32;
    let old = &mut state.flat.nodes[places];
    let fits = |(old, new): (&ExecNode, &ExecNode)| {
        let inside = old.after.iter().filter(|before| **before >= first).map(|before| before - first);
        old.kind.number() == new.kind.number() && inside.eq(new.after.iter().copied())
    };
    if old.len() != new.nodes.len() || !old.iter().zip(&new.nodes).all(fits) {
        return Err(CuResult::INVALID_VALUE);
    }
    for (old, new) in old.iter_mut().zip(new.nodes) {
        replace(old, new.kind);
    }
    Ok(())
}
