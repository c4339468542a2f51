//! Tests of what works on a machine, and pictures of it.
//!
//! [`doctor`] runs every check, [`prove`] runs kernels on the SMs of a set and checks where they
//! ran, [`audit`] compares the driver's list of the tenants' processes with their ledgers, [`demo`]
//! shows two tenants on one GPU, [`topology`] draws where the units of a GPU are,
//! and [`sample`] has programs to try tenants with.

pub mod audit;
pub mod demo;
pub mod doctor;
pub mod jobs;
pub mod prove;
pub mod sample;
mod svg;
pub mod topology;
