//! The instances that a GPU has.

use alloc::vec::Vec;

use super::profile::{Profile, Slot};

/// A part of a GPU instance's compute slices, which programs see as a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ComputeInstance {
    /// Its number in the GPU instance.
    pub id: u32,
    /// Its compute slices.
    pub slices: u32,
}

/// A part of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInstance {
    /// Its number on the GPU.
    pub id: u32,
    /// The number of its profile.
    pub profile: u32,
    /// Where it lies.
    pub slot: Slot,
    /// Its compute instances.
    pub computes: Vec<ComputeInstance>,
}

impl GpuInstance {
    /// Whether one compute instance has all of its slices, as Partita creates it.
    #[must_use]
    pub fn is_whole(&self, profile: &Profile) -> bool {
        matches!(self.computes[..], [only] if only.slices == profile.slices)
    }
}
