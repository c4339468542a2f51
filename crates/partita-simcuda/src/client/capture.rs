//! Stream capture: what streams are given becomes a graph.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use partita_abi::CuResult;
use partita_abi::types::*;

use super::event::Event;
use super::function::Function;
use super::graph::{self, KernelNode, NodeKind};
use super::graph_memory::GraphMemory;
use super::launch::Launch;
use super::memset::Fill;
use super::runtime::lock;
use super::stream::Stream;
use crate::shared::command::{Command, Rect};

/// One capture, over all streams that joined it.
#[derive(Debug)]
struct Session {
    graph: usize,
    origin: u64,
    invalid: bool,
    /// Whether the graph was there before.
    foreign: bool,
}

/// A capturing stream.
#[derive(Debug)]
struct Member {
    session: u64,
    stream: &'static Stream,
    /// What its next node waits for.
    after: Vec<usize>,
    /// The same, where a program that asked may read it.
    shown: Box<[CUgraphNode]>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    sessions: HashMap<u64, Session>,
    /// By the stream's number.
    members: HashMap<u64, Member>,
    /// Recordings of events that were captured, by the event's address.
    events: HashMap<usize, (u64, Vec<usize>)>,
}

// SAFETY: node handles are numbers.
unsafe impl Send for State {}

static STATE: Mutex<Option<State>> = Mutex::new(None);

fn with<R>(action: impl FnOnce(&mut State) -> R) -> R {
    action(lock(&STATE).get_or_insert_with(State::default))
}

fn id(stream: &Stream) -> u64 {
    stream.id.load(Ordering::Relaxed)
}

fn key(event: &Event) -> usize {
    std::ptr::from_ref(event).addr()
}

impl State {
    fn member(&mut self, stream: &Stream) -> Result<&mut Member, CuResult> {
        self.members.get_mut(&id(stream)).ok_or(CuResult::ILLEGAL_STATE)
    }

    fn join(&mut self, stream: &'static Stream, session: u64, after: Vec<usize>) {
        stream.capturing.store(true, Ordering::Release);
        self.members.insert(id(stream), Member { session, stream, after, shown: Box::default() });
    }

    /// Ends a session: its streams go back to executing.
    fn end(&mut self, session: u64) -> Option<Session> {
        self.members.retain(|_, member| {
            let leaves = member.session == session;
            if leaves {
                member.stream.capturing.store(false, Ordering::Release);
            }
            !leaves
        });
        self.events.retain(|_, (owner, _)| *owner != session);
        self.sessions.remove(&session)
    }

    fn add(&mut self, stream: &Stream, kind: NodeKind) -> Result<(), CuResult> {
        let (session, after) = {
            let member = self.member(stream)?;
            (member.session, member.after.clone())
        };
        let owner = self.sessions.get(&session).ok_or(CuResult::ILLEGAL_STATE)?;
        if owner.invalid {
            return Err(CuResult::STREAM_CAPTURE_INVALIDATED);
        }
        let node = graph::add(owner.graph, &after, kind)?;
        self.member(stream)?.after = vec![node];
        Ok(())
    }
}

/// Adds a node to what a stream captures.
fn add(stream: &Stream, kind: NodeKind) -> Result<(), CuResult> {
    with(|state| state.add(stream, kind))
}

/// Gives up a capture, because its stream goes.
pub fn abandon(stream: &'static Stream) {
    if !stream.capturing.load(Ordering::Relaxed) {
        return;
    }
    with(|state| {
        let session = state.members.get(&id(stream)).map(|member| member.session);
        if let Some(session) = session.and_then(|session| state.end(session))
            && !session.foreign
        {
            let _ = graph::destroy(session.graph);
        }
    });
}

/// Forgets what was captured of an event, because it goes.
pub fn forget_event(event: &'static Event) {
    if event.captured.load(Ordering::Relaxed) {
        with(|state| state.events.remove(&key(event)));
    }
}

/// Refuses to wait for a capturing stream, and makes its capture invalid.
///
/// # Errors
/// `STREAM_CAPTURE_UNSUPPORTED` when it captures.
#[inline]
pub fn refuse_sync(stream: &'static Stream) -> Result<(), CuResult> {
    if !stream.capturing.load(Ordering::Relaxed) {
        return Ok(());
    }
    invalidate(stream);
    Err(CuResult::STREAM_CAPTURE_UNSUPPORTED)
}

/// Makes a stream's capture invalid.
pub fn invalidate(stream: &'static Stream) {
    with(|state| {
        let session = state.members.get(&id(stream)).map(|member| member.session);
        if let Some(session) = session.and_then(|session| state.sessions.get_mut(&session)) {
            session.invalid = true;
        }
    });
}

