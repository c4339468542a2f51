//! The black-box tests of `partita-frames`.

mod at_every_instruction;
#[path = "../../../../crates/partita-ledger/tests/it/common/mod.rs"]
mod common;
mod frames;
mod hostile;
mod kill;
