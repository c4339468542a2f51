//! Owners, their leases, and the effect of an owner's end.

use std::collections::BTreeSet;
use std::vec::Vec;

use super::{LeaseId, OwnerId, Pool, Refusal, SlabId, TenantId};

/// A lease in the books.
#[derive(Debug)]
pub(crate) struct Holding {
    pub(crate) owner: OwnerId,
    pub(crate) slab: SlabId,
    pub(crate) block: u32,
    /// The requested size.
    pub(crate) bytes: u64,
    pub(crate) since_ms: u64,
    /// 0 for no deadline.
    pub(crate) ttl_ms: u32,
    pub(crate) is_resting: bool,
}

#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) tenant: TenantId,
    pub(crate) leases: BTreeSet<LeaseId>,
    /// Those through which it uses its memory, besides itself.
    pub(crate) members: BTreeSet<OwnerId>,
    pub(crate) member_of: BTreeSet<OwnerId>,
    /// Slabs that it has open.
    pub(crate) opened: BTreeSet<SlabId>,
    pub(crate) last_seen_ms: u64,
    /// Leases whose deadline has passed since the last query.
    pub(crate) expired: u32,
    /// Whether it has ended and leases no more.
    pub(crate) has_ended: bool,
}

impl Pool {
    /// Adds an owner of leases.
    ///
    /// # Errors
    /// [`Refusal::UnknownTenant`], [`Refusal::Owners`].
    pub fn add_owner(&mut self, tenant: TenantId, now_ms: u64) -> Result<OwnerId, Refusal> {
        if self.owners.len() >= self.limits.owners_max {
            return Err(Refusal::Owners { owners_max: self.limits.owners_max });
        }
        self.tenants.get_mut(&tenant).ok_or(Refusal::UnknownTenant)?.owners += 1;
        let id = OwnerId(self.next());
        let owner = Owner {
            tenant,
            leases: BTreeSet::new(),
            members: BTreeSet::new(),
            member_of: BTreeSet::new(),
            opened: BTreeSet::new(),
            last_seen_ms: now_ms,
            expired: 0,
            has_ended: false,
        };
        self.owners.insert(id, owner);
        Ok(id)
    }

    /// Lets `member` use the memory that `owner` leases: while it has a slab open, blocks of
    /// `owner` there rest after the owner's end.
    ///
    /// # Errors
    /// [`Refusal::UnknownOwner`], also if the two are of different tenants.
    pub fn add_member(&mut self, owner: OwnerId, member: OwnerId) -> Result<(), Refusal> {
        let tenant = self.living(owner)?.tenant;
        if self.living(member)?.tenant != tenant || owner == member {
            return Err(Refusal::UnknownOwner { owner: owner.0 });
        }
        if let Some(known) = self.owners.get_mut(&member) {
            known.member_of.insert(owner);
        }
        if let Some(known) = self.owners.get_mut(&owner) {
            known.members.insert(member);
        }
        Ok(())
    }

    /// Whether there is a member of an owner that has not ended.
    #[must_use]
    pub fn is_member(&self, owner: OwnerId, member: OwnerId) -> bool {
        self.living(owner).is_ok_and(|known| known.members.contains(&member))
    }

    /// Records a sign of life: deadlines of its leases count from here, and of those of which it is
    /// a member.
    ///
    /// # Errors
    /// [`Refusal::UnknownOwner`].
    pub fn seen(&mut self, owner: OwnerId, now_ms: u64) -> Result<(), Refusal> {
        let of: Vec<OwnerId> = self.living(owner)?.member_of.iter().copied().collect();
        for seen in of.iter().chain([&owner]) {
            if let Some(known) = self.owners.get_mut(seen) {
                known.last_seen_ms = known.last_seen_ms.max(now_ms);
            }
        }
        Ok(())
    }

    /// How many of an owner's leases have passed their deadline since the last query.
    pub fn take_expired(&mut self, owner: OwnerId) -> u32 {
        self.owners.get_mut(&owner).map_or(0, |known| std::mem::take(&mut known.expired))
    }

