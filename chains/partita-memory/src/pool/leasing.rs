//! Lease and return blocks.

use std::vec::Vec;

use super::holding::Holding;
use super::{
    Demand, Denied, LeaseId, OwnerId, Pool, Refusal, Size, SlabId, SlabPlan, Step, TenantId, block_bytes,
};

/// A new lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub id: LeaseId,
    pub slab: SlabId,
    /// Offset of its block in the slab, in bytes.
    pub offset: u64,
    /// Bytes of the block, at least those requested.
    pub bytes: u64,
}

impl Pool {
    /// Leases `count` blocks of at least `bytes` each, or none. With a `ttl_ms` other than 0 a
    /// lease ends after this long without a sign of life from its owner.
    ///
    /// # Errors
    /// [`Denied::Until`] if memory must be made or freed first, and [`Denied::Refused`].
    pub fn lease(
        &mut self,
        owner: OwnerId,
        bytes: u64,
        count: u32,
        ttl_ms: u32,
        now_ms: u64,
    ) -> Result<Vec<Lease>, Denied> {
        let tenant = self.living(owner)?.tenant;
        if ttl_ms > self.limits.ttl_ms_max {
            return Err(Refusal::Ttl { ttl_ms, ttl_ms_max: self.limits.ttl_ms_max }.into());
        }
        if count == 0 || count > self.limits.batch_max {
            return Err(Refusal::Batch { count, batch_max: self.limits.batch_max }.into());
        }
        let bytes_max = self.limits.bytes_max.min(1 << 56);
        let too_large = Refusal::Bytes { bytes, bytes_max };
        let block = block_bytes(bytes).filter(|block| *block <= bytes_max).ok_or(too_large)?;
        if self.leases.len() + count as usize > self.limits.leases_max {
            let leases_max = self.limits.leases_max;
            return Err(Refusal::Leases { leases: self.leases.len(), leases_max }.into());
        }
        let free = self.tenant(tenant)?.sizes.get(&block).map_or(0, |size| size.blocks - size.used);
        if free < u64::from(count) {
            return Err(self
                .want(tenant, block, u64::from(count) - free)
                .map_or_else(Denied::from, Denied::Until));
        }
        let leases =
            (0..count).filter_map(|_| self.take(owner, tenant, block, bytes, ttl_ms, now_ms)).collect();
        self.counts.leased += u64::from(count);
        self.note(tenant, block, now_ms);
        Ok(leases)
    }

    /// Returns a lease. Any owner of its tenant may; only its own, once it rests.
    ///
    /// # Errors
    /// [`Refusal::UnknownOwner`], [`Refusal::UnknownLease`], [`Refusal::Resting`].
    pub fn free(&mut self, lease: LeaseId, by: OwnerId, now_ms: u64) -> Result<(), Refusal> {
        self.may_free(lease, by)?;
        self.release(lease, now_ms);
        Ok(())
    }

    /// Whether [`Pool::free`] would succeed.
    ///
    /// # Errors
    /// As [`Pool::free`].
    pub fn may_free(&self, lease: LeaseId, by: OwnerId) -> Result<(), Refusal> {
        let tenant = self.living(by)?.tenant;
        let unknown = Refusal::UnknownLease { lease: lease.0 };
        let holding = self.leases.get(&lease).ok_or(unknown)?;
        let owner = self.owners.get(&holding.owner).filter(|owner| owner.tenant == tenant).ok_or(unknown)?;
        // A lease that rests after its owner's end has no owner; one that rests after its deadline
        // still has its owner.
        if holding.is_resting && (holding.owner != by || owner.has_ended) {
            return Err(Refusal::Resting { lease: lease.0 });
        }
        Ok(())
    }

    /// Adds the memory of a plan, all free.
    ///
    /// # Errors
    /// [`Refusal`] if it would exceed a limit: the caller frees it.
    pub fn add_slab(&mut self, plan: SlabPlan, now_ms: u64) -> Result<SlabId, Refusal> {
        self.fits(plan.tenant, plan.bytes)?;
        let id = SlabId(self.next());
        let slab = super::slab::Slab::new(plan.tenant, plan.bytes, plan.block_bytes, now_ms);
        let window_ms = self.limits.window_ms;
        self.slab_bytes += plan.bytes;
        self.counts.slabs_made += 1;
        if let Some(tenant) = self.tenants.get_mut(&plan.tenant) {
            tenant.slab_bytes += plan.bytes;
            let size = tenant.sizes.entry(plan.block_bytes).or_insert_with(|| Size::new(window_ms, now_ms));
            size.blocks += u64::from(slab.blocks);
            size.with_room.insert(id);
        }
        self.slabs.insert(id, slab);
        Ok(id)
    }

