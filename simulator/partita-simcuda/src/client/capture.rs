//! Stream capture: work given to streams becomes a graph.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use partita_abi::CuResult;
use partita_abi::types::*;

use super::context::Context;
use super::context::stream::Stream;
use super::event::Event;
use super::fill::Fill;
use super::function::Function;
use super::graph::{self, KernelNode, NodeKind};
use super::graph_memory::GraphMemory;
use super::launch::Launch;
use crate::shared::command::{Command, Rect};
use crate::shared::sys::lock;

/// One capture, over all streams that joined it.
#[derive(Debug)]
struct Session {
    graph: usize,
    origin: u64,
    /// `CU_STREAM_CAPTURE_MODE_*`: the calls that it forbids.
    mode: u32,
    /// The thread that began it.
    thread: usize,
    invalid: bool,
    /// Whether the graph was there before.
    foreign: bool,
}

/// A capturing stream.
#[derive(Debug)]
struct Member {
    session: u64,
    stream: &'static Stream,
    /// The dependencies of its next node.
    after: Vec<usize>,
    /// The same, for a program that queried them.
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
/// Captures that have not ended, for calls that only have to know whether there are any.
static SESSIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The capture mode of this thread, `CU_STREAM_CAPTURE_MODE_*`.
    static MODE: std::cell::Cell<u32> = const { std::cell::Cell::new(CU_STREAM_CAPTURE_MODE_GLOBAL) };
}

/// A number for this thread. At a thread's end, when it has no number, it owns no capture.
fn thread() -> usize {
    MODE.try_with(|mode| std::ptr::from_ref(mode).addr()).unwrap_or(0)
}

/// Exchanges the thread's capture mode.
pub(super) fn exchange_mode(new: u32) -> u32 {
    MODE.try_with(|mode| mode.replace(new)).unwrap_or(CU_STREAM_CAPTURE_MODE_GLOBAL)
}

/// Refuses a call that is unsafe during captures, if a capture of this thread or of any thread
/// forbids it, and invalidates these captures.
///
/// # Errors
/// `STREAM_CAPTURE_UNSUPPORTED`.
#[inline]
pub fn refuse_unsafe() -> Result<(), CuResult> {
    if SESSIONS.load(Ordering::Acquire) == 0 { Ok(()) } else { refuse_unsafe_beside() }
}

#[cold]
fn refuse_unsafe_beside() -> Result<(), CuResult> {
    let mode = MODE.try_with(std::cell::Cell::get).unwrap_or(CU_STREAM_CAPTURE_MODE_GLOBAL);
    if mode == CU_STREAM_CAPTURE_MODE_RELAXED {
        return Ok(());
    }
    let forbids = |session: &Session| match session.mode {
        CU_STREAM_CAPTURE_MODE_RELAXED => false,
        _ if session.thread == thread() => true,
        other => other == CU_STREAM_CAPTURE_MODE_GLOBAL && mode == CU_STREAM_CAPTURE_MODE_GLOBAL,
    };
    with(|state| {
        let mut result = Ok(());
        for session in state.sessions.values_mut().filter(|session| forbids(session)) {
            session.invalid = true;
            result = Err(CuResult::STREAM_CAPTURE_UNSUPPORTED);
        }
        result
    })
}

/// Refuses to wait for a whole context of which a stream captures, and makes its captures invalid.
///
/// # Errors
/// `STREAM_CAPTURE_UNSUPPORTED`.
fn refuse_context(context: &Context) -> Result<(), CuResult> {
    if SESSIONS.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    refuse_members(CuResult::STREAM_CAPTURE_UNSUPPORTED, |stream| std::ptr::eq(stream.context(), context))
}

impl Context {
    /// Waits for all work of the context.
    ///
    /// # Errors
    /// Those of waiting; `STREAM_CAPTURE_UNSUPPORTED` while one of its streams captures.
    pub fn synchronize(&self) -> Result<(), CuResult> {
        self.runtime.healthy()?;
        refuse_context(self)?;
        self.finish()
    }
}

fn refuse_members(error: CuResult, is_meant: impl Fn(&Stream) -> bool) -> Result<(), CuResult> {
    with(|state| {
        let mut result = Ok(());
        for member in state.members.values().filter(|member| is_meant(member.stream)) {
            if let Some(session) = state.sessions.get_mut(&member.session) {
                session.invalid = true;
            }
            result = Err(error);
        }
        result
    })
}

/// Whether a legacy stream waits for another one.
fn is_awaited(legacy: &Stream, stream: &Stream) -> bool {
    std::ptr::eq(stream.context(), legacy.context())
        && stream.flags.load(Ordering::Relaxed) & CU_STREAM_NON_BLOCKING == 0
}

