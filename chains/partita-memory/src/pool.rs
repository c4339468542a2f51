//! Device memory on lease: which owner has which part of it, and how much is kept ready.
//!
//! Nothing here touches a GPU or reads a clock. A [`Pool`] knows *slabs*, each one allocation of
//! the driver's, divided into blocks of one size. An *owner* leases blocks. The owner of the memory
//! (the keeper) makes and frees slabs by the pool's [`Step`]s, passes the time in, and reports
//! which owner opened which slab and whose process is gone.
//!
//! # Active and inactive memory
//! Leased blocks are the active part, free blocks the inactive one: a lease from it costs no call
//! of the driver. The size of the inactive part follows the demand, measured in windows of
//! [`Limits::window_ms`] for each tenant and size: as many blocks as were leased at one time during
//! [`WINDOWS`] windows, and while their number grows from window to window, as many more as it
//! grew. So a ramp finds memory before it asks, and repeated bursts find the memory of the last
//! one. Unneeded memory is freed slab by slab, the newest first, after the windows have passed.
//! Steady traffic, however fast, keeps only what it uses at one time.
//!
//! # When a block may be used again
//! A process that has a slab open can write to all of it, and so can work that it has queued on the
//! GPU, even after its death. Hence
//! * a slab belongs to one tenant, from its creation to its end;
//! * the block of an owner that ended, or of a lease whose deadline has passed, *rests*, until
//!   every process that could still write through that lease has closed the slab or is gone
//!   ([`Pool::gone`]). Resting blocks count as used;
//! * a slab is returned to the driver when none of its blocks is used and no process has it open.
//!
//! # Limits
//! A tenant's quota counts whole slabs: the memory that the GPU lacks because of it. It is never
//! exceeded.

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
    /// The last number that was given out.
    last: u64,
    tenants: BTreeMap<TenantId, Tenant>,
    owners: BTreeMap<OwnerId, Owner>,
    slabs: BTreeMap<SlabId, Slab>,
    leases: BTreeMap<LeaseId, Holding>,
    slab_bytes: u64,
    counts: view::Counts,
}

#[derive(Debug)]
struct Tenant {
    quota_bytes: u64,
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
    /// The used ones of those: leased or resting.
    used: u64,
    /// Slabs with a free block, the oldest first, so that the newest become empty.
    with_room: BTreeSet<SlabId>,
}

impl Pool {
    /// Empty books.
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
    /// [`Refusal::QuotaInUse`] below its present slabs, which stay; [`Refusal::UnknownTenant`].
    pub fn set_quota(&mut self, tenant: TenantId, quota_bytes: u64) -> Result<(), Refusal> {
        let known = self.tenants.get_mut(&tenant).ok_or(Refusal::UnknownTenant)?;
        if quota_bytes < known.slab_bytes {
            return Err(Refusal::QuotaInUse { quota_bytes, slab_bytes: known.slab_bytes });
        }
        known.quota_bytes = quota_bytes;
        Ok(())
    }

    /// Forgets a tenant without owners and slabs; returns whether it did.
    pub fn forget_tenant(&mut self, tenant: TenantId) -> bool {
        let is_empty =
            self.tenants.get(&tenant).is_some_and(|known| known.owners == 0 && known.slab_bytes == 0);
        if is_empty {
            self.tenants.remove(&tenant);
        }
        is_empty
    }
}
