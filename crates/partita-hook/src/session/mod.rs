//! Where the process attaches to its tenant, and where contexts end.

pub mod attach;
pub mod claim;
pub mod contexts;
pub mod hami;
pub mod outside;
