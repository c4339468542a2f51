//! The chain file: frames in GPU memory that pass from process to process by number.
//!
//! A chain is up to [`ROLES_MAX`] *roles* in a row, each a process; its frames are *leases* of
//! device memory, in a few allocations (*slabs*) that all roles know by a handle. [`ChainFile`] is
//! the file for any process of the chain's user; [`ChainSeat`] is a role in it, for the process
//! that has the role's lock.
//!
//! # What keeps it right
//! * A lease is in the place that its state word says, so each is in one place and none is lost, at
//!   whatever instruction a process dies (`flow.rs`).
//! * The owner of a role holds an open-file-description lock on it. The next owner, or a process
//!   that sweeps, frees what a dead one held.
//! * Only the holder of a lease writes its data: its frame, its event. Only the owner of the first
//!   role writes the table of slabs.
//! * A reference to a slab has its generation, so a lease of memory that is gone is never used
//!   again, in whatever place it is.
//! * Suggestions are a double buffer with an epoch, as limits are.
//!
//! # GPU-side order
//! Each role has one event for each lease, whose handle is in this file. A process that passes a
//! lease on records that event in its stream and notes its role; the next holder makes its stream
//! wait for that event. So an event is not recorded again before the process that must wait for it
//! has done so: both need to hold the lease. The pool is no exception, so recycled memory is
//! overwritten only when its last reader is done.
//!
//! # Who trusts whom
//! Only its user has access to the file (mode 0600), as to the chain. Its content is still checked:
//! no word of it makes a process panic, loop or leave a mapping.

#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

#[cfg(not(any(test, loom)))]
use partita_ledger::shared as sync;
#[cfg(loom)]
use partita_ledger::sync;
// Unit tests end an operation before each of its accesses to shared memory.
#[cfg(all(test, not(loom)))]
#[allow(dead_code)]
#[path = "../../../crates/partita-ledger/src/sync.rs"]
mod sync;

/// The environment variable with a component's chain: the path of the chain's file.
pub const CHAIN_VARIABLE: &str = "PARTITA_CHAIN";
/// The variable with the number of the component's role.
pub const COMPONENT_VARIABLE: &str = "PARTITA_COMPONENT";
/// The variable with the socket of the keeper of its frames' memory; unset without one. In a chain
/// on several GPUs each has a keeper: the first GPU's has this socket, and the others' sockets have
/// its name with `-1`, `-2` and so on.
pub const KEEPER_VARIABLE: &str = "PARTITA_KEEPER";
/// The variable with the method by which the component applies suggested compute units: `masks`,
/// `green` or `contexts`; masks where it is not set.
pub const STEER_VARIABLE: &str = "PARTITA_STEER";
/// The variable with how frames' content reaches the next component: `ring`, `udp-handle`,
/// `unix-handle` or `udp-copy`; the ring where it is not set.
pub const TRANSPORT_VARIABLE: &str = "PARTITA_TRANSPORT";

#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod fault;
#[cfg(not(loom))]
mod file;
#[cfg(loom)]
pub mod flow;
#[cfg(not(loom))]
mod flow;
#[cfg(not(loom))]
mod layout;
#[cfg(not(loom))]
mod lease;
#[cfg(not(loom))]
mod plan;
#[cfg(not(loom))]
mod seat;
#[cfg(not(loom))]
mod slabs;
#[cfg(loom)]
pub mod state;
#[cfg(not(loom))]
mod state;
#[cfg(not(loom))]
mod status;
#[cfg(not(loom))]
mod wait;

#[cfg(not(loom))]
pub use self::{
    error::ChainError,
    fault::ChainFault,
    file::{ChainFile, RoleClaim},
    flow::Recovered,
    layout::{CHAIN_FILE_BYTES, CHAIN_FILE_NAME, FRAMES_MAX, HANDLE_BYTES, META_WORDS, ROLES_MAX, SLABS_MAX},
    lease::{Lease, Note, Recorder},
    plan::{CHAIN_NAME_BYTES_MAX, ChainPlan, PlanFault, Policy},
    seat::{ChainSeat, Got, Sent},
    slabs::{SlabInfo, SlabOwner, SlabPlan, SlabRef},
    state::Ticket,
    status::{Census, Reach, RoleStatus},
    wait::monotonic_ns,
};
