//! A discrete-event model of an NVIDIA GPU's scheduling pipeline, and its devices.
//!
//! The model is pure: it has no clock, no thread and no I/O, and equal inputs give equal outputs.
//! Time is a number of nanoseconds that the caller advances.
//!
//! ```
//! use partita_sim::{Engine, EventKind, GroupKind, KernelWork, catalogue};
//!
//! let spec = catalogue::device("sim:gtx1060-3gb")?;
//! let mut gpu = Engine::new(&spec, 0);
//! let group = gpu.add_group(GroupKind::Own);
//! let stream = gpu.add_stream(group, 0)?;
//! // 18 blocks of 1024 threads, two to an SM, on all nine SMs: one wave of 10 µs.
//! let kernel = gpu.submit(stream, KernelWork::new(18, 1024, 10_000, spec.topology.all()))?;
//! let events = gpu.advance(1_000_000);
//! assert_eq!(events.last().unwrap().kind, EventKind::WorkDone { work: kernel });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The path of a kernel: its stream ([`StreamId`]) passes it, in order, to the stream's hardware
//! queue; the host interface passes it to its group's task management unit, which has a list for
//! each priority; the work distributor holds as many kernels as it has task slots and places their
//! blocks on SMs, highest priority and oldest first, skipping a kernel that may not use the free
//! TPC. Groups take turns; the blocks of a group that does not run are frozen.
#![forbid(unsafe_code)]

mod arena;
mod bandwidth;
pub mod catalogue;
pub mod connections;
#[cfg(test)]
mod conservation;
mod contended;
mod control;
mod copy;
mod engine;
mod event;
mod group;
mod lanes;
mod layout;
mod never;
mod pipeline;
mod sm;
mod spec;
mod stats;
mod work;

pub use connections::Connections;
pub use control::{ControlSpec, TpcPlace};
pub use engine::{Engine, Stuck, SubmitError, UnknownHandle};
pub use event::{BlockRecord, Event, EventKind};
pub use never::{NeverRuns, SmResource};
pub use sm::Footprint;
pub use spec::{
    BoardSpec, ClockSpec, ComputeCapability, CopySpec, DeviceSpec, DriverSpec, MemorySpec, MigSpec,
    SchedulerSpec, SmSpec, StreamMaskLayout, StreamMaskSpec,
};
pub use stats::Stats;
pub use work::{CopyDirection, CopyWork, GroupId, GroupKind, KernelWork, QueueId, StreamId, Work, WorkId};

/// Simulated time, or a length of it, in nanoseconds.
pub type Time = u64;
