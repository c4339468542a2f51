//! Device memory by lease, owned by a process of its own, so that a component's death loses
//! nothing.
//!
//! The [`keeper`] is that process: it allocates *slabs* from the driver, cuts them into blocks and
//! leases those to whoever connects to its Unix socket. A [`client`] opens each slab once, by a
//! CUDA IPC handle of 64 bytes or by a file descriptor, and from then on a lease costs one round
//! trip, or none where the client has kept one. What is whose, and when memory may be used again,
//! is [`crate::pool`]; the frames between the two are [`wire`].
//!
//! # Who trusts whom
//! A client trusts the keeper. The keeper trusts no client: who it is the kernel says (user and
//! process of the socket's other end), every frame is checked whole before anything is done, and
//! there is a bound on all that a client can make grow. Clients of one user and tenant share slabs,
//! so they can write to each other's memory, as programs of one user can anyway; tenants share
//! none.

pub mod client;
pub mod keeper;
mod name;
mod place;
pub mod pool;
mod socket;
pub mod wire;

pub use name::{BadName, TenantName};
pub use place::Place;

/// A time in whole milliseconds, at most as many as there can be.
fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
