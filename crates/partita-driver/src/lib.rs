//! The CUDA driver, loaded at run time, and what Partita proves about it.
//!
//! [`Cuda`] is libcuda with one entry a call; [`Gpu`] runs the few kernels that Partita knows;
//! [`callback`] is the driver's launch callback, through which masks enter launch descriptors;
//! [`probe()`] finds and proves what the bits of a mask mean on one board.
//!
//! The crate needs no CUDA toolkit, neither to build nor to run, and no `std`: the part that masks
//! launches is linked into the hook in the tenant's process.
#![no_std]
#![deny(missing_docs)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod affinity;
mod alone;
pub mod callback;
mod census;
pub mod control;
mod copies;
mod cuda;
mod current;
mod error;
pub mod files;
mod gpu;
pub mod green;
mod heap;
mod host_buffer;
pub mod ipc;
pub mod kept;
mod launch_mask;
mod library;
mod masked_stream;
pub mod mechanism;
pub mod mig;
pub mod numerics;
mod probe;
mod process_masks;
pub mod prove;
mod spin_graph;
mod stages;
mod stream;
mod stream_mask;
pub mod stream_proof;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod stream_trace;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
#[path = "stream_untraced.rs"]
mod stream_trace;
mod subscribers;
mod task_slots;
mod time;
mod workload;

pub use affinity::AffinityContext;
pub use alone::Alone;
pub use census::{BlockRecord, Census};
pub use copies::Copies;
pub use cuda::Cuda;
pub use error::Error;
pub use gpu::{Buffer, Gpu, GpuFacts, Grid, KERNEL_DEADLINE_MS, Launch, Place};
pub use heap::LibcHeap;
pub use host_buffer::HostBuffer;
pub use launch_mask::LaunchMask;
pub use probe::{Probe, ProbedTpc, probe, probe_with, prove_gpcs, runs_clusters, sms_without_masks};
pub use process_masks::{PreparedMask, ProcessMasks, Scope};
pub use spin_graph::SpinGraph;
pub use stages::Stages;
pub use stream::{Stream, StreamRef};
pub use stream_mask::{FormerMask, StreamField, StreamMasks};
pub use task_slots::task_slots;
pub use time::now_ns;
pub use workload::{PreparedWork, WorkShape, Workload, Workloads};
