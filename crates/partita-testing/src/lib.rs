//! What the tests of several crates share: the built libraries, simulated machines, the list of
//! devices, children, two users, and the modules of a crate.
//!
//! A dev-dependency alone. `PARTITA_TEST_LONG=1` runs the slow tests in full.
//! `PARTITA_TEST_GPU=real` runs the tests that can on the machine's first
//! GPU; `PARTITA_TEST_LIB_DIR` names a directory with the built programs and libraries where there
//! is no cargo to build them.

mod aarch64;
mod built;
mod child;
mod devices;
pub mod floors;
mod long;
mod machine;
pub mod modules;
mod python;
pub mod sysfs;
mod users;

pub use aarch64::{Aarch64, aarch64};
pub use built::build;
pub use child::{eventually, executable, ignored_test, succeed, without_own_variables};
pub use devices::{GENERATIONS, SIMULATED_DEVICES, devices, is_real, needs_simulator};
pub use long::{is_for_long_runs, is_long};
pub use machine::{Machine, make_boards};
pub use python::{has_python, unittest};
pub use users::{ATTACKER, Running, Users, VICTIM, can_be_users, make_places};
