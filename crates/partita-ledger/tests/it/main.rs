//! The black-box tests of `partita-ledger`, as one program: it links once, and its tests run
//! beside each other.

mod at_every_instruction;
mod common;
mod crowd;
mod files;
mod fork;
mod gate;
mod hostile;
mod kill;
mod mapping;
mod race;
mod share;
mod time;
