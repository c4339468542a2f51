//! The process that owns a GPU's leased memory.
//!
//! One thread waits for the next event: a request, the end of a client, the end of a client's
//! process. It answers each request before it reads the next one, so one client's answers come in
//! order and no lock is needed. [`Service`] decides what to do about a request, and knows no
//! socket; [`run`] is the program around it.
//!
//! # What it survives
//! A client that dies, at any instruction: the kernel closes its connection, its memory rests until
//! its process is gone, and is then free. A client that does not send frames: it gets an error. The
//! end of the process that started it: it is a separate process. It ends on
//! [`Privileged::End`](crate::wire::Privileged::End) or `SIGTERM`, and if for [`Options::idle`]
//! there is no lease and no connection for a tenant. The memory ends with it; its clients get
//! [`KeeperGone`](crate::client::Error::KeeperGone).

mod chains;
mod clients;
mod fault;
mod listener;
mod memory;
mod options;
mod serve;
mod service;
mod tenants;
#[cfg(test)]
mod tests;

pub use clients::{ClientId, Peer};
pub use listener::BindError;
pub use memory::{GpuMemory, GpuSlab, Handle, HostMemory, HostSlab, Memory, MemoryError};
pub use options::Options;
pub use serve::{End, RunError, run, serve};
pub use service::{Facts, Service};