    /// Records that an owner, itself or as a member, can write to a slab from now on.
    ///
    /// # Errors
    /// [`Refusal::UnknownOwner`]; [`Refusal::UnknownSlab`], also for another tenant's.
    pub fn open(&mut self, slab: SlabId, by: OwnerId) -> Result<(), Refusal> {
        let tenant = self.living(by)?.tenant;
        let unknown = Refusal::UnknownSlab { slab: slab.0 };
        let known = self.slabs.get_mut(&slab).filter(|known| known.tenant == tenant).ok_or(unknown)?;
        known.openers.insert(by);
        if let Some(owner) = self.owners.get_mut(&by) {
            owner.opened.insert(slab);
        }
        Ok(())
    }

    /// Records that an owner has closed a slab, and no longer uses it.
    ///
    /// # Errors
    /// [`Refusal::UnknownOwner`]; [`Refusal::UnknownSlab`] if it had not opened it.
    pub fn close(&mut self, slab: SlabId, by: OwnerId, now_ms: u64) -> Result<(), Refusal> {
        self.may_close(slab, by)?;
        if let Some(owner) = self.owners.get_mut(&by) {
            owner.opened.remove(&slab);
        }
        self.left(slab, by, now_ms);
        Ok(())
    }

    /// Whether [`Pool::close`] would succeed.
    ///
    /// # Errors
    /// As [`Pool::close`].
    pub fn may_close(&self, slab: SlabId, by: OwnerId) -> Result<(), Refusal> {
        let had = self.living(by)?.opened.contains(&slab);
        if had { Ok(()) } else { Err(Refusal::UnknownSlab { slab: slab.0 }) }
    }

    /// Ends an owner: it leases and opens no more, and its blocks rest while they may be in use.
    /// Returns whether it is already forgotten; if not, call [`Pool::gone`] when its process is
    /// gone.
    ///
    /// # Errors
    /// [`Refusal::UnknownOwner`].
    pub fn end(&mut self, owner: OwnerId, now_ms: u64) -> Result<bool, Refusal> {
        self.living(owner)?;
        let Some(known) = self.owners.get_mut(&owner) else { return Ok(true) };
        known.has_ended = true;
        let leases: Vec<LeaseId> = known.leases.iter().copied().collect();
        for lease in leases {
            self.rest(lease, now_ms);
        }
        self.forget_if_done(owner);
        Ok(!self.owners.contains_key(&owner))
    }

    /// Records that an owner's process is gone, with its open slabs and queued work. Ends it if it
    /// has not ended. Has no effect for a forgotten one.
    pub fn gone(&mut self, owner: OwnerId, now_ms: u64) {
        let _ = self.end(owner, now_ms);
        let opened = self.owners.get_mut(&owner).map(|known| std::mem::take(&mut known.opened));
        for slab in opened.into_iter().flatten() {
            self.left(slab, owner, now_ms);
        }
        self.forget_if_done(owner);
    }

    /// Ends leases whose deadline has passed: their blocks rest. Returns how many.
    pub fn expire(&mut self, now_ms: u64) -> usize {
        let is_late = |holding: &Holding| self.ends_ms(holding).is_some_and(|ends_ms| now_ms >= ends_ms);
        let late: Vec<LeaseId> =
            self.leases.iter().filter(|(_, holding)| is_late(holding)).map(|(id, _)| *id).collect();
        for &lease in &late {
            let owner = self.leases.get(&lease).map(|holding| holding.owner);
            if let Some(owner) = owner.and_then(|owner| self.owners.get_mut(&owner)) {
                owner.expired += 1;
            }
            self.counts.expired += 1;
            self.rest(lease, now_ms);
        }
        late.len()
    }

    /// Ends any owner's lease before its time: its block rests as if its deadline had passed, and
    /// its owner gets the same report.
    ///
    /// # Errors
    /// [`Refusal::UnknownLease`]; [`Refusal::Resting`] if it has ended already.
    pub fn take_back(&mut self, lease: LeaseId, now_ms: u64) -> Result<(), Refusal> {
        let holding = self.leases.get(&lease).ok_or(Refusal::UnknownLease { lease: lease.0 })?;
        if holding.is_resting {
            return Err(Refusal::Resting { lease: lease.0 });
        }
        if let Some(owner) = self.owners.get_mut(&holding.owner) {
            owner.expired += 1;
        }
        self.counts.expired += 1;
        self.rest(lease, now_ms);
        Ok(())
    }

