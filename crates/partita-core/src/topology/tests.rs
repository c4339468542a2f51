use std::string::ToString;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::{Topology, TopologyError, Tpc, UnknownSm};
use crate::TpcSet;
use crate::testing::{h200, topologies};

#[test]
fn an_h200_is_what_was_measured() {
    let topology = h200();
    assert_eq!((topology.tpc_count(), topology.sm_count()), (66, 132));
    let sizes: Vec<u32> = topology.gpcs().iter().map(|gpc| gpc.tpcs.len()).collect();
    assert_eq!(sizes, [9, 9, 8, 8, 8, 8, 8, 8]);
    // The first eight TPCs lie in eight GPCs: no cluster of more than one TPC fits there.
    assert_eq!(topology.max_cluster_sms(&TpcSet::first(8)), 2);
    assert_eq!(topology.max_cluster_sms(&topology.all()), 18);
    assert_eq!(topology.max_cluster_sms(&TpcSet::EMPTY), 0);
    assert_eq!(topology.sms_of(65), 130..132);
    // Some TPCs lie above bit 63, so that 64-bit masks cannot reach them.
    let all = topology.physical_set(&topology.all());
    assert_eq!(all.len(), 66);
    assert!(all.last_tpc() > Some(63));
}

#[test]
fn impossible_devices_are_refused() {
    let tpc = |gpc, physical| Tpc { gpc, physical };
    assert_eq!(Topology::new(2, vec![]), Err(TopologyError::Empty));
    assert_eq!(Topology::new(0, vec![tpc(0, 0)]), Err(TopologyError::SmsPerTpc(0)));
    assert_eq!(Topology::new(17, vec![tpc(0, 0)]), Err(TopologyError::SmsPerTpc(17)));
    let too_many: Vec<Tpc> = (0..257).map(|i| tpc(0, i)).collect();
    assert_eq!(Topology::new(2, too_many), Err(TopologyError::TooManyTpcs(257)));
    let gpcs: Vec<Tpc> = (0..33).map(|i| tpc(i, i.into())).collect();
    assert_eq!(Topology::new(2, &gpcs[..]), Err(TopologyError::TooManyGpcs(33)));
    assert!(Topology::new(2, &gpcs[..32]).is_ok());
    let far = Topology::new(2, vec![tpc(0, 1), tpc(0, 256)]).unwrap_err();
    assert_eq!(far.to_string(), "physical bit 256 of TPC 1 is above 255, the highest of a mask");
    let twice = Topology::new(2, vec![tpc(0, 1), tpc(0, 4), tpc(1, 4)]).unwrap_err();
    assert_eq!(twice.to_string(), "physical bit 4 stands for TPC 1 and for TPC 2");
}

#[test]
fn an_sm_beyond_the_device_is_named() {
    let topology = h200();
    assert_eq!(topology.logical_from_smids([0, 1, 131, 0]), Ok([0, 65].into_iter().collect()));
    let error = topology.logical_from_smids([4, 132]).unwrap_err();
    assert_eq!(error, UnknownSm { smid: 132, sm_count: 132 });
    assert_eq!(error.to_string(), "SM 132 does not exist: this device has SMs 0-131");
}

proptest! {
    #[test]
    fn numberings_agree((topology, words) in (topologies(32, 12), any::<[u64; 4]>())) {
        let any_set = TpcSet::from_words(words);
        let enabled = any_set & topology.all();

        // The GPCs are a partition of the device.
        let union = topology.gpcs().iter().fold(TpcSet::EMPTY, |all, gpc| {
            assert!(all.is_disjoint(&gpc.tpcs));
            all | gpc.tpcs
        });
        prop_assert_eq!(union, topology.all());
        prop_assert!(topology.gpcs().is_sorted_by_key(|gpc| gpc.id));
        for gpc in topology.gpcs() {
            prop_assert_eq!(topology.gpc(gpc.id), Some(gpc));
            prop_assert!(gpc.tpcs.iter().all(|tpc| topology.tpcs()[usize::from(tpc)].gpc == gpc.id));
        }

        // A bit of the mask is clear exactly if it is that of an enabled TPC.
        let disabled = TpcSet::from_words32(topology.disable_words(&any_set));
        for bit in 0..=255u8 {
            let tpc = topology.tpcs().iter().position(|tpc| tpc.physical == u16::from(bit));
            let is_enabled = tpc.is_some_and(|tpc| enabled.contains(tpc as u8));
            prop_assert_eq!(disabled.contains(bit), !is_enabled);
        }

        let sms: Vec<u32> = enabled.iter().flat_map(|tpc| topology.sms_of(tpc)).collect();
        prop_assert_eq!(sms.len() as u32, enabled.len() * topology.sms_per_tpc());
        prop_assert_eq!(topology.logical_from_smids(sms), Ok(enabled));
    }
}
