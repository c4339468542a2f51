//! Device memory by lease, owned by a separate process, so that a component's death loses nothing.
//!
//! The [`keeper`] is that process: it allocates *slabs* from the driver, divides them into blocks
//! and leases those to processes that connect to its Unix socket. A [`client`] opens each slab
//! once, by a CUDA IPC handle of 64 bytes or by a file descriptor; from then on a lease costs one
//! round trip, or none if the client has one cached. [`crate::pool`] decides which client has what,
//! and when memory may be used again; the frames between the two are [`wire`].
//!
//! # Who trusts whom
//! A client trusts the keeper. The keeper trusts no client: the kernel reports its identity (user
//! and process of the socket's other end), the keeper checks each frame completely before any
//! action, and everything that a client can make grow has a limit. Clients of one user and tenant
//! share slabs, so they can write to each other's memory, as programs of one user can anyway;
//! tenants share no slabs.

pub mod client;
pub mod keeper;
mod name;
mod place;
pub mod pool;
mod socket;
pub mod wire;

pub use name::{BadName, TenantName};
pub use place::Place;

/// A time in whole milliseconds, at most the largest number.
fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
