//! The kernel driver's control interface: the places of a device's TPCs.

use partita_core::Topology;
use partita_core::survey::SmPlace;

/// Answers of the control interface, with floorsweeping from the driver's view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlSpec {
    /// Each TPC, in logical order.
    pub places: Vec<TpcPlace>,
    /// The mask of TPCs that the driver gives for GPC 0 and following.
    pub tpc_masks: Vec<u32>,
}

/// A TPC's place: the common fields of its SMs in `NV2080_CTRL_GR_GET_GLOBAL_SM_ORDER_PARAMS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TpcPlace {
    /// `gpcId`: the GPC of the chip.
    pub gpc: u16,
    /// `localTpcId`: the TPC inside its GPC.
    pub tpc_in_gpc: u16,
    /// `virtualGpcId`: the GPC for scheduling.
    pub virtual_gpc: u16,
    /// `migratableTpcId`: the TPC inside its virtual GPC.
    pub migratable_tpc: u16,
    /// `ugpuId`: the half of the chip.
    pub ugpu: u16,
    /// `physicalCpcId`: the CPC inside its GPC.
    pub cpc: u16,
    /// `virtualTpcId`.
    pub virtual_tpc: u16,
}

/// TPCs of a CPC, as on the measured H200.
const TPCS_PER_CPC: u16 = 3;

impl ControlSpec {
    /// The assumed answers for an unmeasured device: TPCs of a GPC counted in logical order, one
    /// uGPU.
    #[must_use]
    pub fn of(topology: &Topology) -> Self {
        let mut counts: Vec<u16> = Vec::new();
        let places = topology.tpcs().iter().map(|tpc| {
            let gpc = usize::from(tpc.gpc);
            counts.resize(counts.len().max(gpc + 1), 0);
            let tpc_in_gpc = counts[gpc];
            counts[gpc] += 1;
            TpcPlace {
                gpc: tpc.gpc.into(),
                tpc_in_gpc,
                virtual_gpc: tpc.gpc.into(),
                migratable_tpc: tpc_in_gpc,
                ugpu: 0,
                cpc: tpc_in_gpc / TPCS_PER_CPC,
                virtual_tpc: tpc_in_gpc,
            }
        });
        let places: Vec<TpcPlace> = places.collect();
        Self { places, tpc_masks: counts.iter().map(|count| (1u32 << count) - 1).collect() }
    }

    /// TPCs of a GPC of the chip; 0 for a missing one.
    #[must_use]
    pub fn tpcs_of(&self, gpc: u32) -> u32 {
        self.places.iter().filter(|place| u32::from(place.gpc) == gpc).count() as u32
    }

    /// Every SM in the order of `%smid`.
    pub fn sms(&self, sms_per_tpc: u32) -> impl Iterator<Item = SmPlace> + '_ {
        (0u16..).zip(&self.places).flat_map(move |(tpc, place)| {
            (0..sms_per_tpc as u16).map(move |sm_in_tpc| SmPlace {
                gpc: place.gpc,
                tpc_in_gpc: place.tpc_in_gpc,
                sm_in_tpc,
                tpc,
                virtual_gpc: place.virtual_gpc,
                migratable_tpc: place.migratable_tpc,
                ugpu: Some(place.ugpu),
                cpc: Some(place.cpc),
                virtual_tpc: Some(place.virtual_tpc),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::catalogue;

    #[test]
    fn every_device_is_placed_as_its_topology_is() {
        for spec in catalogue::all() {
            assert_eq!(spec.control.places.len(), spec.topology.tpcs().len(), "{}", spec.id);
            // TPCs of one virtual GPC are of one GPC of the topology, and the reverse.
            let groups = spec.control.places.iter().map(|place| place.virtual_gpc).zip(spec.topology.tpcs());
            let pairs: BTreeSet<(u16, u8)> = groups.map(|(group, tpc)| (group, tpc.gpc)).collect();
            let groups: BTreeSet<u16> = pairs.iter().map(|(group, _)| *group).collect();
            assert_eq!((pairs.len(), groups.len()), (spec.topology.gpcs().len(), spec.topology.gpcs().len()));
            let masked: u32 = spec.control.tpc_masks.iter().map(|mask| mask.count_ones()).sum();
            assert_eq!(masked, spec.tpc_count(), "{}", spec.id);
            let last = spec.control.sms(spec.topology.sms_per_tpc()).last().unwrap();
            assert_eq!(u32::from(last.tpc) + 1, spec.tpc_count(), "{}", spec.id);
        }
    }

    #[test]
    fn an_h200_puts_singletons_into_the_gpc_that_lost_them() {
        let spec = catalogue::device("h200").unwrap();
        for (place, tpc) in spec.control.places.iter().zip(spec.topology.tpcs()) {
            let bit = if place.virtual_gpc < 8 {
                9 * place.virtual_gpc + place.migratable_tpc
            } else {
                64 + place.virtual_gpc
            };
            assert_eq!(bit, tpc.physical);
            assert_eq!(place.cpc, place.tpc_in_gpc / 3);
        }
        assert_eq!([0, 1, 7, 8].map(|gpc| spec.control.tpcs_of(gpc)), [9, 8, 9, 0]);
    }
}
