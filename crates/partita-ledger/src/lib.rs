//! The shared-memory files of a tenant.
#![no_std]
