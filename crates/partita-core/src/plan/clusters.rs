//! What clusters of thread blocks a set of TPCs can run.

use crate::{Topology, TpcSet};

/// What clusters of thread blocks a set of TPCs can run, with one block on each SM.
///
/// The blocks of a cluster run in one GPC at the same time. A GPC that gives the set `n` SMs has
/// room for `n / size` clusters of `size` blocks. A cluster with more blocks than the SMs of the
/// best GPC never starts (measured on H200: `docs/hardware.md`). Small blocks share SMs, so that
/// more of their clusters may be active than these numbers; never one that is larger than
/// [`largest_sms`](Self::largest_sms).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Clusters {
    /// SMs of the largest cluster: the most that one GPC gives.
    pub largest_sms: u32,
    /// How many clusters of each of [`Self::SIZES`] can be active at once.
    pub active: [u32; Self::SIZES.len()],
}

impl Clusters {
    /// The sizes that are counted, in blocks: the powers of two up to the largest cluster of
    /// today's devices.
    pub const SIZES: [u32; 4] = [2, 4, 8, 16];

    /// The clusters that `set` can run.
    #[must_use]
    pub fn of(topology: &Topology, set: &TpcSet) -> Self {
        let sms = |gpc: TpcSet| (gpc & *set).len() * topology.sms_per_tpc();
        Self {
            largest_sms: topology.max_cluster_sms(set),
            active: Self::SIZES.map(|size| topology.gpcs().iter().map(|gpc| sms(gpc.tpcs) / size).sum()),
        }
    }

    /// Sizes and how many clusters of each can be active at once.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        Self::SIZES.into_iter().zip(self.active)
    }
}