/// Records an event in a capturing stream: a point to wait for, or a node when it is to happen outside.
///
/// # Errors
/// Those of adding a node.
pub fn record_event(stream: &'static Stream, event: &'static Event, external: bool) -> Result<(), CuResult> {
    if external {
        return add(stream, NodeKind::Record(event));
    }
    with(|state| {
        let member = state.member(stream)?;
        let point = (member.session, member.after.clone());
        event.captured.store(true, Ordering::Release);
        state.events.insert(key(event), point);
        Ok(())
    })
}

/// Makes a stream wait for an event where one of the two belongs to a capture.
///
/// # Errors
/// `STREAM_CAPTURE_ISOLATION` when a capturing stream is to wait for an event that was not captured,
/// `STREAM_CAPTURE_MERGE` when the two belong to different captures.
pub fn wait_event(stream: &'static Stream, event: &'static Event, external: bool) -> Result<(), CuResult> {
    if external && stream.capturing.load(Ordering::Relaxed) {
        return add(stream, NodeKind::Wait(event));
    }
    let point = with(|state| state.events.get(&key(event)).cloned());
    let capturing = stream.capturing.load(Ordering::Relaxed);
    match point.filter(|_| event.captured.load(Ordering::Relaxed)) {
        Some((session, after)) => with(|state| {
            if !capturing {
                state.join(stream, session, after);
                return Ok(());
            }
            let member = state.member(stream)?;
            if member.session != session {
                return Err(CuResult::STREAM_CAPTURE_MERGE);
            }
            for node in after {
                if !member.after.contains(&node) {
                    member.after.push(node);
                }
            }
            Ok(())
        }),
        None if capturing => {
            invalidate(stream);
            Err(CuResult::STREAM_CAPTURE_ISOLATION)
        }
        // The capture that the event belonged to has ended; as an event it was never recorded.
        None => Ok(()),
    }
}

/// A copy of unified addresses, as a graph's node describes it.
fn described(rect: &Rect) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        src_x_in_bytes: 0,
        src_y: 0,
        src_z: 0,
        src_lod: 0,
        src_memory_type: CU_MEMORYTYPE_UNIFIED,
        src_host: std::ptr::null(),
        src_device: rect.src,
        src_array: CUarray::NULL,
        src_context: CUcontext::NULL,
        src_pitch: rect.src_pitch as usize,
        src_height: (rect.src_slice / rect.src_pitch.max(1)) as usize,
        dst_x_in_bytes: 0,
        dst_y: 0,
        dst_z: 0,
        dst_lod: 0,
        dst_memory_type: CU_MEMORYTYPE_UNIFIED,
        dst_host: std::ptr::null_mut(),
        dst_device: rect.dst,
        dst_array: CUarray::NULL,
        dst_context: CUcontext::NULL,
        dst_pitch: rect.dst_pitch as usize,
        dst_height: (rect.dst_slice / rect.dst_pitch.max(1)) as usize,
        width_in_bytes: rect.width as usize,
        height: rect.height as usize,
        depth: rect.depth as usize,
    }
}

/// Captures a copy.
///
/// # Errors
/// Those of adding a node.
pub fn add_copy(stream: &'static Stream, rect: Rect) -> Result<(), CuResult> {
    add(stream, NodeKind::Copy(described(&rect), rect))
}

/// Captures a fill.
///
/// # Errors
/// Those of adding a node.
pub fn add_fill(stream: &'static Stream, fill: Fill) -> Result<(), CuResult> {
    add(stream, NodeKind::Fill(fill))
}

/// Captures a wait for or a write of a word.
///
/// # Errors
/// Those of adding a node.
pub fn add_command(stream: &'static Stream, command: Command) -> Result<(), CuResult> {
    add(stream, NodeKind::Batch(vec![command]))
}

/// Captures a host function.
///
/// # Errors
/// Those of adding a node.
pub fn add_host(stream: &'static Stream, function: CUhostFn, data: usize) -> Result<(), CuResult> {
    add(stream, NodeKind::Host(function, data))
}

/// Captures the launch of an executable: a node that runs a graph of the same nodes, which becomes the node's.
///
/// # Errors
/// Those of adding a node.
pub fn add_child(stream: &'static Stream, graph: usize) -> Result<(), CuResult> {
    add(stream, NodeKind::Child(graph)).inspect_err(|_| graph::discard_graph(graph))
}

/// Captures an allocation, which has been made.
///
/// # Errors
/// Those of adding a node.
pub fn add_alloc(stream: &'static Stream, memory: GraphMemory) -> Result<(), CuResult> {
    add(stream, NodeKind::Alloc(std::sync::Arc::new(memory)))
}

/// Captures a free. The memory stays with the graph, which may be launched again.
///
/// # Errors
/// Those of adding a node.
pub fn add_free(stream: &'static Stream, address: u64) -> Result<(), CuResult> {
    add(stream, NodeKind::Free(address))
}

