//! The user for whom this process makes and changes tenants.

use std::sync::OnceLock;

use super::dir::own_user;

/// The user for whom this process of root makes and changes tenants.
static ACTS_FOR: OnceLock<u32> = OnceLock::new();

/// Makes this process, which is root's, act for a user from now on: tenants that it makes are that
/// user's.
pub fn act_for(user: u32) {
    // A second call would be for the same connection.
    let _ = ACTS_FOR.set(user);
}

/// Whether root has started this process for a user: for a request to `partitad`, or for a job.
pub(crate) fn acts_for_user() -> bool {
    ACTS_FOR.get().is_some()
}

/// The user for whom this process acts: its own, unless root has started it for another.
pub(crate) fn acting_user() -> u32 {
    ACTS_FOR.get().copied().unwrap_or_else(own_user)
}
