//! The exports: the functions that the program calls.

pub mod ioctl;
pub mod linker;
pub mod namespaces;
pub mod nvml;
pub mod resolve;
pub mod step;
pub mod table;
