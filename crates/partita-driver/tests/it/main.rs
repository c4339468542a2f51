//! The tests of the driver's interface, as one program: it links once, and its tests run beside
//! each other.

mod common;
mod conformance;
mod generations;
mod green;
mod ipc;
mod process_masks;
mod stream_masks;
