//! Messages between a scenario's processes: lines of JSON.

use partita::calibration::Measured;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::log::HostRecord;

/// A child's line: all its benchmarks have their memory and code, and are warm.
pub(super) const READY: &str = "partita-bench-ready";
/// A child's line: its benchmark waits for the others.
pub(super) const AT_BARRIER: &str = "partita-bench-barrier";

/// The first line to a child.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// The whole configuration: places depend on the other benchmarks.
    pub config: Value,
    /// Those of its benchmarks that the child runs.
    pub members: Vec<usize>,
    /// How masks are written on this board.
    pub measured: Measured,
    /// Whether barriers are this process's or are met through the parent.
    pub is_one_of_several: bool,
}

/// A later line to a child. When there are no more, it stops after its iteration.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Word {
    /// Start.
    Begin {
        /// At this time of the monotonic clock.
        begin_ns: u64,
    },
    /// All are at the barrier.
    Go,
}

/// The record of a child. Host times are the monotonic clock's, times of kernels and blocks the
/// GPU's clock's.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Told {
    /// Its benchmarks by their place in the configuration.
    pub hosts: Vec<(usize, HostRecord)>,
    /// The offset from the GPU's clock to the monotonic clock, in nanoseconds: at most this, and
    /// hardly less.
    pub clock_offset_ns: i64,
}
