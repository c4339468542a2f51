//! Counters of an engine.

/// Counters since the engine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
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
