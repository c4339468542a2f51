//! The black-box tests of `partita-chain`, as one program: it links once, and its tests run
//! beside each other.

mod common;
mod moving;
mod processes;
mod steer;
mod transports;
