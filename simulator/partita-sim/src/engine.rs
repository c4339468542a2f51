//! The engine: groups, streams, works, and the passing of time.

mod host;
mod progress;
mod turn;

use core::fmt;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

#[cfg(doc)]
use crate::EventKind;
use crate::arena::Arena;
use crate::bandwidth::Dram;
use crate::copy::CopyEngines;
use crate::group::{Group, Notice};
use crate::layout::Layout;
use crate::never::NeverRuns;
use crate::spec::DeviceSpec;
use crate::work::{GroupId, GroupKind, QueueId, StreamId, Work, WorkId};
use crate::{BlockRecord, Event, Stats, Time};
use host::{HostQueue, Pending, Stream};
use turn::Turn;

/// A handle that is unknown to this engine, or already removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownHandle;

impl fmt::Display for UnknownHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the handle is unknown to this engine, or already removed")
    }
}

impl core::error::Error for UnknownHandle {}

/// Why a work was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// The stream does not exist or was removed.
    UnknownStream,
    /// A launch without blocks or without threads.
    EmptyLaunch,
    /// More threads in a block than the device allows.
    TooManyThreads {
        /// Requested threads.
        threads_per_block: u32,
        /// Allowed threads.
        max: u32,
    },
    /// The grid is not a multiple of the cluster, or the cluster has no blocks.
    BadCluster { grid_blocks: u64, cluster_blocks: u32 },
    /// Jitter of a thousand thousandths or more.
    BadJitter,
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownStream => f.write_str("the stream does not exist or was removed"),
            Self::EmptyLaunch => f.write_str("a launch needs at least one block and one thread"),
            Self::TooManyThreads { threads_per_block, max } => {
                write!(f, "{threads_per_block} threads in a block, the device allows {max}")
            }
            Self::BadCluster { grid_blocks, cluster_blocks } => {
                write!(
                    f,
                    "a grid of {grid_blocks} blocks is not a whole number of clusters of {cluster_blocks}"
                )
            }
            Self::BadJitter => f.write_str("jitter must be below 1000 thousandths"),
        }
    }
}

impl core::error::Error for SubmitError {}

/// A launch that will never be dispatched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Which launch.
    pub work: WorkId,
    /// On which stream; later works there wait as well.
    pub stream: StreamId,
    /// Why.
    pub reason: NeverRuns,
}

/// The model of one device.
///
/// All methods act at [`Self::now`]; only [`Self::advance`] moves it. Immediate effects of a call
/// (a marker that is reached, say) are returned by the next [`Self::advance`], as events of the
/// present.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) spec: DeviceSpec,
    pub(crate) layout: Layout,
    pub(crate) seed: u64,
    pub(crate) dram: Dram,
    pub(crate) now: Time,
    pub(crate) turn: Turn,
    pub(crate) groups: Arena<GroupEntry>,
    /// Groups in order of creation.
    pub(crate) order: Vec<u64>,
    pub(crate) queues: Arena<HostQueue>,
    pub(crate) streams: Arena<Stream>,
    pub(crate) works: Arena<Pending>,
    pub(crate) copies: CopyEngines,
    /// Ends and arrivals at fixed times: `(due, order of setting, work)`.
    pub(crate) timers: BinaryHeap<Reverse<(Time, u64, u64)>>,
    pub(crate) timer_count: u64,
    /// Queues whose first work may have become ready.
    pub(crate) to_pump: VecDeque<u64>,
    /// Events not returned yet.
    pub(crate) events: Vec<Event>,
    pub(crate) notices: Vec<Notice>,
    /// Block records not taken yet, with their group.
    pub(crate) records: BTreeMap<u64, (u64, Vec<BlockRecord>)>,
    pub(crate) stats: Stats,
    /// What passed through DRAM, in bytes per millisecond times nanoseconds.
    pub(crate) traffic: u128,
}

/// A group and its streams.
#[derive(Clone, Debug)]
pub(crate) struct GroupEntry {
    pub(crate) kind: GroupKind,
    pub(crate) group: Group,
    /// Its slice in nanoseconds, if different from the device's.
    pub(crate) slice_ns: Option<Time>,
    pub(crate) streams: Vec<u64>,
    pub(crate) queues: Vec<u64>,
}

impl Engine {
    /// An idle device. `seed` determines random choices of the model: the jitter of kernels that
    /// request it.
    ///
    /// # Panics
    /// A device of more than 512 SMs or 64 GPCs.
    #[must_use]
    pub fn new(spec: &DeviceSpec, seed: u64) -> Self {
        Self {
            spec: spec.clone(),
            layout: Layout::new(&spec.topology),
            seed,
            dram: Dram::new(&spec.memory),
            now: 0,
            turn: Turn::Idle,
            groups: Arena::default(),
            order: Vec::new(),
            queues: Arena::default(),
            streams: Arena::default(),
            works: Arena::default(),
            copies: CopyEngines::new(spec.copy),
            timers: BinaryHeap::new(),
            timer_count: 0,
            to_pump: VecDeque::new(),
            events: Vec::new(),
            notices: Vec::new(),
            records: BTreeMap::new(),
            stats: Stats::default(),
            traffic: 0,
        }
    }

