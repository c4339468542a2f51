//! The values of a tenant's limits, in `run` and in `set`.

use clap::ValueEnum;

/// `--place`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlaceArg {
    /// In as few GPCs as possible: allows the largest clusters and leaves whole GPCs free for
    /// others
    Packed,
    /// Evenly over as many GPCs as possible
    Spread,
}

/// `--priority`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PriorityArg {
    /// Makes tenants of low priority wait while it has work in flight
    High,
    /// Neither makes others wait nor waits
    Normal,
    /// Waits while a tenant of high priority has work in flight
    Low,
}

/// `--time-policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TimePolicyArg {
    /// The share is a limit, even while no other tenant uses the GPU
    Hard,
    /// The tenant may use time that no other tenant of the GPU needs; it gives it back within 100
    /// ms
    Soft,
}

/// `--via`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ViaArg {
    /// The best method that works here
    Auto,
    /// Masks in the launch descriptors
    Mask,
    /// Green contexts
    Green,
    /// Thread percentages of MPS
    Mps,
    /// A share of time or a priority alone: tenants take turns on the whole GPU, without a
    /// partition
    Time,
    /// Kernels rewritten into persistent blocks
    Persistent,
}

/// `--isolation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IsolationArg {
    /// At the same time as other tenants
    Shared,
    /// In turns with other tenants
    Own,
}

/// `--spill`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SpillArg {
    /// They fail, as on a full GPU
    None,
    /// They get host memory that the GPU accesses over the bus
    Host,
}

/// `--on-misfit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnMisfitArg {
    /// They get the CUDA error at the call
    Error,
    /// They run on the whole GPU, with a warning and a count
    Widen,
}

/// `--sm-count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SmCountArg {
    /// The GPU's
    Device,
    /// The partition's, for programs that size a cooperative grid by it
    Partition,
}

/// `--restart`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RestartArg {
    /// Never
    Never,
    /// When a neighbour's fault or violent end destroyed the program's work on the GPU
    OnNeighbourFault,
}