    /// Frees the memory of an ended owner, although processes that could write there are not known
    /// to be gone. The caller guarantees that they no longer write; if they do, they write to a
    /// later lease of another owner of the same tenant. Returns the number of leases.
    ///
    /// # Errors
    /// [`Refusal::UnknownOwner`]; [`Refusal::OwnerLives`].
    pub fn disown(&mut self, owner: OwnerId, now_ms: u64) -> Result<usize, Refusal> {
        let known = self.owners.get(&owner).ok_or(Refusal::UnknownOwner { owner: owner.0 })?;
        if !known.has_ended {
            return Err(Refusal::OwnerLives { owner: owner.0 });
        }
        let leases: Vec<LeaseId> = known.leases.iter().copied().collect();
        for lease in &leases {
            self.release(*lease, now_ms);
        }
        // It still has its slabs open: none returns to the driver before it is closed.
        self.forget_if_done(owner);
        Ok(leases.len())
    }

    /// When a lease ends without a sign of life from its owner.
    pub(crate) fn ends_ms(&self, holding: &Holding) -> Option<u64> {
        if holding.ttl_ms == 0 || holding.is_resting {
            return None;
        }
        let from_ms = self.owners.get(&holding.owner)?.last_seen_ms.max(holding.since_ms);
        Some(from_ms.saturating_add(u64::from(holding.ttl_ms)))
    }

    /// An owner that has not ended.
    pub(crate) fn living(&self, owner: OwnerId) -> Result<&Owner, Refusal> {
        let unknown = Refusal::UnknownOwner { owner: owner.0 };
        self.owners.get(&owner).filter(|known| !known.has_ended).ok_or(unknown)
    }

    /// Ends a lease whose block may still be written.
    fn rest(&mut self, lease: LeaseId, now_ms: u64) {
        let Some(holding) = self.leases.get_mut(&lease) else { return };
        if !holding.is_resting {
            holding.is_resting = true;
            self.counts.resting += 1;
        }
        let slab = holding.slab;
        if let Some(slab) = self.slabs.get_mut(&slab) {
            slab.resting.insert(lease);
        }
        self.free_if_left(lease, now_ms);
    }

    /// A slab was closed.
    fn left(&mut self, slab: SlabId, by: OwnerId, now_ms: u64) {
        let Some(known) = self.slabs.get_mut(&slab) else { return };
        known.openers.remove(&by);
        let resting: Vec<LeaseId> = known.resting.iter().copied().collect();
        for lease in resting {
            self.free_if_left(lease, now_ms);
        }
    }

    /// Frees a resting block that no process can write through its lease any more. A living owner
    /// can still open the slab, whatever the deadline was.
    fn free_if_left(&mut self, lease: LeaseId, now_ms: u64) {
        let Some(holding) = self.leases.get(&lease) else { return };
        let (Some(slab), Some(owner)) = (self.slabs.get(&holding.slab), self.owners.get(&holding.owner))
        else {
            return;
        };
        let is_open = slab.openers.contains(&holding.owner) || !slab.openers.is_disjoint(&owner.members);
        if owner.has_ended && !is_open {
            let owner = holding.owner;
            self.release(lease, now_ms);
            self.forget_if_done(owner);
        }
    }

    /// Forgets an owner that has ended, has no leases and no open slabs.
    fn forget_if_done(&mut self, owner: OwnerId) {
        let done = |known: &Owner| known.has_ended && known.leases.is_empty() && known.opened.is_empty();
        if !self.owners.get(&owner).is_some_and(done) {
            return;
        }
        let Some(known) = self.owners.remove(&owner) else { return };
        for of in &known.member_of {
            if let Some(of) = self.owners.get_mut(of) {
                of.members.remove(&owner);
            }
        }
        for member in &known.members {
            if let Some(member) = self.owners.get_mut(member) {
                member.member_of.remove(&owner);
            }
        }
        if let Some(tenant) = self.tenants.get_mut(&known.tenant) {
            tenant.owners -= 1;
        }
    }
}
