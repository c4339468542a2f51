//! The tests of the memory manager, as one program: it links once, and its tests run beside each
//! other. `hostile` counts its process's descriptors, so it stays alone.

#[path = "../common/mod.rs"]
mod common;
mod gpu;
mod kills;
mod service;
mod strangers;