/// Whether a stream is a legacy one that waits for one that captures.
fn hides_capture(stream: &Stream) -> bool {
    std::ptr::eq(stream, stream.context().legacy)
        && with(|state| state.members.values().any(|member| is_awaited(stream, member.stream)))
}

/// Whether a stream captures its work.
///
/// # Errors
/// `STREAM_CAPTURE_IMPLICIT` for a legacy stream that waits for a capturing one, whose capture
/// becomes invalid.
#[inline]
pub fn captures(stream: &'static Stream) -> Result<bool, CuResult> {
    if SESSIONS.load(Ordering::Acquire) > 0 && std::ptr::eq(stream, stream.context().legacy) {
        refuse_members(CuResult::STREAM_CAPTURE_IMPLICIT, |member| is_awaited(stream, member))?;
    }
    Ok(stream.capturing.load(Ordering::Relaxed))
}

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

    /// Ends a session: its streams execute again.
    fn end(&mut self, session: u64) -> Option<Session> {
        self.members.retain(|_, member| {
            let leaves = member.session == session;
            if leaves {
                member.stream.capturing.store(false, Ordering::Release);
            }
            !leaves
        });
        self.events.retain(|_, (owner, _)| *owner != session);
        let ended = self.sessions.remove(&session);
        SESSIONS.store(self.sessions.len(), Ordering::Release);
        ended
    }

    /// A valid capture.
    fn valid(&self, session: u64) -> Result<&Session, CuResult> {
        let session = self.sessions.get(&session).ok_or(CuResult::ILLEGAL_STATE)?;
        if session.invalid { Err(CuResult::STREAM_CAPTURE_INVALIDATED) } else { Ok(session) }
    }

    fn invalidate(&mut self, session: u64) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.invalid = true;
        }
    }

    fn add(&mut self, stream: &Stream, kind: NodeKind) -> Result<(), CuResult> {
        let (session, after) = {
            let member = self.member(stream)?;
            (member.session, member.after.clone())
        };
        let node = graph::add(self.valid(session)?.graph, &after, kind)?;
        self.member(stream)?.after = vec![node];
        Ok(())
    }
}

/// Adds a node to a stream's capture.
fn add(stream: &Stream, kind: NodeKind) -> Result<(), CuResult> {
    with(|state| state.add(stream, kind))
}

/// Drops a capture, because its stream is destroyed.
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

/// Drops the captured recording of an event, because it is destroyed.
pub fn forget_event(event: &'static Event) {
    if event.captured.load(Ordering::Relaxed) {
        with(|state| state.events.remove(&key(event)));
    }
}

/// Refuses to wait for a capturing stream, and makes its capture invalid; and for any other where
/// captures forbid it.
///
/// # Errors
/// `STREAM_CAPTURE_UNSUPPORTED` when it captures or captures forbid it, and those of [`captures`].
#[inline]
pub fn refuse_sync(stream: &'static Stream) -> Result<(), CuResult> {
    refuse_captured(stream)?;
    refuse_unsafe()
}

/// Refuses to query a captured event, and invalidates its capture; and any other event while
/// captures forbid it.
///
/// # Errors
/// `CAPTURED_EVENT` for an event of an active capture, `INVALID_VALUE` for one whose capture has
/// become invalid or has ended, and those of [`refuse_unsafe`].
pub fn refuse_event(event: &'static Event) -> Result<(), CuResult> {
    if !event.captured.load(Ordering::Relaxed) {
        return refuse_unsafe();
    }
    with(|state| {
        let session = state.events.get(&key(event)).map(|(session, _)| *session);
        let session =
            session.filter(|session| state.valid(*session).is_ok()).ok_or(CuResult::INVALID_VALUE)?;
        state.invalidate(session);
        Err(CuResult::CAPTURED_EVENT)
    })
}

/// Makes a stream's capture invalid.
pub fn invalidate(stream: &'static Stream) {
    with(|state| {
        if let Some(session) = state.members.get(&id(stream)).map(|member| member.session) {
            state.invalidate(session);
        }
    });
}

/// Records an event in a capturing stream: a point to wait for, or a node when it is to happen
/// outside.
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
        state.valid(point.0)?;
        event.captured.store(true, Ordering::Release);
        state.events.insert(key(event), point);
        Ok(())
    })
}

