//! Shared code of Partita's benchmarks.

pub mod peer;
pub mod scratch;
pub mod side;
pub mod tenants;
