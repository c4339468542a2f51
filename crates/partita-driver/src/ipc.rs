//! Device memory and events that processes share.
//!
//! There are two ways to another process's memory. The older one is a [`MemoryHandle`] of 64 bytes,
//! for memory from the usual allocation; it can be sent in any way. The newer one is a file
//! descriptor of [`Physical`] memory. It is sent over a Unix socket, so that only its receivers can
//! open the memory, and the memory lives while any process has it mapped. [`SharedEvent`]s order
//! the work of processes on the GPU, so that no process has to wait on the host before it passes
//! memory on.
//!
//! The driver's names are `cuIpc*`, `cuMemCreate` and related calls. If a driver lacks one, only
//! that call fails.

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