    #[must_use]
    pub fn spec(&self) -> &DeviceSpec {
        &self.spec
    }

    /// The present, in nanoseconds since the engine was made.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// Adds a time-slice group: all its streams' kernels may run at the same time; groups take
    /// turns.
    pub fn add_group(&mut self, kind: GroupKind) -> GroupId {
        let group = Group::new(&self.spec, &self.layout);
        let entry = GroupEntry { kind, group, slice_ns: None, streams: Vec::new(), queues: Vec::new() };
        let handle = self.groups.insert(entry);
        self.order.push(handle);
        GroupId(handle)
    }

    /// The meaning of a group; `None` if there is no such group.
    #[must_use]
    pub fn group_kind(&self, group: GroupId) -> Option<GroupKind> {
        Some(self.groups.get(group.0)?.kind)
    }

    /// Sets how long a group runs before a waiting one has its turn, in nanoseconds; `None` for the
    /// device's slice. Its present slice keeps its end.
    ///
    /// # Errors
    /// No such group.
    pub fn set_slice(&mut self, group: GroupId, slice_ns: Option<Time>) -> Result<(), UnknownHandle> {
        self.groups.get_mut(group.0).ok_or(UnknownHandle)?.slice_ns = slice_ns;
        Ok(())
    }

    /// Removes a group with its queues, streams and works, including running blocks: the end of a
    /// process.
    ///
    /// Each discarded work is reported as [`EventKind::WorkKilled`]; block records that were not
    /// fetched are dropped.
    ///
    /// # Errors
    /// No such group.
    pub fn remove_group(&mut self, group: GroupId) -> Result<(), UnknownHandle> {
        let entry = self.groups.get(group.0).ok_or(UnknownHandle)?;
        let queues = entry.queues.clone();
        for stream in entry.streams.clone() {
            self.discard_stream(stream);
        }
        for queue in queues {
            self.queues.remove(queue);
        }
        self.groups.remove(group.0);
        self.order.retain(|&other| other != group.0);
        self.records.retain(|_, (owner, _)| *owner != group.0);
        self.after_removal();
        Ok(())
    }

    /// Adds a hardware queue, for streams that share one.
    ///
    /// [`crate::Connections`] assigns a process's streams to its queues; works of streams on one
    /// queue leave it in the order of submission, so a waiting one delays the others (false
    /// dependence).
    ///
    /// # Errors
    /// No such group.
    pub fn add_queue(&mut self, group: GroupId) -> Result<QueueId, UnknownHandle> {
        self.new_queue(group, false).map(QueueId)
    }

    /// Removes a hardware queue with its streams and their works, as [`Self::kill_stream`] does.
    ///
    /// # Errors
    /// No such queue.
    pub fn remove_queue(&mut self, queue: QueueId) -> Result<(), UnknownHandle> {
        let state = self.queues.get(queue.0).ok_or(UnknownHandle)?;
        let group = state.group;
        for stream in state.streams.clone() {
            self.discard_stream(stream);
        }
        self.queues.remove(queue.0);
        if let Some(entry) = self.groups.get_mut(group) {
            entry.queues.retain(|&other| other != queue.0);
        }
        self.after_removal();
        Ok(())
    }

    /// Adds a stream with a separate hardware queue. Priorities as in CUDA: lower numbers are more
    /// urgent.
    ///
    /// # Errors
    /// No such group.
    pub fn add_stream(&mut self, group: GroupId, priority: i32) -> Result<StreamId, UnknownHandle> {
        let queue = self.new_queue(group, true)?;
        self.add_stream_on(QueueId(queue), priority)
    }

    /// Adds a stream to a hardware queue.
    ///
    /// # Errors
    /// No such queue.
    pub fn add_stream_on(&mut self, queue: QueueId, priority: i32) -> Result<StreamId, UnknownHandle> {
        let state = self.queues.get_mut(queue.0).ok_or(UnknownHandle)?;
        let group = state.group;
        let stream = self.streams.insert(Stream {
            group,
            queue: queue.0,
            priority,
            busy: false,
            works: VecDeque::new(),
            closing: false,
        });
        state.streams.push(stream);
        self.groups.get_mut(group).expect("a queue's group is there").streams.push(stream);
        Ok(StreamId(stream))
    }

    /// Removes a stream once its works have completed; it accepts no more works
    /// (`cuStreamDestroy`).
    ///
    /// # Errors
    /// No such stream.
    pub fn remove_stream(&mut self, stream: StreamId) -> Result<(), UnknownHandle> {
        let state = self.streams.get_mut(stream.0).filter(|stream| !stream.closing).ok_or(UnknownHandle)?;
        state.closing = true;
        if state.works.is_empty() {
            self.forget_stream(stream.0);
        }
        Ok(())
    }

