//! What the program calls: the exports of this library.

pub mod ioctl;
pub mod linker;
pub mod namespaces;
pub mod nvml;
pub mod resolve;
pub mod table;
