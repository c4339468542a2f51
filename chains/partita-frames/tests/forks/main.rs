//! The tests of the chain file that fork, as one program. Each test of it is alone: see those of
//! partita-ledger.

mod at_every_instruction;
#[path = "../../../../crates/partita-ledger/tests/common/mod.rs"]
mod common;
mod kill;
