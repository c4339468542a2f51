//! Typed client of NVIDIA's Multi-Process Service (MPS).
//!
//! Without MPS, the processes that share a GPU take turns in time; under MPS
//! their kernels run at the same moment, which is what makes disjoint TPC
//! masks worth having. This crate finds the control binary that comes with the
//! driver, runs one control daemon per GPU in a directory of Partita's own and
//! talks to it with time limits.
//!
//! The service is started **without an active thread percentage**: a reduced
//! percentage changes the SM count that libraries see, and cuBLAS then
//! computes wrong products on some devices. Partita limits SMs by masks, which
//! leave that count alone; [`Service::ensure`] checks that the service agrees.
//!
//! | module | holds |
//! |---|---|
//! | [`binary`] | finding `nvidia-cuda-mps-control` and asking its version |
//! | [`dirs`] | the service's directories and the limits on their names |
//! | [`command`] | commands to a running daemon, as typed calls |
//! | [`conditions`] | what MPS asks of machine, GPUs and programs |
//! | [`admission`] | whether a server has room for one more client |
//! | [`provision`] | thread percentages by policy, and the SMs that they give |
//! | [`partition`] | static SM partitions, where the daemon has them |
//! | [`values`] | what commands take: devices, limits, priorities |
//! | [`reply`] | what commands answer |
//! | [`log`] | what daemon and servers write into their logs, as events |
//! | [`fault`] | states of servers, and whom a fault hit, caused and spared |
//! | [`service`] | starting, recognising and stopping the daemon |
//! | [`mod@detach`] | giving the daemon a session and no descriptors of ours |
//!
//! Replies of the control binary are free text and its exit status says
//! little, so every reply is checked against the form that its command has.

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

/// A process id, as the kernel and the MPS commands count them.
pub type Pid = u32;
