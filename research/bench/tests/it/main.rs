//! The tests of the benchmarks, as one program.

mod compat;
mod neighbours;
mod peers;
mod readme;
mod recovery;
mod victim;
