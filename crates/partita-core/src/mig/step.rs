//! The steps from the present instances to others.

use alloc::vec::Vec;

use super::instance::GpuInstance;
use super::profile::Slot;

/// An instance without its numbers, which the driver gives.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Placed {
    /// Where it lies.
    pub slot: Slot,
    /// The number of its profile.
    pub profile: u32,
    /// The slices of each of its compute instances, in ascending order.
    pub computes: Vec<u32>,
}

/// The instances of a GPU without their numbers, in ascending order.
pub type Layout = Vec<Placed>;

/// One call of NVML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Destroy a compute instance.
    DestroyCompute {
        /// The number of its GPU instance.
        gpu_instance: u32,
        /// Its own number.
        compute_instance: u32,
    },
    /// Destroy a GPU instance, which has no compute instances any more.
    DestroyGpu {
        /// Its number.
        gpu_instance: u32,
    },
    /// Create a GPU instance.
    CreateGpu {
        /// The number of its profile.
        profile: u32,
        /// Where it lies.
        slot: Slot,
    },
    /// Create a compute instance.
    CreateCompute {
        /// Where its GPU instance lies.
        slot: Slot,
        /// Its compute slices.
        slices: u32,
    },
}

/// The layout of instances.
#[must_use]
pub fn layout_of(instances: &[GpuInstance]) -> Layout {
    let mut layout: Layout = instances.iter().map(placed).collect();
    layout.sort_unstable();
    layout
}

fn placed(instance: &GpuInstance) -> Placed {
    let mut computes: Vec<u32> = instance.computes.iter().map(|compute| compute.slices).collect();
    computes.sort_unstable();
    Placed { slot: instance.slot, profile: instance.profile, computes }
}

/// The steps from the present instances to a layout. What is in place stays. Everything that must
/// go is destroyed before anything is created, because an instance may need the slices of several.
#[must_use]
pub fn towards(current: &[GpuInstance], layout: &[Placed]) -> Vec<Step> {
    let is_at = |placed: &Placed, instance: &GpuInstance| {
        (placed.slot, placed.profile) == (instance.slot, instance.profile)
    };
    let mut steps = Vec::new();
    let mut creations = Vec::new();
    for instance in current {
        let stays = layout.iter().find(|placed| is_at(placed, instance));
        if stays.is_some_and(|wanted| *wanted == placed(instance)) {
            continue;
        }
        let gpu_instance = instance.id;
        steps.extend(
            instance
                .computes
                .iter()
                .map(|compute| Step::DestroyCompute { gpu_instance, compute_instance: compute.id }),
        );
        if stays.is_none() {
            steps.push(Step::DestroyGpu { gpu_instance });
        }
    }
    for wanted in layout {
        let slot = wanted.slot;
        let present = current.iter().find(|instance| is_at(wanted, instance));
        if present.is_some_and(|instance| placed(instance) == *wanted) {
            continue;
        }
        if present.is_none() {
            creations.push(Step::CreateGpu { profile: wanted.profile, slot });
        }
        creations.extend(wanted.computes.iter().map(|&slices| Step::CreateCompute { slot, slices }));
    }
    steps.append(&mut creations);
    steps
}
