//! Why a request is refused.

use thiserror::Error;

use partita_core::ByteSize;

/// Why a request is refused. It has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No such tenant.
    #[error("the tenant is not known: greet again")]
    UnknownTenant,
    /// No such owner.
    #[error("owner {owner} is not known, or has ended: use one from this connection")]
    UnknownOwner {
        /// Its number.
        owner: u64,
    },
    /// No such slab, or another tenant's.
    #[error("slab {slab} is not known to this tenant: use one that a lease of this tenant names")]
    UnknownSlab {
        /// Its number.
        slab: u64,
    },
    /// No such lease, or another tenant's.
    #[error("lease {lease} is not known to this tenant: it was given back, or its owner ended")]
    UnknownLease {
        /// Its number.
        lease: u64,
    },
    /// A lease whose owner ended or whose deadline has passed.
    #[error(
        "lease {lease} has ended, and its memory rests until its owner's process is gone: only its owner gives it back"
    )]
    Resting {
        /// Its number.
        lease: u64,
    },
    /// An owner that has not ended, and returns its leases itself.
    #[error("owner {owner} lives: end it, or end its leases one by one")]
    OwnerLives {
        /// Its number.
        owner: u64,
    },
    /// An impossible size.
    #[error("a lease of {bytes} bytes: ask for 1 byte or more, and at most {bytes_max}")]
    Bytes {
        /// The requested size.
        bytes: u64,
        /// The largest.
        bytes_max: u64,
    },
    /// Zero, or too many at once.
    #[error("{count} leases in one request: ask for 1 to {batch_max}")]
    Batch {
        /// The requested number.
        count: u32,
        /// The most.
        batch_max: u32,
    },
    /// A deadline too far away.
    #[error("a deadline of {ttl_ms} ms: at most {ttl_ms_max}, or 0 for none")]
    Ttl {
        /// The request, in milliseconds.
        ttl_ms: u32,
        /// The most, in milliseconds.
        ttl_ms_max: u32,
    },
    /// Over the tenant's quota.
    #[error(
        "over the tenant's quota of {}: it has {} in slabs, and {} more are needed; give leases back, close slabs, or raise the quota",
        ByteSize(*quota_bytes).approximate(), ByteSize(*slab_bytes).approximate(), ByteSize(*wanted_bytes).approximate()
    )]
    Quota {
        quota_bytes: u64,
        /// The tenant's slabs.
        slab_bytes: u64,
        /// The further need.
        wanted_bytes: u64,
    },
    /// Over the limit of leased memory of the GPU.
    #[error(
        "over the {} that may be leased on this GPU: {} are in slabs, and {} more are needed; end a tenant",
        ByteSize(*bytes_max).approximate(), ByteSize(*slab_bytes).approximate(), ByteSize(*wanted_bytes).approximate()
    )]
    Capacity {
        /// The most.
        bytes_max: u64,
        /// Present slabs.
        slab_bytes: u64,
        /// The further need.
        wanted_bytes: u64,
    },
    /// A quota below the tenant's slabs.
    #[error(
        "a quota of {} is less than the {} that the tenant has in slabs: end some of its components first",
        ByteSize(*quota_bytes).approximate(), ByteSize(*slab_bytes).approximate()
    )]
    QuotaInUse {
        /// The requested quota.
        quota_bytes: u64,
        /// The tenant's slabs.
        slab_bytes: u64,
    },
    /// Too many tenants.
    #[error("there are {tenants_max} tenants already: end one")]
    Tenants {
        /// The most.
        tenants_max: usize,
    },
    /// Too many owners.
    #[error("there are {owners_max} connections and chains already: end one")]
    Owners {
        /// The most.
        owners_max: usize,
    },
    /// Too many slabs.
    #[error("there are {slabs_max} slabs already: lease larger blocks, or give some back")]
    Slabs {
        /// The most.
        slabs_max: usize,
    },
    /// Too many leases.
    #[error("there are {leases} leases, and at most {leases_max} at one time: give some back")]
    Leases {
        /// How many there are.
        leases: usize,
        /// The most.
        leases_max: usize,
    },
}
