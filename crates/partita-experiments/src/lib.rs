//! Experiments on how a GPU schedules: described once, run on the model and on a GPU.
//!
//! A configuration in the dialect of cuda_scheduling_examiner ([`dialect`]) names benchmarks: which kernels, how large, when, where.
#![forbid(unsafe_code)]

pub mod dialect;
