//! Whether a launch can ever run on a set of TPCs.
//!
//! The hardware does not refuse a launch that cannot run: it waits for ever for SMs that a mask has
//! disabled, and everything behind the launch waits with it. The driver's own checks and occupancy
//! queries do not see the mask (measured on H200: `docs/hardware.md`). So code that lets a launch
//! through under a mask first applies the rules here.

use thiserror::Error;

use crate::{Topology, TpcSet};

/// The resources that a launch needs on SMs at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residence {
    /// Blocks of the grid.
    pub grid_blocks: u64,
    /// Blocks of a cluster, 1 without clusters: they run at one time, each on another SM of one
    /// GPC.
    pub cluster_blocks: u32,
    /// Whether all blocks of the grid must be resident at one time.
    pub cooperative: bool,
    /// Blocks that one SM holds, or fewer, from the driver's occupancy query. Only cooperative
    /// launches need it.
    pub blocks_per_sm: u32,
}

/// Why a launch can never run on a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Misfit {
    /// The set has no TPC of the device.
    #[error("none of the set's TPCs is there: name at least one that is")]
    NoTpc,
    /// A cluster has more blocks than any GPC gives the set SMs. CUDA's error for it is
    /// `CUDA_ERROR_INVALID_CLUSTER_SIZE`.
    #[error(
        "a cluster of {cluster_blocks} blocks needs that many SMs of one GPC, and the set has at most {sms_max} in any: launch smaller \
         clusters, or give it more TPCs of one GPC"
    )]
    Cluster {
        /// Blocks of a cluster.
        cluster_blocks: u32,
        /// The most SMs that one GPC gives the set.
        sms_max: u32,
    },
    /// A cooperative grid has more blocks than the set holds. CUDA's error for it is
    /// `CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE`.
    #[error(
        "a cooperative grid of {grid_blocks} blocks must be resident at one time, and the set holds {blocks_max}: launch fewer blocks, or \
         give it more TPCs"
    )]
    Cooperative {
        /// Blocks of the grid.
        grid_blocks: u64,
        /// The most blocks that the set holds.
        blocks_max: u64,
    },
}

impl Residence {
    /// Whether the launch can run on the TPCs of `set`, on an otherwise idle device.
    ///
    /// # Errors
    /// The reason that it would stay pending for ever.
    pub fn fits(&self, topology: &Topology, set: &TpcSet) -> Result<(), Misfit> {
        self.fits_groups(topology.gpcs().iter().map(|gpc| (gpc.tpcs & *set).len() * topology.sms_per_tpc()))
    }

    /// As [`Self::fits`], by the number of SMs that each GPC gives the set. If GPCs are not known,
    /// each TPC counts as a GPC: its SMs do lie together.
    ///
    /// # Errors
    /// As [`Self::fits`].
    pub fn fits_groups(&self, sms: impl Iterator<Item = u32> + Clone) -> Result<(), Misfit> {
        let sms_max = sms.clone().max().unwrap_or(0);
        if sms_max == 0 {
            return Err(Misfit::NoTpc);
        }
        let Self { grid_blocks, cluster_blocks, .. } = *self;
        if cluster_blocks > 1 && cluster_blocks > sms_max {
            return Err(Misfit::Cluster { cluster_blocks, sms_max });
        }
        if self.cooperative {
            let blocks_max = resident_blocks(sms, cluster_blocks, self.blocks_per_sm);
            if grid_blocks > blocks_max {
                return Err(Misfit::Cooperative { grid_blocks, blocks_max });
            }
        }
        Ok(())
    }
}

/// The most blocks, in whole clusters, that are resident at one time, if the GPCs give these `sms`
/// and an SM holds `blocks_per_sm`.
///
/// A cluster takes as many SMs of one GPC as it has blocks. If a GPC has that many, spreading each
/// cluster over the SMs with most room leaves less than one cluster's blocks of its room unused; if
/// it has fewer, it runs none.
#[must_use]
pub fn resident_blocks(sms: impl Iterator<Item = u32>, cluster_blocks: u32, blocks_per_sm: u32) -> u64 {
    let size = u64::from(cluster_blocks.max(1));
    sms.map(u64::from)
        .filter(|&sms| sms >= size)
        .map(|sms| sms * u64::from(blocks_per_sm) / size * size)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tpc;
    use alloc::vec::Vec;

    /// Two GPCs of three and two TPCs of two SMs, numbered in turns.
    fn topology() -> Topology {
        let tpcs = [0, 1, 0, 1, 0].into_iter().zip(0..).map(|(gpc, physical)| Tpc { gpc, physical });
        Topology::new(2, tpcs.collect::<Vec<_>>()).unwrap()
    }

    fn clusters(cluster_blocks: u32) -> Residence {
        Residence { grid_blocks: 64, cluster_blocks, cooperative: false, blocks_per_sm: 1 }
    }

    fn cooperative(grid_blocks: u64, cluster_blocks: u32) -> Residence {
        Residence { grid_blocks, cluster_blocks, cooperative: true, blocks_per_sm: 2 }
    }

    #[test]
    fn a_cluster_fits_into_the_largest_gpc_of_the_set() {
        let topology = topology();
        let all = topology.all();
        assert_eq!(clusters(6).fits(&topology, &all), Ok(()));
        assert_eq!(clusters(7).fits(&topology, &all), Err(Misfit::Cluster { cluster_blocks: 7, sms_max: 6 }));
        // One TPC of each GPC.
        assert_eq!(clusters(2).fits(&topology, &TpcSet::first(2)), Ok(()));
        let misfit = clusters(3).fits(&topology, &TpcSet::first(2));
        assert_eq!(misfit, Err(Misfit::Cluster { cluster_blocks: 3, sms_max: 2 }));
        // No cluster needs nothing but a TPC.
        assert_eq!(clusters(1).fits(&topology, &TpcSet::single(4)), Ok(()));
    }

    #[test]
    fn a_cooperative_grid_is_resident_as_a_whole() {
        let topology = topology();
        assert_eq!(cooperative(8, 1).fits(&topology, &TpcSet::first(2)), Ok(()));
        let misfit = cooperative(9, 1).fits(&topology, &TpcSet::first(2));
        assert_eq!(misfit, Err(Misfit::Cooperative { grid_blocks: 9, blocks_max: 8 }));
        // Clusters of 4: three in the first GPC's 12 places, two in the second's 8; of 5: two, and
        // none in a GPC of 4 SMs.
        assert_eq!(cooperative(20, 4).fits(&topology, &topology.all()), Ok(()));
        let misfit = cooperative(15, 5).fits(&topology, &topology.all());
        assert_eq!(misfit, Err(Misfit::Cooperative { grid_blocks: 15, blocks_max: 10 }));
    }

    #[test]
    fn nothing_runs_on_nothing() {
        let topology = topology();
        for set in [TpcSet::EMPTY, TpcSet::single(5), TpcSet::single(255)] {
            for launch in [clusters(1), clusters(4), cooperative(1, 1)] {
                assert_eq!(launch.fits(&topology, &set), Err(Misfit::NoTpc));
            }
        }
    }

    #[test]
    fn where_gpcs_are_not_known_each_tpc_stands_for_itself() {
        let sms = [2u32, 2, 2];
        assert_eq!(clusters(2).fits_groups(sms.into_iter()), Ok(()));
        let misfit = clusters(4).fits_groups(sms.into_iter());
        assert_eq!(misfit, Err(Misfit::Cluster { cluster_blocks: 4, sms_max: 2 }));
        assert_eq!(resident_blocks(sms.into_iter(), 2, 3), 18);
    }
}
