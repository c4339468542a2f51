//! The limits of a pool.

/// The limits of a [`Pool`](super::Pool). Everything that a client can make grow has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The driver's unit of allocation, or a multiple of it: sizes of slabs are multiples.
    pub granularity_bytes: u64,
    /// The largest size of a slab with several blocks.
    pub slab_bytes_max: u64,
    /// All slabs together.
    pub bytes_max: u64,
    pub tenants_max: usize,
    pub owners_max: usize,
    pub slabs_max: usize,
    /// Leases of all owners, resting ones too.
    pub leases_max: usize,
    /// Leases of one request.
    pub batch_max: u32,
    /// The longest deadline, in milliseconds.
    pub ttl_ms_max: u32,
    /// The length of a window for measuring demand, in milliseconds; not 0.
    pub window_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            granularity_bytes: 2 << 20,
            slab_bytes_max: 64 << 20,
            bytes_max: u64::MAX,
            tenants_max: 256,
            owners_max: 2048,
            slabs_max: 4096,
            leases_max: 65_536,
            batch_max: 128,
            ttl_ms_max: 3_600_000,
            window_ms: 100,
        }
    }
}
