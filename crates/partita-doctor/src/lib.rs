//! Tests of what works on a machine, and pictures of it.
//!
//! [`doctor`] runs every check, [`prove`] runs kernels on the SMs of a set and checks where they
//! ran, [`audit`] compares the driver's list of the tenants' processes with their ledgers, [`demo`]
//! shows two tenants on one GPU, and [`topology`] draws where the units of a GPU are.

pub mod audit;
pub mod demo;
pub mod doctor;
pub mod jobs;
pub mod prove;
mod svg;
pub mod topology;
