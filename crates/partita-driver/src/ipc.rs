//! Device memory and events of one process in another one.
//!
//! Two ways lead to another process's memory. The older one is a [`MemoryHandle`] of 64 bytes,
//! which may travel in any way, for memory that was allocated in the ordinary way. The newer one is
//! a file descriptor of [`Physical`] memory, which travels over a Unix socket, can be opened by
//! nobody who was not given it, and keeps the memory there while anybody has it mapped.
//! [`SharedEvent`]s order the work of processes on the GPU, so that nobody has to wait on the host
//! before a hand-over.
//!
//! In the driver's words: `cuIpc*`, `cuMemCreate` and its kin. Each call that a driver lacks is an
//! error of that call alone.

mod event;
mod memory;
mod physical;
mod span;

pub use event::{EventHandle, SharedEvent};
pub use memory::{MemoryHandle, OpenedMemory};
pub use physical::{MappedMemory, Physical};
pub use span::Span;

/// Bytes of a handle of memory or of an event (cuda.h: `CU_IPC_HANDLE_SIZE`).
pub const HANDLE_BYTES: usize = 64;
