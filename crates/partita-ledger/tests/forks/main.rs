//! The tests of the ledger that fork, as one program: it links once. Each test of it is alone,
//! because a forked process has copies of all descriptors, and keeps their locks.

mod at_every_instruction;
#[path = "../common/mod.rs"]
mod common;
mod crowd;
mod elastic;
mod fork;
mod gate;
mod kill;
mod race;
mod share;
mod stopped;
mod time;
