use super::*;

#[test]
fn every_name_leads_to_its_device() {
    for (name, spec) in NAMES.iter().zip(all()) {
        assert_eq!(device(name).unwrap().id, *name);
        assert_eq!(device(&format!("sim:{name}")).unwrap().id, *name);
        assert_eq!(spec.id, *name);
        assert!(spec.scheduler.task_slots > 0 && spec.scheduler.queues_max >= spec.scheduler.queues_default);
        // Compute capability 3.0 has no stream priorities.
        let has_priorities = spec.compute_capability > crate::ComputeCapability::new(3, 0);
        assert_eq!(spec.scheduler.priority_greatest < spec.scheduler.priority_least, has_priorities);
    }
    assert_eq!(device("sim").unwrap().id, DEFAULT);
    assert_eq!(device("sim:GTX1060_3GB").unwrap().id, "gtx1060-3gb");
}

#[test]
fn an_unknown_name_is_told_the_known_ones() {
    let error = device("sim:h900").unwrap_err().to_string();
    assert_eq!(
        error,
        "no simulated device is called 'sim:h900'; known are sim:h200, sim:a100, sim:gtx1060-3gb, sim:gtx-680, \
         sim:tesla-k40, sim:gtx970, sim:p100, sim:titan-v, sim:xavier, sim:rtx2060, sim:rtx3070, sim:rtx6000-ada, \
         sim:l40s, sim:h100, sim:h100-v3, sim:b200, sim:gb10"
    );
}

#[test]
fn the_h200_agrees_with_what_was_measured() {
    let spec = device("h200").unwrap();
    let t = &spec.topology;
    assert_eq!((t.tpc_count(), t.sm_count()), (66, 132));
    let bits: Vec<u16> = t.tpcs().iter().map(|tpc| tpc.physical).collect();
    // A 64-bit mask cannot reach 12 of the TPCs.
    let mut high: Vec<u16> = bits.iter().copied().filter(|&b| b >= 64).collect();
    high.sort_unstable();
    assert_eq!(high, [64, 65, 66, 67, 68, 69, 70, 71, 75, 78, 81, 83]);
    // The first eight logical TPCs lie in eight GPCs: one TPC's two SMs are the largest cluster there.
    assert_eq!(t.max_cluster_sms(&partita_core::TpcSet::first(8)), 2);
    // A cluster of 16 does not fit into logical 0 to 32, but does into the whole device.
    assert!(t.max_cluster_sms(&partita_core::TpcSet::first(33)) < 16);
    assert!(t.max_cluster_sms(&t.all()) >= 16);
    // GPC-major with stride 9 inside the eight regular GPCs.
    for tpc in t.tpcs().iter().filter(|tpc| tpc.physical < 72) {
        assert_eq!(u16::from(tpc.gpc), tpc.physical / 9);
    }
    assert_eq!(spec.memory.capacity_bytes, 143_771 * 1024 * 1024);
}

/// TPCs, SMs, GPCs, and the greatest bit of a mask.
#[test]
fn the_other_devices_have_their_published_sizes() {
    let sizes = [
        ("gtx-680", (8, 8, 4, 7)),
        ("tesla-k40", (15, 15, 5, 14)),
        ("gtx970", (13, 13, 4, 12)),
        ("gtx1060-3gb", (9, 9, 2, 8)),
        ("p100", (28, 56, 6, 27)),
        ("titan-v", (40, 80, 6, 39)),
        ("xavier", (4, 8, 1, 3)),
        ("rtx2060", (15, 30, 3, 14)),
        ("a100", (54, 108, 7, 53)),
        ("rtx3070", (23, 46, 6, 22)),
        ("rtx6000-ada", (71, 142, 12, 70)),
        ("l40s", (71, 142, 12, 70)),
        ("h100", (66, 132, 8, 71)),
        ("h100-v3", (57, 114, 7, 56)),
        ("gb10", (24, 48, 6, 23)),
        ("b200", (74, 148, 8, 128 + 38)),
    ];
    for (name, expected) in sizes {
        let spec = device(name).unwrap();
        let t = &spec.topology;
        let last = t.tpcs().iter().map(|tpc| tpc.physical).max().unwrap();
        assert_eq!((t.tpc_count(), t.sm_count(), t.gpcs().len(), last), expected, "{name}");
    }
    assert_eq!(sizes.len() + 1, NAMES.len());
}

#[test]
fn gb10_numbers_as_was_reported() {
    let t = device("gb10").unwrap().topology;
    let enabled: Vec<u32> = (0..24_u8)
        .filter(|&tpc| t.tpcs()[usize::from(tpc)].physical < 4)
        .flat_map(|tpc| t.sms_of(tpc))
        .collect();
    assert_eq!(enabled, [0, 1, 8, 9, 16, 17, 24, 25]);
}

#[test]
fn every_product_has_many_boards() {
    for name in NAMES {
        let usual = device(name).unwrap();
        for seed in 1..4 {
            let other = board(name, seed).unwrap();
            assert_eq!(other.id, usual.id);
            assert_eq!(other.sm_count(), usual.sm_count());
            assert_eq!(other.control.places.len() as u32, usual.tpc_count());
        }
    }
    let boards = |name| (1..9).map(|seed| board(name, seed).unwrap().topology).collect::<Vec<_>>();
    assert!(boards("h200").windows(2).any(|pair| pair[0] != pair[1]));
    assert!(boards("rtx6000-ada").windows(2).any(|pair| pair[0] != pair[1]));
}
