//! The engine: groups, streams, works, and the passing of time.

use core::fmt;

use crate::never::NeverRuns;
use crate::spec::DeviceSpec;
use crate::work::{GroupId, GroupKind, QueueId, StreamId, Work, WorkId};
use crate::{BlockRecord, Event, Time};

/// A handle that names nothing in this engine, or something already removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownHandle;

impl fmt::Display for UnknownHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the handle names nothing in this engine, or something already removed")
    }
}

impl core::error::Error for UnknownHandle {}

/// Why a work was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// The stream does not exist or was removed.
    UnknownStream,
    /// A launch without blocks or without threads.
    EmptyLaunch,
    /// More threads in a block than the device allows.
    TooManyThreads {
        /// Threads asked for.
        threads_per_block: u32,
        /// Threads allowed.
        max: u32,
    },
    /// The grid is no multiple of the cluster, or the cluster is of no blocks.
    BadCluster {
        /// Blocks of the grid.
        grid_blocks: u64,
        /// Blocks of a cluster.
        cluster_blocks: u32,
    },
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
                write!(f, "a grid of {grid_blocks} blocks is no whole number of clusters of {cluster_blocks}")
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
    /// On which stream; everything behind it there waits as well.
    pub stream: StreamId,
    /// Why.
    pub reason: NeverRuns,
}

/// Counters since the engine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Works submitted.
    pub works_submitted: u64,
    /// Works completed.
    pub works_done: u64,
    /// Blocks placed on SMs.
    pub blocks_started: u64,
    /// Blocks that ran to their end.
    pub blocks_done: u64,
    /// Rounds of the work distributor.
    pub rounds: u64,
    /// Turns from one group to another.
    pub switches: u64,
    /// Kernels that lost their task slot to a more urgent one.
    pub evictions: u64,
}

/// The model of one device.
///
/// All methods act at [`Self::now`]; only [`Self::advance`] moves it. Work submitted at one instant is dispatched
/// when time is advanced to that instant or past it.
#[derive(Clone, Debug)]
pub struct Engine {
    spec: DeviceSpec,
    now: Time,
}

impl Engine {
    /// An idle device. `seed` decides what the model leaves to chance: the jitter of kernels that ask for it.
    #[must_use]
    pub fn new(spec: &DeviceSpec, seed: u64) -> Self {
        let _ = seed;
        Self { spec: spec.clone(), now: 0 }
    }

    /// The device.
    #[must_use]
    pub fn spec(&self) -> &DeviceSpec {
        &self.spec
    }

    /// The present, in nanoseconds since the engine was made.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// Adds a time-slice group: all its streams' kernels may run at the same time; groups take turns.
    pub fn add_group(&mut self, kind: GroupKind) -> GroupId {
        let _ = kind;
        todo!()
    }

    /// Removes a group with its queues, streams and works, running blocks included: the end of a process.
    ///
    /// # Errors
    /// No such group.
    pub fn remove_group(&mut self, group: GroupId) -> Result<(), UnknownHandle> {
        let _ = group;
        todo!()
    }

    /// Adds a hardware queue, for streams that shall share one.
    ///
    /// A process has as many as its `CUDA_DEVICE_MAX_CONNECTIONS` says and deals its streams to them; works of streams
    /// on one queue leave it in the order of submission, so one that waits holds up the others (false dependence).
    ///
    /// # Errors
    /// No such group.
    pub fn add_queue(&mut self, group: GroupId) -> Result<QueueId, UnknownHandle> {
        let _ = group;
        todo!()
    }

    /// Adds a stream with a hardware queue of its own. Priorities as in CUDA: lower numbers are more urgent.
    ///
    /// # Errors
    /// No such group.
    pub fn add_stream(&mut self, group: GroupId, priority: i32) -> Result<StreamId, UnknownHandle> {
        let _ = (group, priority);
        todo!()
    }

    /// Adds a stream to a hardware queue.
    ///
    /// # Errors
    /// No such queue.
    pub fn add_stream_on(&mut self, queue: QueueId, priority: i32) -> Result<StreamId, UnknownHandle> {
        let _ = (queue, priority);
        todo!()
    }

    /// Removes a stream once what was submitted to it has completed; it takes no more works (`cuStreamDestroy`).
    ///
    /// # Errors
    /// No such stream.
    pub fn remove_stream(&mut self, stream: StreamId) -> Result<(), UnknownHandle> {
        let _ = stream;
        todo!()
    }

    /// Removes a stream with its works, running blocks included: the end of a client of an MPS server.
    ///
    /// Each work discarded is reported as [`crate::EventKind::WorkKilled`]; works that waited on one go on.
    ///
    /// # Errors
    /// No such stream.
    pub fn kill_stream(&mut self, stream: StreamId) -> Result<(), UnknownHandle> {
        let _ = stream;
        todo!()
    }

    /// Appends a work to a stream.
    ///
    /// # Errors
    /// A stream that is not there, or a launch that no device would take. A launch that can merely never be
    /// dispatched is taken, as hardware takes it, and shows up in [`Self::stuck`].
    pub fn submit(&mut self, stream: StreamId, work: impl Into<Work>) -> Result<WorkId, SubmitError> {
        let _ = (stream, work.into());
        todo!()
    }

    /// Ends an external operation that has started.
    ///
    /// # Errors
    /// No such work, not external, or not started yet.
    pub fn complete(&mut self, work: WorkId) -> Result<(), UnknownHandle> {
        let _ = work;
        todo!()
    }

    /// When something happens next, if nothing is submitted meanwhile; not after [`Self::now`] if [`Self::advance`]
    /// has events to hand out already. `None`: nothing ever will, though works may be [`Self::stuck`] or external.
    #[must_use]
    pub fn next_event(&self) -> Option<Time> {
        todo!()
    }

    /// Lets time pass up to and including `until` and returns what happened, in order. A time in the past is taken
    /// as the present.
    pub fn advance(&mut self, until: Time) -> Vec<Event> {
        let mut events = Vec::new();
        self.advance_into(until, &mut events);
        events
    }

    /// As [`Self::advance`], appending to `events`.
    pub fn advance_into(&mut self, until: Time, events: &mut Vec<Event>) {
        let _ = (until, events);
        todo!()
    }

    /// Whether a work has ended: completed or killed. Unknown works are taken to have ended long ago.
    #[must_use]
    pub fn is_done(&self, work: WorkId) -> bool {
        let _ = work;
        todo!()
    }

    /// Works of a stream that have not ended; `None` if there is no such stream.
    #[must_use]
    pub fn pending(&self, stream: StreamId) -> Option<usize> {
        let _ = stream;
        todo!()
    }

    /// The block records of a completed kernel that asked for them, in order of block number; the engine forgets
    /// them. They are kept until taken or until the stream is gone.
    pub fn take_blocks(&mut self, work: WorkId) -> Option<Vec<BlockRecord>> {
        let _ = work;
        todo!()
    }

    /// All launches that have reached the device and can never be dispatched.
    #[must_use]
    pub fn stuck(&self) -> Vec<Stuck> {
        todo!()
    }

    /// Counters since the engine was made.
    #[must_use]
    pub fn stats(&self) -> Stats {
        todo!()
    }
}