    /// Removes a slab from the books, so that its memory can be freed.
    ///
    /// # Errors
    /// [`Refusal::UnknownSlab`], also for one that is in use.
    pub fn remove_slab(&mut self, slab: SlabId) -> Result<(), Refusal> {
        let removable = self.slabs.get(&slab).is_some_and(super::slab::Slab::is_removable);
        let (true, Some(known)) = (removable, removable.then(|| self.slabs.remove(&slab)).flatten()) else {
            return Err(Refusal::UnknownSlab { slab: slab.0 });
        };
        self.slab_bytes -= known.bytes;
        self.counts.slabs_freed += 1;
        if let Some(tenant) = self.tenants.get_mut(&known.tenant) {
            tenant.slab_bytes -= known.bytes;
            if let Some(size) = tenant.sizes.get_mut(&known.block_bytes) {
                size.blocks -= u64::from(known.blocks);
                size.with_room.remove(&slab);
                // A size without slabs has no demand either, or a client could make the table grow
                // for ever.
                if size.blocks == 0 {
                    tenant.sizes.remove(&known.block_bytes);
                }
            }
        }
        Ok(())
    }

    /// The steps needed before `blocks` more blocks of a size are available.
    fn want(&mut self, tenant: TenantId, block_bytes: u64, blocks: u64) -> Result<Step, Refusal> {
        let bytes_max = self.limits.bytes_max;
        let too_large = Refusal::Bytes { bytes: block_bytes, bytes_max };
        // Nothing is made for a request that will finally be refused.
        let all = SlabPlan::of(&self.limits, tenant, block_bytes, blocks).ok_or(too_large)?;
        let plan = self.plan(tenant, block_bytes, blocks)?;
        let least = self.plan_at_most(tenant, block_bytes, blocks)?;
        let refused = match self.fits(tenant, all.bytes) {
            Ok(()) if self.fits(tenant, plan.bytes).is_ok() => return Ok(Step::Add(plan)),
            Ok(()) => match self.fits(tenant, least.bytes) {
                Ok(()) => return Ok(Step::Add(least)),
                Err(refusal) => refusal,
            },
            Err(refusal) => refusal,
        };
        // No idle memory is freed for a request that could never fit.
        if all.bytes > bytes_max.min(self.tenant(tenant)?.quota_bytes) {
            return Err(refused);
        }
        // All idle memory makes room, except slabs that would be made again at once.
        let of = matches!(refused, Refusal::Quota { .. }).then_some(tenant);
        match self.spare(of, Some((tenant, block_bytes))) {
            Some(slab) => Ok(Step::Remove(slab)),
            None => {
                self.retire_idle(of);
                Err(refused)
            }
        }
    }

    fn take(
        &mut self,
        owner: OwnerId,
        tenant: TenantId,
        block_bytes: u64,
        bytes: u64,
        ttl_ms: u32,
        now_ms: u64,
    ) -> Option<Lease> {
        let id = LeaseId(self.next());
        let size = self.tenants.get_mut(&tenant)?.sizes.get_mut(&block_bytes)?;
        let slab_id = *size.with_room.first()?;
        let slab = self.slabs.get_mut(&slab_id)?;
        let block = slab.take()?;
        if slab.free_blocks() == 0 {
            size.with_room.remove(&slab_id);
        }
        size.used += 1;
        self.counts.bytes_used += block_bytes;
        self.owners.get_mut(&owner)?.leases.insert(id);
        let since_ms = now_ms;
        self.leases
            .insert(id, Holding { owner, slab: slab_id, block, bytes, since_ms, ttl_ms, is_resting: false });
        Some(Lease { id, slab: slab_id, offset: u64::from(block) * block_bytes, bytes: block_bytes })
    }

    /// Frees a block in any state.
    pub(crate) fn release(&mut self, lease: LeaseId, now_ms: u64) {
        let Some(holding) = self.leases.remove(&lease) else { return };
        if let Some(owner) = self.owners.get_mut(&holding.owner) {
            owner.leases.remove(&lease);
        }
        if holding.is_resting {
            self.counts.resting -= 1;
        }
        self.counts.given_back += 1;
        let Some(slab) = self.slabs.get_mut(&holding.slab) else { return };
        slab.resting.remove(&lease);
        slab.give_back(holding.block, now_ms);
        let (tenant, block_bytes) = (slab.tenant, slab.block_bytes);
        self.counts.bytes_used -= block_bytes;
        if let Some(size) = self.tenants.get_mut(&tenant).and_then(|known| known.sizes.get_mut(&block_bytes))
        {
            size.used -= 1;
            size.with_room.insert(holding.slab);
        }
        self.note(tenant, block_bytes, now_ms);
    }

    /// Reports the use of a size to its demand.
    fn note(&mut self, tenant: TenantId, block_bytes: u64, now_ms: u64) {
        if let Some(size) = self.tenants.get_mut(&tenant).and_then(|known| known.sizes.get_mut(&block_bytes))
        {
            size.demand.note(size.used, now_ms);
        }
    }

    pub(super) fn tenant(&self, tenant: TenantId) -> Result<&super::Tenant, Refusal> {
        self.tenants.get(&tenant).ok_or(Refusal::UnknownTenant)
    }
}

impl Size {
    fn new(window_ms: u64, now_ms: u64) -> Self {
        let with_room = std::collections::BTreeSet::new();
        Self { demand: Demand::new(window_ms, now_ms), blocks: 0, used: 0, with_room }
    }
}