/// Captures a launch, with the mask that the stream has now.
///
/// # Errors
/// Those of adding a node.
pub fn add_kernel(
    stream: &'static Stream,
    function: &'static Function,
    launch: &Launch,
    params: &[u8],
) -> Result<(), CuResult> {
    let priority = stream.priority.load(Ordering::Relaxed);
    let node = KernelNode::new(function, *launch, params, stream.confines()?, priority);
    add(stream, NodeKind::Kernel(node))
}

pub(super) fn begin(
    stream: &'static Stream,
    mode: u32,
    graph: Option<(usize, Vec<usize>)>,
) -> Result<(), CuResult> {
    if mode > CU_STREAM_CAPTURE_MODE_RELAXED {
        return Err(CuResult::INVALID_VALUE);
    }
    if std::ptr::eq(stream, stream.context().legacy) {
        return Err(CuResult::STREAM_CAPTURE_UNSUPPORTED);
    }
    with(|state| {
        if stream.capturing.load(Ordering::Relaxed) {
            return Err(CuResult::ILLEGAL_STATE);
        }
        let foreign = graph.is_some();
        let (graph, after) = graph.unwrap_or_else(|| (graph::create(), Vec::new()));
        state.next += 1;
        let session = state.next;
        state.sessions.insert(session, Session { graph, origin: id(stream), invalid: false, foreign });
        state.join(stream, session, after);
        Ok(())
    })
}

/// All nodes that lead to some nodes, and these.
fn ancestry(of: &[usize]) -> std::collections::HashSet<usize> {
    let mut found = std::collections::HashSet::new();
    let mut rest = of.to_vec();
    while let Some(next) = rest.pop() {
        if found.insert(next)
            && let Ok(node) = graph::node(next)
        {
            rest.extend(lock(&node.after).iter().copied());
        }
    }
    found
}

pub(super) fn end(stream: &'static Stream) -> Result<usize, CuResult> {
    with(|state| {
        let (session, own) = {
            let member = state.member(stream)?;
            (member.session, member.after.clone())
        };
        let found = state.sessions.get(&session).ok_or(CuResult::ILLEGAL_STATE)?;
        if found.origin != id(stream) {
            return Err(CuResult::STREAM_CAPTURE_UNMATCHED);
        }
        let joined = ancestry(&own);
        let unjoined = state
            .members
            .values()
            .any(|other| other.session == session && other.after.iter().any(|node| !joined.contains(node)));
        let ended = state.end(session).ok_or(CuResult::ILLEGAL_STATE)?;
        if !ended.invalid && !unjoined {
            return Ok(ended.graph);
        }
        if !ended.foreign {
            let _ = graph::destroy(ended.graph);
        }
        Err(if ended.invalid {
            CuResult::STREAM_CAPTURE_INVALIDATED
        } else {
            CuResult::STREAM_CAPTURE_UNJOINED
        })
    })
}

/// What a program asks of a capture.
pub(super) struct Info {
    /// `CU_STREAM_CAPTURE_STATUS_*`.
    pub status: u32,
    /// The capture's number.
    pub session: u64,
    /// The graph's handle.
    pub graph: usize,
    /// What the next node will wait for.
    pub after: *const CUgraphNode,
    /// How many those are.
    pub count: usize,
}

pub(super) fn info(stream: &'static Stream) -> Result<Info, CuResult> {
    let none = Info {
        status: CU_STREAM_CAPTURE_STATUS_NONE,
        session: 0,
        graph: 0,
        after: std::ptr::null(),
        count: 0,
    };
    if !stream.capturing.load(Ordering::Relaxed) {
        return Ok(none);
    }
    with(|state| {
        let member = state.member(stream)?;
        member.shown = member.after.iter().map(|node| CUgraphNode::from_addr(*node)).collect();
        let (session, after, count) = (member.session, member.shown.as_ptr(), member.shown.len());
        let found = state.sessions.get(&session).ok_or(CuResult::ILLEGAL_STATE)?;
        let status = if found.invalid {
            CU_STREAM_CAPTURE_STATUS_INVALIDATED
        } else {
            CU_STREAM_CAPTURE_STATUS_ACTIVE
        };
        Ok(Info { status, session, graph: found.graph, after, count })
    })
}

/// Adds to or replaces what a capturing stream's next node waits for.
pub(super) fn set_after(stream: &'static Stream, nodes: &[CUgraphNode], flags: u32) -> Result<(), CuResult> {
    let nodes: Vec<usize> = nodes.iter().map(|node| node.addr()).collect();
    with(|state| {
        let member = state.member(stream)?;
        match flags {
            0 => {
                for node in nodes {
                    if !member.after.contains(&node) {
                        member.after.push(node);
                    }
                }
            }
            1 => member.after = nodes,
            _ => return Err(CuResult::INVALID_VALUE),
        }
        Ok(())
    })
}
