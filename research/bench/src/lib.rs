//! What Partita's benchmarks share.

pub mod peer;
pub mod plot;
pub mod scratch;
pub mod side;
