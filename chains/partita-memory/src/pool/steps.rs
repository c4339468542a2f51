//! What the owner of the memory has to do.

use std::vec::Vec;

use super::{OwnerId, Pool, Refusal, SlabId, TenantId};

/// Memory to make, as one allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabPlan {
    /// Its future tenant.
    pub tenant: TenantId,
    /// Its size in bytes: a multiple of the granularity.
    pub bytes: u64,
    pub block_bytes: u64,
}

impl SlabPlan {
    /// The smallest slab with this many blocks; `None` if the size overflows.
    pub(crate) fn of(
        limits: &super::Limits,
        tenant: TenantId,
        block_bytes: u64,
        blocks: u64,
    ) -> Option<Self> {
        let bytes = block_bytes.checked_mul(blocks)?;
        let bytes = bytes.checked_next_multiple_of(limits.granularity_bytes.max(1))?;
        Some(Self { tenant, bytes, block_bytes })
    }

    /// The same with the fewest blocks that are worth an allocation.
    #[must_use]
    pub fn least(&self, limits: &super::Limits) -> Self {
        Self::of(limits, self.tenant, self.block_bytes, 1).unwrap_or(*self)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make this memory, then [`Pool::add_slab`].
    Add(SlabPlan),
    /// [`Pool::remove_slab`], then free its memory.
    Remove(SlabId),
}

/// Why a lease was not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// This has to be done first; then ask again.
    Until(Step),
    Refused(Refusal),
}

impl From<Refusal> for Denied {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Pool {
    /// The next step beside requests, if there is one: memory for growing demand, and the end of
    /// unneeded memory. Asks owners with superfluous slabs open to close them ([`Pool::retiring`]).
    pub fn step(&mut self, now_ms: u64) -> Option<Step> {
        let mut wanted = Vec::new();
        for (id, tenant) in &mut self.tenants {
            for (block_bytes, size) in &mut tenant.sizes {
                size.demand.note(size.used, now_ms);
                let growth = size.demand.growth();
                if size.blocks - size.used < growth && size.blocks < size.demand.target() {
                    wanted.push((*id, *block_bytes, size.demand.target() - size.blocks));
                }
            }
        }
        // A tenant that has reached a limit does not delay others.
        let possible = |(tenant, block_bytes, blocks)| {
            let plan = self.plan(tenant, block_bytes, blocks).ok()?;
            self.fits(tenant, plan.bytes).is_ok().then_some(plan)
        };
        if let Some(plan) = wanted.into_iter().find_map(possible) {
            return Some(Step::Add(plan));
        }
        self.superfluous(now_ms).map(Step::Remove)
    }

    /// The slabs that an owner should close, because they are unneeded.
    pub fn retiring(&self, by: OwnerId) -> impl Iterator<Item = SlabId> {
        let opened = self.owners.get(&by).map(|owner| &owner.opened);
        opened
            .into_iter()
            .flatten()
            .filter(|id| self.slabs.get(id).is_some_and(|slab| slab.is_retiring))
            .copied()
    }

    /// A slab that can be returned at once: the newest idle one, of one tenant or of any, but none
    /// of this tenant's with blocks of this size.
    #[must_use]
    pub fn spare(&self, of: Option<TenantId>, except: Option<(TenantId, u64)>) -> Option<SlabId> {
        let fits = |slab: &super::slab::Slab| {
            slab.is_removable()
                && of.is_none_or(|of| of == slab.tenant)
                && except != Some((slab.tenant, slab.block_bytes))
        };
        self.slabs.iter().rev().find(|(_, slab)| fits(slab)).map(|(id, _)| *id)
    }

    /// Asks owners with idle slabs open to close them: memory is short.
    pub fn retire_idle(&mut self, of: Option<TenantId>) {
        for slab in self.slabs.values_mut().filter(|slab| of.is_none_or(|of| of == slab.tenant)) {
            slab.is_retiring |= slab.is_empty();
        }
    }

    /// The slab to make for `blocks` more blocks: half as much again as present, so that a large
    /// pool does not consist of small pieces.
    pub(super) fn plan(&self, tenant: TenantId, block_bytes: u64, blocks: u64) -> Result<SlabPlan, Refusal> {
        let there = self.tenant(tenant)?.sizes.get(&block_bytes).map_or(0, |size| size.blocks);
        self.plan_at_most(tenant, block_bytes, blocks.max(there / 2))
    }

    /// A slab of this many blocks, or of fewer if they are too large for one.
    pub(super) fn plan_at_most(
        &self,
        tenant: TenantId,
        block_bytes: u64,
        blocks: u64,
    ) -> Result<SlabPlan, Refusal> {
        let most = (self.limits.slab_bytes_max / block_bytes).max(1);
        let bytes_max = self.limits.bytes_max;
        SlabPlan::of(&self.limits, tenant, block_bytes, blocks.min(most))
            .ok_or(Refusal::Bytes { bytes: block_bytes, bytes_max })
    }

    /// Whether a slab of this many bytes is within all limits.
    pub(crate) fn fits(&self, tenant: TenantId, wanted_bytes: u64) -> Result<(), Refusal> {
        let known = self.tenant(tenant)?;
        let (quota_bytes, bytes_max) = (known.quota_bytes, self.limits.bytes_max);
        if self.slabs.len() >= self.limits.slabs_max {
            return Err(Refusal::Slabs { slabs_max: self.limits.slabs_max });
        }
        if known.slab_bytes.saturating_add(wanted_bytes) > quota_bytes {
            return Err(Refusal::Quota { quota_bytes, slab_bytes: known.slab_bytes, wanted_bytes });
        }
        if self.slab_bytes.saturating_add(wanted_bytes) > bytes_max {
            return Err(Refusal::Capacity { bytes_max, slab_bytes: self.slab_bytes, wanted_bytes });
        }
        Ok(())
    }

    /// The newest slab that has been empty for a while and without which there are enough blocks;
    /// if it is open, its openers are asked to close it. [`Pool::step`] returns it if there is
    /// nothing to make first; this is for a shortage of memory.
    pub fn superfluous(&mut self, now_ms: u64) -> Option<SlabId> {
        let rest_ms = self.limits.window_ms.saturating_mul(super::WINDOWS as u64);
        let Self { tenants, slabs, .. } = self;
        let mut found = None;
        for (id, slab) in slabs.iter_mut().rev() {
            let is_old = slab.empty_since_ms.is_some_and(|since| now_ms.saturating_sub(since) >= rest_ms);
            let size = tenants.get(&slab.tenant).and_then(|tenant| tenant.sizes.get(&slab.block_bytes));
            let left = size.map_or(0, |size| size.blocks - u64::from(slab.blocks));
            let is_needed = size.is_some_and(|size| left < size.demand.target());
            let is_superfluous = is_old && !is_needed;
            if is_superfluous && found.is_none() && slab.is_removable() {
                found = Some(*id);
            }
            slab.is_retiring |= is_superfluous;
        }
        found
    }
}
