//! The device and the tenant's part of it, from limits, in the planner's terms.

use alloc::vec::Vec;

use partita_core::{Topology, TopologyError, Tpc, TpcSet};

use crate::limits::{FLAG_GPCS_UNPROVED, Limits};

impl Limits {
    /// The device that the limits describe.
    ///
    /// # Errors
    /// Why such a device cannot exist.
    pub fn topology(&self) -> Result<Topology, TopologyError> {
        let tpcs: Vec<Tpc> = (self.gpc_of_logical.iter().zip(&self.physical_of_logical))
            .take(self.tpc_count as usize)
            .map(|(&gpc, &physical)| Tpc { gpc, physical })
            .collect();
        Topology::new(self.sms_per_tpc, tpcs)
    }

    /// Writes a device into the limits. The flags say whether its GPCs are proved.
    pub fn set_topology(&mut self, topology: &Topology) {
        self.sms_per_tpc = topology.sms_per_tpc();
        self.tpc_count = topology.tpc_count();
        let tpcs = self.physical_of_logical.iter_mut().zip(&mut self.gpc_of_logical);
        for ((physical, gpc), tpc) in tpcs.zip(topology.tpcs()) {
            (*physical, *gpc) = (tpc.physical, tpc.gpc);
        }
    }

    /// Writes a partition into the limits: the set and all that follows from it.
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
