//! What works on a machine, proved and shown.
//!
//! [`doctor`] makes every check, [`prove`] puts kernels on the SMs of a set and looks where they
//! ran, [`audit`] compares what the driver says of the tenants' processes with what their ledgers
//! say, [`demo`] shows two tenants beside each other, and [`topology`] draws where the units of a
//! GPU lie.

pub mod audit;
pub mod demo;
pub mod doctor;
pub mod jobs;
pub mod prove;
mod svg;
pub mod topology;
