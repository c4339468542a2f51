//! Launches that can never be dispatched, and why.
//!
//! Hardware does not refuse them: they stay pending for ever, with all later works on the stream.

use core::fmt;

use partita_core::{Misfit, Residence};

use crate::sm::Footprint;
use crate::spec::DeviceSpec;
use crate::work::KernelWork;

/// Why a launch can never be dispatched on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeverRuns {
    /// The launch enables no TPC that the device has.
    NoLiveTpc,
    /// One block needs more than a whole SM has.
    BlockTooLarge {
        /// The scarce resource.
        resource: SmResource,
        /// The block's need, in the resource's unit.
        needed: u32,
        /// The SM's amount.
        available: u32,
    },
    /// A cluster needs more SMs of one GPC than any GPC has enabled.
    ClusterTooLarge {
        /// Blocks of one cluster, each on another SM.
        cluster_blocks: u32,
        /// Most SMs that one GPC has enabled for this launch.
        gpc_sms_max: u32,
    },
    /// A cooperative grid has more blocks than can be resident at once.
    CooperativeTooLarge {
        grid_blocks: u64,
        /// Most blocks that the enabled SMs hold.
        resident_max: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmResource {
    Threads,
    Registers,
    /// Shared memory in bytes.
    SharedMemory,
}

impl fmt::Display for SmResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Threads => "threads",
            Self::Registers => "registers",
            Self::SharedMemory => "bytes of shared memory",
        })
    }
}

impl fmt::Display for NeverRuns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLiveTpc => f.write_str("its mask enables no TPC of this device"),
            Self::BlockTooLarge { resource, needed, available } => {
                write!(f, "one block needs {needed} {resource}, an SM has {available}")
            }
            Self::ClusterTooLarge { cluster_blocks, gpc_sms_max } => write!(
                f,
                "a cluster of {cluster_blocks} blocks needs that many SMs of one GPC, at most {gpc_sms_max} are enabled in any"
            ),
            Self::CooperativeTooLarge { grid_blocks, resident_max } => write!(
                f,
                "a cooperative grid of {grid_blocks} blocks must be resident at once, the enabled SMs hold {resident_max}"
            ),
        }
    }
}

impl core::error::Error for NeverRuns {}

impl KernelWork {
    /// Whether this launch can be dispatched on an otherwise idle device.
    ///
    /// # Errors
    /// The reason that it would stay pending for ever.
    pub fn check(&self, spec: &DeviceSpec) -> Result<(), NeverRuns> {
        let enabled = self.enabled & spec.topology.all();
        if enabled.is_empty() {
            return Err(NeverRuns::NoLiveTpc);
        }
        let sm = &spec.sm;
        let block = Footprint::of(self, sm);
        for (resource, needed, available) in [
            (SmResource::Threads, block.threads, sm.threads_max),
            (SmResource::Registers, block.registers, sm.registers),
            (SmResource::SharedMemory, block.shared_bytes, sm.shared_bytes),
        ] {
            if needed > available {
                return Err(NeverRuns::BlockTooLarge { resource, needed, available });
            }
        }
        let needs = Residence {
            grid_blocks: self.grid_blocks,
            cluster_blocks: self.cluster_blocks,
            cooperative: self.cooperative,
            blocks_per_sm: block.blocks_per_sm(sm),
        };
        needs.fits(&spec.topology, &enabled).map_err(|misfit| match misfit {
            Misfit::Cluster { cluster_blocks, sms_max } => {
                NeverRuns::ClusterTooLarge { cluster_blocks, gpc_sms_max: sms_max }
            }
            Misfit::Cooperative { grid_blocks, blocks_max } => {
                NeverRuns::CooperativeTooLarge { grid_blocks, resident_max: blocks_max }
            }
            _ => NeverRuns::NoLiveTpc,
        })
    }

    /// Most blocks of this launch that can be resident at once on an otherwise idle device.
    #[must_use]
    pub fn resident_blocks_max(&self, spec: &DeviceSpec) -> u64 {
        let enabled = self.enabled & spec.topology.all();
        let per_sm = Footprint::of(self, &spec.sm).blocks_per_sm(&spec.sm);
        let sms_per_tpc = spec.topology.sms_per_tpc();
        let sms = spec.topology.gpcs().iter().map(|gpc| (gpc.tpcs & enabled).len() * sms_per_tpc);
        partita_core::resident_blocks(sms, self.cluster_blocks, per_sm)
    }
}
