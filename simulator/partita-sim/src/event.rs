//! The engine's events.

use crate::{GroupId, Time, WorkId};

/// An event, at its simulated time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, in nanoseconds since the engine was made.
    pub time: Time,
    pub kind: EventKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A work started: a kernel's first block was placed, a copy got its engine, or an external
    /// operation is due.
    WorkStarted { work: WorkId },
    /// A block of an open kernel was placed ([`crate::KernelWork::open`]).
    BlockStarted {
        /// The kernel.
        work: WorkId,
        /// Linear index of the block in its grid.
        block: u64,
        /// The SM, as `%smid` shows it.
        sm: u32,
        /// Its first instruction, in nanoseconds since the engine was made.
        start_ns: Time,
    },
    /// A work completed; later ones on its stream may start.
    WorkDone { work: WorkId },
    /// A work was discarded with its stream or group; it will never complete.
    WorkKilled { work: WorkId },
    /// The compute engine turned to another group.
    GroupSwitched {
        /// The group that runs from now on.
        group: GroupId,
    },
}

/// Where and when one block ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRecord {
    /// Linear index of the block in its grid.
    pub block: u64,
    /// The SM, as `%smid` shows it.
    pub sm: u32,
    /// First instruction, in nanoseconds since the engine was made.
    pub start_ns: Time,
    /// Last instruction, in nanoseconds since the engine was made. Includes the time frozen while
    /// other groups ran.
    pub stop_ns: Time,
}
