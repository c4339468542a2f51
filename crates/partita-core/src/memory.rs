//! How tenants divide a GPU's memory: first the promises (`--mem`), then the rest.
//!
//! While no tenant has a promise, none is limited. Otherwise the tenants without one share what is
//! not promised: each may hold what it uses, and an equal part of what no tenant uses.
//!
//! Memory in use cannot be had back. So what is reserved for users ([`Reserve`]) and not in use by
//! them stays free: others are promised none of it, and do not grow into it.

#[cfg(test)]
mod tests;

use alloc::collections::BTreeMap;
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
    /// The tenant's user, by number.
    pub user: u32,
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

/// Memory that is kept for some users, all of them together. Their claims are first to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// How much, in bytes, with what the driver takes for itself in their tenants.
    pub bytes: u64,
    /// Those users, by number.
    pub users: Vec<u32>,
}

/// How much of each reserve no claim of its users needs, in bytes.
///
/// A claim counts once: against the first reserve of its user, and beyond that against the next.
pub fn unused(claims: &[Claim], reserves: &[Reserve]) -> Vec<u64> {
    // By users, so that the order of the claims does not matter.
    let mut needs: BTreeMap<u32, u64> = BTreeMap::new();
    for claim in claims {
        let sum = needs.entry(claim.user).or_default();
        *sum = sum.saturating_add(claim.needs());
    }
    let mut unused = Vec::new();
    for reserve in reserves {
        let mut bytes = reserve.bytes;
        for (_, need) in needs.iter_mut().filter(|(user, _)| reserve.users.contains(user)) {
            let counted = bytes.min(*need);
            bytes -= counted;
            *need -= counted;
        }
        unused.push(bytes);
    }
    unused
}

/// What is left of a device's memory beside these claims; an error says how much is missing.
///
/// # Errors
/// The missing bytes, if the claims exceed the memory.
pub fn left(total: u64, claims: &[Claim]) -> Result<u64, u64> {
    let needed = claims.iter().fold(RESERVE_BYTES, |sum, claim| sum.saturating_add(claim.needs()));
    total.checked_sub(needed).ok_or_else(|| needed - total)
}

/// The most that can be promised to a claim beside others, whatever `claim.to` is; an error says
/// how much is missing for nothing but what the driver takes.
///
/// Beside the claims themselves, the unused reserves of other users stay free. Where they do not
/// fit any more, because a reserve is younger than the claims, a claim may not make that worse:
/// than it is without it, or with `before`, in whose place it comes.
///
/// # Errors
/// The missing bytes.
pub fn most(
    total: u64,
    others: &[Claim],
    before: Option<Claim>,
    claim: Claim,
    reserves: &[Reserve],
) -> Result<u64, u64> {
    let beside = |claim: Option<Claim>| others.iter().copied().chain(claim).collect::<Vec<_>>();
    // How much of the unused reserves does not fit.
    let lacks = |claims: &[Claim]| {
        let kept = unused(claims, reserves).into_iter().fold(0u64, u64::saturating_add);
        kept.saturating_sub(left(total, claims).unwrap_or(0))
    };
    let lacks_now = lacks(&beside(before));
    // How much is missing for so many bytes. It grows with them.
    let missing = |bytes: u64| {
        let claims = beside(Some(Claim { to: To::Promise(bytes), ..claim }));
        let of_device = left(total, &claims).err().unwrap_or(0);
        of_device.max(lacks(&claims).saturating_sub(lacks_now))
    };
    match missing(0) {
        0 => {}
        missing => return Err(missing),
    }
    let (mut fits, mut exceeds) = (0, total.saturating_add(1));
    while exceeds - fits > 1 {
        let middle = fits + (exceeds - fits) / 2;
        *(if missing(middle) == 0 { &mut fits } else { &mut exceeds }) = middle;
    }
    Ok(fits)
}

/// The most that each tenant may hold, in the order of the claims; `None` for no limit.
///
/// These and what the driver takes add up to at most the device's memory without
/// [`RESERVE_BYTES`]. What no claim of its users needs of a reserve, only their tenants grow into.
///
/// # Errors
/// The missing bytes, if there is a promise or a reserve and the claims exceed the memory.
pub fn divide(total: u64, claims: &[Claim], reserves: &[Reserve]) -> Result<Vec<Option<u64>>, u64> {
    if reserves.is_empty() && !claims.iter().any(|claim| matches!(claim.to, To::Promise(_))) {
        return Ok(claims.iter().map(|_| None).collect());
    }
    let left = left(total, claims)?;
    let unused = unused(claims, reserves);
    let free = left.saturating_sub(unused.iter().copied().fold(0, u64::saturating_add));
    let shares = |claim: &Claim| matches!(claim.to, To::Rest(_));
    let part = |bytes: u64, number: usize| bytes.checked_div(number as u64).unwrap_or(0);
    let even = part(free, claims.iter().filter(|claim| shares(claim)).count());
    // What is left of the reserves may be less than they are: the first has it first.
    let mut kept = left - free;
    let mut own = Vec::new();
    for (reserve, unused) in reserves.iter().zip(unused) {
        let bytes = unused.min(kept);
        kept -= bytes;
        let is_of = |claim: &&Claim| shares(claim) && reserve.users.contains(&claim.user);
        own.push((reserve, part(bytes, claims.iter().filter(is_of).count())));
    }
    let most = |claim: &Claim| match claim.to {
        To::Promise(bytes) => Some(bytes),
        To::Rest(used) => {
            let own = own.iter().filter(|(reserve, _)| reserve.users.contains(&claim.user));
            let own: u64 = own.map(|(_, part)| part).sum();
            Some(used.saturating_add(even).saturating_add(own))
        }
        To::Unheld(_) => None,
    };
    Ok(claims.iter().map(most).collect())
}
