//! The books, for observers.

use super::{LeaseId, OwnerId, Pool, SlabId, TenantId};

/// Updated with every change.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) bytes_used: u64,
    pub(crate) resting: usize,
    pub(crate) leased: u64,
    pub(crate) given_back: u64,
    pub(crate) expired: u64,
    pub(crate) slabs_made: u64,
    pub(crate) slabs_freed: u64,
}

/// Sums over all tenants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub tenants: u64,
    /// Connections and chains, including ended ones that are not gone.
    pub owners: u64,
    pub slabs: u64,
    pub slab_bytes: u64,
    /// Bytes of blocks that are leased or rest: the active part.
    pub used_bytes: u64,
    /// Leases, without those that rest.
    pub leases: u64,
    /// Leases that have ended and whose blocks rest.
    pub resting: u64,
    /// Leases ever given.
    pub leased_ever: u64,
    /// Leases ever given back or taken back.
    pub given_back_ever: u64,
    /// Leases that ever ended by their deadline.
    pub expired_ever: u64,
    pub slabs_made_ever: u64,
    pub slabs_freed_ever: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseView {
    pub id: LeaseId,
    pub owner: OwnerId,
    pub tenant: TenantId,
    pub slab: SlabId,
    /// Offset of its block in the slab, in bytes.
    pub offset: u64,
    pub block_bytes: u64,
    /// Requested bytes.
    pub bytes: u64,
    /// When it was leased, in the caller's milliseconds.
    pub since_ms: u64,
    /// After how long without a sign of life it ends, in milliseconds; 0 for never.
    pub ttl_ms: u32,
    /// When it ends without a sign of life from its owner, in the caller's milliseconds; `None` for
    /// never, or if it has ended.
    pub ends_ms: Option<u64>,
    /// Whether it has ended and its block rests.
    pub is_resting: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabView {
    pub id: SlabId,
    pub tenant: TenantId,
    pub bytes: u64,
    pub block_bytes: u64,
    pub blocks: u32,
    /// The free ones of them.
    pub free_blocks: u32,
    /// How many owners have it open.
    pub openers: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantView {
    pub quota_bytes: u64,
    pub slab_bytes: u64,
    /// Bytes of its blocks that are leased or rest.
    pub used_bytes: u64,
    pub owners: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerView {
    pub tenant: TenantId,
    /// Its leases, resting ones too.
    pub leases: usize,
    /// Slabs that it has open.
    pub opened: usize,
    /// Whether it has ended and its process is not gone yet.
    pub has_ended: bool,
}

impl Pool {
    /// Sums over all tenants.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let counts = &self.counts;
        Totals {
            tenants: self.tenants.len() as u64,
            owners: self.owners.len() as u64,
            slabs: self.slabs.len() as u64,
            slab_bytes: self.slab_bytes,
            used_bytes: counts.bytes_used,
            leases: (self.leases.len() - counts.resting) as u64,
            resting: counts.resting as u64,
            leased_ever: counts.leased,
            given_back_ever: counts.given_back,
            expired_ever: counts.expired,
            slabs_made_ever: counts.slabs_made,
            slabs_freed_ever: counts.slabs_freed,
        }
    }

    /// The leases after one, in order of their numbers: a listing continues where it stopped,
    /// whatever changed meanwhile.
    pub fn leases_after(&self, after: LeaseId) -> impl Iterator<Item = LeaseView> {
        self.leases.range((std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded)).filter_map(
            |(id, holding)| {
                let slab = self.slabs.get(&holding.slab)?;
                Some(LeaseView {
                    id: *id,
                    owner: holding.owner,
                    tenant: slab.tenant,
                    slab: holding.slab,
                    offset: u64::from(holding.block) * slab.block_bytes,
                    block_bytes: slab.block_bytes,
                    bytes: holding.bytes,
                    since_ms: holding.since_ms,
                    ttl_ms: holding.ttl_ms,
                    ends_ms: self.ends_ms(holding),
                    is_resting: holding.is_resting,
                })
            },
        )
    }

    pub fn slabs(&self) -> impl Iterator<Item = SlabView> {
        self.slabs.iter().map(|(id, slab)| view_of(*id, slab))
    }

    #[must_use]
    pub fn slab(&self, slab: SlabId) -> Option<SlabView> {
        self.slabs.get(&slab).map(|known| view_of(slab, known))
    }

    #[must_use]
    pub fn tenant_view(&self, tenant: TenantId) -> Option<TenantView> {
        let known = self.tenants.get(&tenant)?;
        let used_bytes = known.sizes.iter().map(|(block_bytes, size)| block_bytes * size.used).sum();
        let (quota_bytes, slab_bytes) = (known.quota_bytes, known.slab_bytes);
        Some(TenantView { quota_bytes, slab_bytes, used_bytes, owners: known.owners })
    }

    #[must_use]
    pub fn owner_view(&self, owner: OwnerId) -> Option<OwnerView> {
        let known = self.owners.get(&owner)?;
        let (leases, opened) = (known.leases.len(), known.opened.len());
        Some(OwnerView { tenant: known.tenant, leases, opened, has_ended: known.has_ended })
    }
}

fn view_of(id: SlabId, slab: &super::slab::Slab) -> SlabView {
    SlabView {
        id,
        tenant: slab.tenant,
        bytes: slab.bytes,
        block_bytes: slab.block_bytes,
        blocks: slab.blocks,
        free_blocks: slab.free_blocks(),
        openers: slab.openers.len(),
    }
}
