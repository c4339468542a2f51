//! How tenants divide a GPU's memory: first the promises (`--mem`), then the rest.
//!
//! While no tenant has a promise, none is limited. Otherwise the tenants without one share what is
//! not promised: each may hold what it uses, and an equal part of what no tenant uses.

#[cfg(test)]
mod tests;

use alloc::vec::Vec;

/// Device memory that is given to no tenant, in bytes: for the MPS server, for what the kernel
/// driver keeps of each context, and for allocations that the driver rounds up.
pub const RESERVE_BYTES: u64 = 512 << 20;

/// A tenant's claim to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// What it was promised, or uses, in bytes.
    pub to: To,
    /// What the driver may take for itself in its processes beside that, in bytes.
    pub driver: u64,
}

/// What a claim is to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// So many bytes were promised, whether they are used or not.
    Promise(u64),
    /// So many bytes are used, and the tenant is held to the rest.
    Rest(u64),
    /// So many bytes are used by a tenant that cannot be held.
    Unheld(u64),
}

impl Claim {
    fn needs(&self) -> u64 {
        let (To::Promise(bytes) | To::Rest(bytes) | To::Unheld(bytes)) = self.to;
        bytes.saturating_add(self.driver)
    }
}

/// What is left of a device's memory beside these claims; an error says how much is missing.
///
/// # Errors
/// The missing bytes, if the claims exceed the memory.
pub fn left(total: u64, claims: &[Claim]) -> Result<u64, u64> {
    let needed = claims.iter().fold(RESERVE_BYTES, |sum, claim| sum.saturating_add(claim.needs()));
    total.checked_sub(needed).ok_or_else(|| needed - total)
}

/// The most that each tenant may hold, in the order of the claims; `None` for no limit.
///
/// These and what the driver takes add up to at most the device's memory without the reserve.
///
/// # Errors
/// The missing bytes, if there is a promise and the claims exceed the memory.
pub fn divide(total: u64, claims: &[Claim]) -> Result<Vec<Option<u64>>, u64> {
    if !claims.iter().any(|claim| matches!(claim.to, To::Promise(_))) {
        return Ok(claims.iter().map(|_| None).collect());
    }
    let sharing = claims.iter().filter(|claim| matches!(claim.to, To::Rest(_))).count() as u64;
    let part = left(total, claims)?.checked_div(sharing).unwrap_or(0);
    let most = |claim: &Claim| match claim.to {
        To::Promise(bytes) => Some(bytes),
        To::Rest(used) => Some(used.saturating_add(part)),
        To::Unheld(_) => None,
    };
    Ok(claims.iter().map(most).collect())
}
