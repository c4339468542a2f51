//! Identifiers. A pool never reuses a number, so a stale one is unknown and never another's.

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);
    )*};
}

ids! {
    /// A tenant.
    TenantId;
    /// A user of memory: a connection, or a chain.
    OwnerId;
    /// A slab: one allocation of the driver's.
    SlabId;
    /// A lease.
    LeaseId;
}
