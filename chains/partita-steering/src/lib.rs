//! Chains of components: which part of the GPU each component may use, determined online.
//!
//! Nothing here reads a clock or touches a GPU. The program that runs a chain reports its
//! throughput over a period ([`Objective`]) and sets the components' TPCs ([`Actuator`]); the code
//! here decides. Time is counted in periods.

#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod allocation;
mod bottleneck;
mod compare;
mod controller;
mod place;
mod plant;
mod published;
mod room;
mod steady;
#[cfg(test)]
mod synthetic;
// The devices that the tests of partita-core use.
#[cfg(test)]
#[allow(dead_code)]
#[path = "../../../crates/partita-core/src/testing.rs"]
mod testing;
mod trial;

#[cfg(test)]
use partita_core::{Present, Topology, Tpc, TpcSet};

pub use allocation::{Allocation, AllocationError, ladder};
pub use bottleneck::{BottleneckOptions, Bottlenecks, equal_part, find_bottlenecks};
pub use controller::{Algorithm, Controller, ControllerOptions, Happening, Record};
pub use place::place;
pub use plant::{Actuator, Objective, Plant, Stop};
pub use published::{PublishedOptions, published};
pub use room::Room;
pub use steady::{SteadyOptions, steady};
pub use trial::{Found, Purpose, Trial};
