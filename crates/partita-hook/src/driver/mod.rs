//! libcuda's and NVML's own functions, and the calls that this library makes of them.

pub mod calls;
pub mod capture;
pub mod edges;
pub mod management;
pub mod memory_ops;
pub mod page;
pub mod places;
pub mod quiet;
pub mod real;
pub mod row;
pub mod stream;
pub mod word;
