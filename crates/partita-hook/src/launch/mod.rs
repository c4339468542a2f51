//! Launches: whether they fit the partition, and their masks.

pub mod borrow;
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
