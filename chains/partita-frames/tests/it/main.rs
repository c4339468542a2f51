//! The tests of the chain file in one process, as one program.

#[path = "../../../../crates/partita-ledger/tests/common/mod.rs"]
mod common;
mod frames;
mod hostile;
