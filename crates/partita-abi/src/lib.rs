//! NVIDIA's constants and layouts, in one place.
//!
//! Everything here is a number, a name or a byte layout that a driver defines and that Partita must
//! agree with: result codes, C types, attributes, the layouts of launch descriptors (QMD), the
//! debug callback, the known stream structures, the names under which libcuda exports each version
//! of a call, its prototypes, and the device code of the kernels that this project launches itself.
//!
//! The crate contains only data and pure functions. The driver access, the hook and the simulator
//! all use it, so they cannot disagree. The documentation of each number names its source.
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

#[cfg(test)]
extern crate std;

pub mod attribute;
pub mod callback;
pub mod control;
pub mod exports;
pub mod kernels;
pub mod prototypes;
#[cfg(test)]
mod ptx;
pub mod qmd;
pub mod result;
pub mod stages;
pub mod stream;
pub mod types;
pub mod versions;
pub mod workloads;

pub use result::CuResult;
