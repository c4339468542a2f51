//! The process that owns a GPU's leased memory.
//!
//! One thread waits for whatever happens next: a request, an end of a client, the end of a client's
//! process. Each request is answered before the next one is read, so the answers of one client come
//! in order and no lock is needed. What it does about a request is [`Service`], which knows no
//! socket; [`run`] is the program around it.
//!
//! # What it survives
//! A client that dies, at any instruction: the kernel closes its connection, what it had rests
//! until its process is gone, and is then free. A client that sends anything else than frames: it
//! is told so. The end of whoever started it: it is a process of its own. It ends when it is told
//! to ([`Privileged::End`](crate::wire::Privileged::End), `SIGTERM`), and when for
//! [`Options::idle`] nobody has leased anything and nobody is connected for a tenant. When it ends,
//! the memory ends with it; its clients get [`KeeperGone`](crate::client::Error::KeeperGone).

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
