//! The black-box tests of `partita-memory`, as one program: it links once, and its tests run
//! beside each other.

mod common;
mod gpu;
mod hostile;
mod kills;
mod service;
mod strangers;
