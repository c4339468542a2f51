//! What things are called. No number is ever given twice by one pool, so a stale one is unknown and
//! never somebody else's.

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
    /// Whoever leases or opens memory: a connection, or a chain.
    OwnerId;
    /// A slab: one allocation of the driver's.
    SlabId;
    /// A lease.
    LeaseId;
}
