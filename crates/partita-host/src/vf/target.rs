//! What a device is to have.

use partita_core::vf::Policy;

/// What a device is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VfTarget {
    /// So many functions (plain SR-IOV).
    Functions(u16),
    /// Exactly one vGPU of each of these types, by name or number.
    Vgpus(Vec<String>),
    /// vGPUs whose memory stands in this ratio.
    Ratio(Vec<u64>),
    /// The present vGPUs without these, by UUID or the address of their function.
    Without(Vec<String>),
    /// No vGPUs, and with plain SR-IOV no functions.
    Empty,
    /// These functions, or those of these vGPUs, ready for virtual machines.
    Bound(Vec<String>),
    /// These functions with the drivers that the kernel finds for them.
    Released(Vec<String>),
    /// What there was before a change that was interrupted.
    Before,
}

/// How vGPUs are to share time; what is `None` stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VfTime {
    /// The policy.
    pub policy: Option<Policy>,
    /// The length of a time slice in nanoseconds.
    pub slice_ns: Option<u32>,
}
