//! What Partita's benchmarks share.

pub mod plot;
pub mod side;
