//! Units, TPC sets, topology, shares and partition plans.
#![no_std]
extern crate alloc;