/// Makes a stream wait for an event where one of the two belongs to a capture.
///
/// # Errors
/// `STREAM_CAPTURE_ISOLATION` when a capturing stream is to wait for an event that was not
/// captured, `STREAM_CAPTURE_MERGE` when the two belong to different captures.
pub fn wait_event(stream: &'static Stream, event: &'static Event, external: bool) -> Result<(), CuResult> {
    if external && stream.capturing.load(Ordering::Relaxed) {
        return add(stream, NodeKind::Wait(event));
    }
    let point = with(|state| state.events.get(&key(event)).cloned());
    let capturing = stream.capturing.load(Ordering::Relaxed);
    match point.filter(|_| event.captured.load(Ordering::Relaxed)) {
        Some((session, after)) => with(|state| {
            if !capturing {
                state.valid(session).map_err(|_| CuResult::INVALID_VALUE)?;
                state.join(stream, session, after);
                return Ok(());
            }
            let own = state.member(stream)?.session;
            state.valid(own)?;
            if own != session {
                state.invalidate(own);
                state.invalidate(session);
                return Err(CuResult::STREAM_CAPTURE_MERGE);
            }
            let member = state.member(stream)?;
            for node in after {
                if !member.after.contains(&node) {
                    member.after.push(node);
                }
            }
            Ok(())
        }),
        None if capturing => with(|state| {
            let own = state.member(stream)?.session;
            state.valid(own)?;
            // There is nothing to wait for.
            if !event.captured.load(Ordering::Relaxed) && event.recorded()?.is_none() {
                return Ok(());
            }
            state.invalidate(own);
            Err(CuResult::STREAM_CAPTURE_ISOLATION)
        }),
        // The capture that the event belonged to has ended.
        None => Err(CuResult::INVALID_VALUE),
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

/// Refuses work that a capturing stream cannot take, and invalidates the capture.
///
/// # Errors
/// `STREAM_CAPTURE_UNSUPPORTED`, and those of [`captures`].
pub fn refuse_captured(stream: &'static Stream) -> Result<(), CuResult> {
    if !captures(stream)? {
        return Ok(());
    }
    invalidate(stream);
    Err(CuResult::STREAM_CAPTURE_UNSUPPORTED)
}

/// Captures an allocation, which has been made.
///
/// # Errors
/// Those of adding a node.
pub fn add_alloc(stream: &'static Stream, memory: std::sync::Arc<GraphMemory>) -> Result<(), CuResult> {
    add(stream, NodeKind::Alloc(memory))
}

/// Captures a free. The memory stays with the graph, which may be launched again.
///
/// # Errors
/// Those of adding a node.
pub fn add_free(stream: &'static Stream, address: u64) -> Result<(), CuResult> {
    let graph = with(|state| {
        let session = state.member(stream)?.session;
        Ok(state.valid(session)?.graph)
    })?;
    graph::check_free(graph, address)?;
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
        let new = Session { graph, origin: id(stream), mode, thread: thread(), invalid: false, foreign };
        state.sessions.insert(session, new);
        SESSIONS.store(state.sessions.len(), Ordering::Release);
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
    captures(stream)?;
    with(|state| {
        let (session, own) = {
            let member = state.member(stream)?;
            (member.session, member.after.clone())
        };
        let found = state.sessions.get(&session).ok_or(CuResult::ILLEGAL_STATE)?;
        if found.origin != id(stream) {
            state.invalidate(session);
            return Err(CuResult::STREAM_CAPTURE_UNMATCHED);
        }
        let elsewhere = found.mode != CU_STREAM_CAPTURE_MODE_RELAXED && found.thread != thread();
        let joined = ancestry(&own);
        let unjoined = state
            .members
            .values()
            .any(|other| other.session == session && other.after.iter().any(|node| !joined.contains(node)));
        let ended = state.end(session).ok_or(CuResult::ILLEGAL_STATE)?;
        let error = if ended.invalid {
            CuResult::STREAM_CAPTURE_INVALIDATED
        } else if unjoined {
            CuResult::STREAM_CAPTURE_UNJOINED
        } else if elsewhere {
            CuResult::STREAM_CAPTURE_WRONG_THREAD
        } else {
            return Ok(ended.graph);
        };
        // So does a graph that was there before.
        let _ = graph::destroy(ended.graph);
        Err(error)
    })
}

/// The answer to a program's query of a capture.
pub(super) struct Info {
    /// `CU_STREAM_CAPTURE_STATUS_*`.
    pub status: u32,
    /// The capture's number.
    pub session: u64,
    /// The graph's handle.
    pub graph: usize,
    /// The dependencies of the next node.
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
    if hides_capture(stream) {
        return Err(CuResult::STREAM_CAPTURE_IMPLICIT);
    }
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

/// Adds to or replaces the dependencies of a capturing stream's next node.
pub(super) fn set_after(stream: &'static Stream, nodes: &[CUgraphNode], flags: u32) -> Result<(), CuResult> {
    let nodes: Vec<usize> = nodes.iter().map(|node| node.addr()).collect();
    with(|state| {
        let session = state.member(stream)?.session;
        state.valid(session)?;
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
