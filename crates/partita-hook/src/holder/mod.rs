//! The tenant's holder: a process that holds what the GPU needs of this one after its death.
//!
//! A client of MPS that dies with work in flight breaks its neighbours when its descriptors are
//! closed. So the process gives copies of them to the holder when it makes a context
//! ([`descriptors`], [`deliver`]), and has the GPU tell the holder what has ended ([`fences`]).
//! `docs/design/holder.md` has the design.
//!
//! Everything is optional: a process without a holder, or one that the holder cannot serve, runs as
//! before.

pub mod deliver;
mod descriptors;
pub mod fences;

pub use deliver::Opening;
