//! The tests of the ledger in one process, as one program: it links once, and its tests run beside
//! each other.

#[path = "../common/mod.rs"]
mod common;
mod files;
mod hostile;
mod mapping;
mod pace;
