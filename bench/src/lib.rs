//! What Partita's benchmarks share.

pub mod plot;
