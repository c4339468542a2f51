//! Launches: what fits the partition, and the mask that each carries.

pub mod caller;
pub mod calls;
pub mod carried;
pub mod counter;
pub mod fast_path;
pub mod functions;
pub mod green;
pub mod mask;
pub mod misfit;
pub mod noted;
pub mod occupancy;
pub mod query;
pub mod subscribers;
pub mod widen;
