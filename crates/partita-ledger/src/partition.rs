//! What limits say of their device and of the tenant's part of it, in the planner's terms.

use alloc::vec::Vec;

use partita_core::{Topology, TopologyError, Tpc, TpcSet};

use crate::limits::{FLAG_GPCS_UNPROVED, Limits};

impl Limits {
    /// The device that they describe.
    ///
    /// # Errors
    /// Why there is no such device.
    pub fn topology(&self) -> Result<Topology, TopologyError> {
        let tpcs: Vec<Tpc> = (self.gpc_of_logical.iter().zip(&self.physical_of_logical))
            .take(self.tpc_count as usize)
            .map(|(&gpc, &physical)| Tpc { gpc, physical })
            .collect();
        Topology::new(self.sms_per_tpc, tpcs)
    }

    /// Has them describe a device. Whether its GPCs are proved is in the flags.
    pub fn set_topology(&mut self, topology: &Topology) {
        self.sms_per_tpc = topology.sms_per_tpc();
        self.tpc_count = topology.tpc_count();
        let tpcs = self.physical_of_logical.iter_mut().zip(&mut self.gpc_of_logical);
        for ((physical, gpc), tpc) in tpcs.zip(topology.tpcs()) {
            (*physical, *gpc) = (tpc.physical, tpc.gpc);
        }
    }

    /// Puts a partition in: the set and all that follows from it.
    pub fn set_partition(&mut self, topology: &Topology, set: &TpcSet) {
        self.set = set.to_words();
        self.qmd_disable = topology.disable_words(set);
        // A TPC lies in one GPC whatever the others do.
        self.max_cluster_sms = match self.flags & FLAG_GPCS_UNPROVED {
            0 => topology.max_cluster_sms(set),
            _ => topology.sms_per_tpc().min(topology.max_cluster_sms(set)),
        };
    }
}
