//! Experiments on GPU scheduling: described once, run on the model and on a GPU.
//!
//! A configuration in the dialect of cuda_scheduling_examiner ([`dialect`]) names benchmarks: which
//! kernels, how large, when, where. The same [`program`] of each benchmark runs on the [`model`]
//! and on a device; both give a [`log::Record`]. The paper's figures and tables are
//! [`experiment`]s: configurations, the paper's results, and a verdict computed from the records.
#![forbid(unsafe_code)]

pub mod chains;
pub mod compare;
pub mod costs;
pub mod dialect;
pub mod experiment;
pub mod gpu;
pub mod log;
pub mod machine;
pub mod model;
pub mod page;
pub mod place;
pub mod plot;
pub mod program;
pub mod recorded;
pub mod report;
