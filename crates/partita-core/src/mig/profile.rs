//! The profiles of a GPU's instances.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// A run of a GPU's memory slices. Two instances never share a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// The first slice.
    pub start: u32,
    /// How many slices.
    pub size: u32,
}

impl Slot {
    /// The slices as bits. `None` for an empty slot, and beyond 64 slices, which no GPU has.
    #[must_use]
    pub fn bits(self) -> Option<u64> {
        let end = self.start.checked_add(self.size).filter(|end| *end <= u64::BITS)?;
        let below = |slice: u32| 1_u64.checked_shl(slice).map_or(u64::MAX, |bit| bit - 1);
        (self.size > 0).then(|| below(end) & !below(self.start))
    }
}

impl fmt::Display for Slot {
    /// As `nvidia-smi mig -lgi` writes it: `4:2` is two slices from the fourth on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.start, self.size)
    }
}

/// A kind of GPU instance, as NVML describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The number that NVML and `nvidia-smi mig -cgi` use.
    pub id: u32,
    /// The name without `MIG`: `3g.71gb`.
    pub name: String,
    /// Compute slices.
    pub slices: u32,
    /// SMs.
    pub sms: u32,
    /// Device memory in MiB.
    pub memory_mib: u64,
    /// The most instances of it on one GPU.
    pub count_max: u32,
    /// Where an instance can lie, in ascending order.
    pub slots: Vec<Slot>,
}

impl Profile {
    /// Its media attribute: `+me` of `1g.18gb+me`, otherwise empty.
    #[must_use]
    pub fn attribute(&self) -> &str {
        self.name.find(['+', '-']).map_or("", |at| &self.name[at..])
    }
}
