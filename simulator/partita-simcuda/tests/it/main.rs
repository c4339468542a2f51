//! The tests of the simulated libraries, as one program: it links once, and its tests run beside
//! each other.

mod basics;
mod common;
mod control;
mod devices;
mod gpus;
mod graphs;
mod green;
mod launch;
mod memory;
mod mps_commands;
mod mps_control;
mod mps_faults;
mod mps_service;
mod mps_users;
mod nvml;
mod own;
mod processes;
mod streams;
mod structure;
