//! Typed client of NVIDIA's Multi-Process Service (MPS).
//!
//! Without MPS, the processes that share a GPU take turns in time; under MPS their kernels run at
//! the same time, which makes disjoint TPC masks useful. This crate finds the control binary that
//! comes with the driver, runs one control daemon per GPU in a directory of Partita, and sends it
//! commands with time limits.
//!
//! Partita starts the service **without an active thread percentage**: a reduced percentage changes
//! the SM count that libraries see, and cuBLAS then computes wrong products on some devices.
//! Partita limits SMs by masks, which do not change that count; [`Service::ensure`] checks that the
//! service has no percentage.
//!
//! | module | content |
//! |---|---|
//! | [`binary`] | the program `nvidia-cuda-mps-control` and its version |
//! | [`dirs`] | the service's directories and the limits on their names |
//! | [`command`] | commands to a running daemon, as typed calls |
//! | [`conditions`] | the requirements of MPS for machine, GPUs and programs |
//! | [`admission`] | whether a server has room for one more client |
//! | [`provision`] | thread percentages by policy, and the resulting SMs |
//! | [`partition`] | static SM partitions, if the daemon has them |
//! | [`values`] | arguments of commands: devices, limits, priorities |
//! | [`reply`] | answers of commands |
//! | [`log`] | the logs of daemon and servers, as events |
//! | [`fault`] | states of servers, and the causes and reach of faults |
//! | [`service`] | starting, recognising and stopping the daemon |
//! | [`mod@detach`] | starts the daemon in its own session, without inherited descriptors |
//!
//! Answers of the control binary are free text and its exit status says little, so every answer is
//! checked against the form that its command has.

#![deny(missing_docs)]

pub mod admission;
pub mod binary;
pub mod command;
pub mod conditions;
pub mod detach;
pub mod dirs;
pub mod error;
mod exec;
pub mod fault;
mod files;
pub mod lock;
pub mod log;
pub mod partition;
pub mod provision;
pub mod reply;
pub mod service;
pub mod values;

pub use binary::{ControlBinary, Version};
pub use command::Control;
pub use dirs::ServiceDirs;
pub use error::MpsError;
pub use reply::{ClientRow, DeviceClients, ServerStatus};
pub use service::{Ensured, Service, State};
pub use values::{ClientPriority, DeviceName, MemoryLimit};

/// A process id, in the numbers of the kernel and of MPS commands.
pub type Pid = u32;
