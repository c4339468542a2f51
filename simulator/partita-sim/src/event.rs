//! What the engine reports.

use crate::{GroupId, Time, WorkId};

/// Something that happened, at its simulated time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, in nanoseconds since the engine was made.
    pub time: Time,
    /// What.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A work began: a kernel's first block was placed, a copy got its engine, an external
    /// operation is due.
    WorkStarted {
        /// Which.
        work: WorkId,
    },
    /// A work completed; those behind it on its stream may begin.
    WorkDone {
        /// Which.
        work: WorkId,
    },
    /// A work was discarded with its stream or group; it will never complete.
    WorkKilled {
        /// Which.
        work: WorkId,
    },
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