    /// Removes a stream with its works, including running blocks: the end of a client of an MPS
    /// server.
    ///
    /// Each discarded work is reported as [`EventKind::WorkKilled`]; works that waited on one
    /// continue.
    ///
    /// # Errors
    /// No such stream.
    pub fn kill_stream(&mut self, stream: StreamId) -> Result<(), UnknownHandle> {
        self.streams.get(stream.0).ok_or(UnknownHandle)?;
        self.discard_stream(stream.0);
        self.after_removal();
        Ok(())
    }

    /// Appends a work to a stream.
    ///
    /// # Errors
    /// A missing stream, or a launch that no device accepts. A launch that can only never be
    /// dispatched is accepted, as by hardware, and appears in [`Self::stuck`].
    pub fn submit(&mut self, stream: StreamId, work: impl Into<Work>) -> Result<WorkId, SubmitError> {
        self.submit_work(stream, work.into())
    }

    /// Ends an external operation that has started.
    ///
    /// # Errors
    /// No such work, not external, or not started yet.
    pub fn complete(&mut self, work: WorkId) -> Result<(), UnknownHandle> {
        self.complete_external(work)
    }

    /// Ends a block of an open kernel, `length_ns` after its first instruction, or now if that is
    /// past. The time in which its group does not run does not count.
    ///
    /// # Errors
    /// No such block, or it has an end already.
    pub fn end_block(&mut self, work: WorkId, block: u64, length_ns: Time) -> Result<(), UnknownHandle> {
        self.end_open_block(work, block, length_ns)
    }

    /// Whether a group has its turn.
    #[must_use]
    pub fn is_running(&self, group: GroupId) -> bool {
        self.running() == Some(group.0)
    }

    /// The time of the next event without further submissions; not after [`Self::now`] if
    /// [`Self::advance`] already has events to return. `None`: there will be no event, though works
    /// may be [`Self::stuck`] or external.
    #[must_use]
    pub fn next_event(&self) -> Option<Time> {
        if self.events.is_empty() { self.next_internal() } else { Some(self.now) }
    }

    /// Lets time pass up to and including `until` and returns the events, in order. A time in the
    /// past counts as the present, one beyond 2^62 ns (146 years) as that limit.
    pub fn advance(&mut self, until: Time) -> Vec<Event> {
        let mut events = Vec::new();
        self.advance_into(until, &mut events);
        events
    }

    /// As [`Self::advance`], appending to `events`.
    pub fn advance_into(&mut self, until: Time, events: &mut Vec<Event>) {
        self.progress(until);
        events.append(&mut self.events);
    }

    /// Lets time pass until there are no more events, and returns them. Works may remain: stuck
    /// ones, external ones, later ones on their streams, and blocks that never end.
    pub fn run_to_end(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(next) = self.next_event() {
            self.advance_into(next, &mut events);
        }
        events
    }

    /// Whether a work has ended: completed or killed. Unknown works count as ended long ago.
    #[must_use]
    pub fn is_done(&self, work: WorkId) -> bool {
        self.works.get(work.0).is_none()
    }

    /// Works of a stream that have not ended; `None` if there is no such stream.
    #[must_use]
    pub fn pending(&self, stream: StreamId) -> Option<usize> {
        Some(self.streams.get(stream.0)?.works.len())
    }

    /// The block records of a completed kernel that requested them, in order of block number; the
    /// engine then drops them. They are stored until fetched or until the group is gone.
    pub fn take_blocks(&mut self, work: WorkId) -> Option<Vec<BlockRecord>> {
        Some(self.records.remove(&work.0)?.1)
    }

    /// All launches that have reached the device and can never be dispatched, by handle.
    #[must_use]
    pub fn stuck(&self) -> Vec<Stuck> {
        let mut stuck: Vec<Stuck> = self
            .groups
            .iter()
            .flat_map(|(_, entry)| entry.group.stuck())
            .map(|(work, reason)| {
                let stream = self.works.get(work).expect("a kernel at the device has not ended").stream;
                Stuck { work: WorkId(work), stream: StreamId(stream), reason }
            })
            .collect();
        stuck.sort_unstable_by_key(|stuck| stuck.work);
        stuck
    }

    /// Counters since the engine was made.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// For how long DRAM would have carried all traffic until now at its capacity, in nanoseconds.
    #[must_use]
    pub fn memory_busy_ns(&self) -> Time {
        self.dram.busy_ns(self.traffic)
    }

    fn new_queue(&mut self, group: GroupId, private: bool) -> Result<u64, UnknownHandle> {
        let entry = self.groups.get_mut(group.0).ok_or(UnknownHandle)?;
        let queue = HostQueue { group: group.0, private, ..HostQueue::default() };
        let handle = self.queues.insert(queue);
        if !private {
            entry.queues.push(handle);
        }
        Ok(handle)
    }

    fn after_removal(&mut self) {
        self.pump();
        self.take_turns();
    }
}
