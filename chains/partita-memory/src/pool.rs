//! Device memory on lease: who has which part of it, and how much of it is kept ready.
//!
//! Nothing here touches a GPU or reads a clock. A [`Pool`] knows *slabs*, each one allocation of
//! the driver's, cut into blocks of one size. An *owner* leases blocks. Whoever holds the memory
//! (the keeper) makes and frees slabs as the pool's [`Step`]s say, passes the time in, and tells
//! who opened which slab and whose process is gone.
//!
//! # Active and inactive memory
//! Leased blocks are the active part, free blocks the inactive one: a lease from it costs no call
//! of the driver. How much is kept follows the demand, measured in windows of [`Limits::window_ms`]
//! for each tenant and size: as many blocks as were leased at one time during [`WINDOWS`] windows,
//! and while their number grows from window to window, as many more as it grew. So a ramp finds
//! memory before it asks, bursts that come again find what the last one had, and what is not needed
//! any more goes back slab by slab, the newest first, after the windows have forgotten it. Steady
//! traffic, however fast, keeps nothing beyond what it uses at one time.
//!
//! # When a block may be used again
//! A process that has a slab open can write to all of it, and so can work that it has queued on the
//! GPU, after its death too. Hence
//! * a slab is one tenant's, from its making to its end;
//! * the block of an owner that ended, or of a lease whose deadline has passed, *rests*, until
//!   nobody who could still write through that lease has the slab open: each has closed it, or its
//!   process is gone ([`Pool::gone`]). Resting blocks count as used;
//! * a slab goes back to the driver when none of its blocks is used and nobody has it open.
//!
//! # Limits
//! A tenant's quota counts whole slabs: what the GPU has less because of it. It is never exceeded.

mod class;
mod demand;
mod holding;
mod ids;
mod leasing;
mod limits;
mod refusal;
mod slab;
mod steps;
#[cfg(test)]
mod tests;
mod view;

use std::collections::{BTreeMap, BTreeSet};

pub use class::block_bytes;
pub use demand::WINDOWS;
pub use ids::{LeaseId, OwnerId, SlabId, TenantId};
pub use leasing::Lease;
pub use limits::Limits;
pub use refusal::Refusal;
pub use steps::{Denied, SlabPlan, Step};
pub use view::{LeaseView, OwnerView, SlabView, TenantView, Totals};

use demand::Demand;
use holding::{Holding, Owner};
use slab::Slab;

/// The books of one GPU's leased memory.
#[derive(Debug)]
pub struct Pool {
    limits: Limits,
    /// The last number given to anything.
    last: u64,
    tenants: BTreeMap<TenantId, Tenant>,
    owners: BTreeMap<OwnerId, Owner>,
    slabs: BTreeMap<SlabId, Slab>,
    leases: BTreeMap<LeaseId, Holding>,
    /// Bytes of all slabs.
    slab_bytes: u64,
    counts: view::Counts,
}

#[derive(Debug)]
struct Tenant {
    quota_bytes: u64,
    /// Bytes of its slabs.
    slab_bytes: u64,
    owners: usize,
    sizes: BTreeMap<u64, Size>,
}

/// One tenant's blocks of one size.
#[derive(Debug)]
struct Size {
    demand: Demand,
    /// Blocks of all slabs of the size.
    blocks: u64,
    /// Of those, the used ones: leased or resting.
    used: u64,
    /// Slabs with a free block, the oldest first: so the newest fall empty.
    with_room: BTreeSet<SlabId>,
}

impl Pool {
    /// Books with nothing in them.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            last: 0,
            tenants: BTreeMap::new(),
            owners: BTreeMap::new(),
            slabs: BTreeMap::new(),
            leases: BTreeMap::new(),
            slab_bytes: 0,
            counts: view::Counts::default(),
        }
    }

    /// What it was made with.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Adds a tenant.
    ///
    /// # Errors
    /// [`Refusal::Tenants`].
    pub fn add_tenant(&mut self, quota_bytes: u64) -> Result<TenantId, Refusal> {
        if self.tenants.len() >= self.limits.tenants_max {
            return Err(Refusal::Tenants { tenants_max: self.limits.tenants_max });
        }
        let id = TenantId(self.next());
        self.tenants.insert(id, Tenant { quota_bytes, slab_bytes: 0, owners: 0, sizes: BTreeMap::new() });
        Ok(id)
    }

    /// Sets a tenant's quota.
    ///
    /// # Errors
    /// [`Refusal::QuotaInUse`] below what it has, which stays as it is; [`Refusal::UnknownTenant`].
    pub fn set_quota(&mut self, tenant: TenantId, quota_bytes: u64) -> Result<(), Refusal> {
        let known = self.tenants.get_mut(&tenant).ok_or(Refusal::UnknownTenant)?;
        if quota_bytes < known.slab_bytes {
            return Err(Refusal::QuotaInUse { quota_bytes, slab_bytes: known.slab_bytes });
        }
        known.quota_bytes = quota_bytes;
        Ok(())
    }

    /// Forgets a tenant that has no owner and no slab; whether it did.
    pub fn forget_tenant(&mut self, tenant: TenantId) -> bool {
        let is_empty =
            self.tenants.get(&tenant).is_some_and(|known| known.owners == 0 && known.slab_bytes == 0);
        if is_empty {
            self.tenants.remove(&tenant);
        }
        is_empty
    }
}
