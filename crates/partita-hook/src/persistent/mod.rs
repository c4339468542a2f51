//! Persistent blocks: kernels that keep to their tenant's SMs by themselves.
//!
//! For tenants of that mechanism ([`partita_ptx::persistent`]) every module is rewritten when the
//! program loads it ([`load`]), so that all kernels of the process have one more parameter
//! ([`function`]) and run as many blocks as the device holds ([`prepare`]). The launch gets a piece
//! of device memory in which its blocks count, and the address of the tenant's set there, which the
//! hook's thread keeps up to date ([`pool`]).

pub mod function;
pub mod graphs;
mod image;
pub mod load;
pub mod pool;
pub mod prepare;
