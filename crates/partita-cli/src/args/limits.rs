//! The values that limits of a tenant take, in `run` and in `set`.

use clap::ValueEnum;

/// `--place`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlaceArg {
    /// In as few GPCs as possible: largest clusters, and whole GPCs stay free for others
    Packed,
    /// Evenly over as many GPCs as possible
    Spread,
}

/// `--priority`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PriorityArg {
    /// Holds tenants of low priority while it has work in flight
    High,
    /// Neither holds others nor is held
    Normal,
    /// Waits while a tenant of high priority has work in flight
    Low,
}

/// `--time-policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TimePolicyArg {
    /// The share is a limit, even while nobody else wants the GPU
    Hard,
    /// It may use what no other tenant of the GPU wants, and gives it back within 100 ms
    Soft,
}

/// `--via`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ViaArg {
    /// The best that works here
    Auto,
    /// Masks in the launch descriptors
    Mask,
    /// Green contexts
    Green,
    /// Thread percentages of MPS
    Mps,
    /// A share of time or a priority alone: the whole GPU in turns, without a partition
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
    /// They fail, as on a full device
    None,
    /// They get host memory that the device reaches over the bus
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
    /// The device's
    Device,
    /// The partition's, as programs need that size a cooperative grid by it
    Partition,
}

/// `--restart`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RestartArg {
    /// Never
    Never,
    /// When a fault that a neighbour caused, or its violent end, took the program's work on the GPU
    OnNeighbourFault,
}
