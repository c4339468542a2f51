//! Counts that fit are tenants that fit, whichever way GPUs are offered.

use partita_core::memory::{Claim, To, divide};
use partita_core::{Ask, Placement, Present, Share, Topology, Tpc, plan};
use proptest::prelude::*;

use super::*;
use crate::device::tests::h200;
use crate::wire::podresources::{ContainerDevices, PodResources};

const MIB: MemoryUnit = MemoryUnit::Mib(1);

fn devices(resource: &str, count: u64) -> ContainerDevices {
    ContainerDevices {
        resource_name: resource.to_owned(),
        device_ids: (0..count).map(|which| which.to_string()).collect(),
    }
}

/// Containers, each with a device of the GPU and so many of the others.
fn pods(containers: &[(&str, u64, u64)], memory: &str) -> ListPodResourcesResponse {
    let pod = |&(id, cores, units): &(&str, u64, u64)| PodResources {
        name: format!("pod-{id}"),
        namespace: "default".to_owned(),
        containers: vec![ContainerResources {
            name: "c".to_owned(),
            devices: vec![
                devices(memory, units),
                ContainerDevices { resource_name: GPU.to_owned(), device_ids: vec![id.to_owned()] },
                devices(GPUCORES, cores),
            ],
            dynamic_resources: Vec::new(),
        }],
    };
    ListPodResourcesResponse { pod_resources: containers.iter().map(pod).collect() }
}

#[test]
fn what_is_offered_is_what_the_gpus_have() {
    let offered = Offer::Shared { replicas: 4 }.resources(&[h200(0), h200(1)]).unwrap();
    assert_eq!(offered.keys().copied().collect::<Vec<_>>(), [SHARED]);
    assert_eq!(offered[SHARED].len(), 8);
    assert_eq!(offered[SHARED][5].id, format!("{}::1", h200(1).uuid));
    let board = h200(0);
    for (memory, name, count) in [
        (MIB, GPUMEM, board.memory_mib()),
        (MemoryUnit::Mib(256), GPUMEM, board.memory_mib() / 256),
        (MemoryUnit::Percent, GPUMEM_PERCENTAGE, 100),
    ] {
        let offered = Offer::Hami { split: 10, memory }.resources(std::slice::from_ref(&board)).unwrap();
        let counts: BTreeMap<&str, u64> =
            offered.iter().map(|(name, devices)| (*name, devices.len() as u64)).collect();
        assert_eq!(counts, BTreeMap::from([(GPU, 10), (GPUCORES, 100), (name, count)]));
        for devices in offered.values() {
            assert!(devices.iter().all(|device| device.id.len() <= 63 && device.health == "Healthy"));
        }
    }
    let ill = Board { fault: Some("it fell off the bus".to_owned()), ..h200(0) };
    let offered = Offer::Shared { replicas: 2 }.resources(std::slice::from_ref(&ill)).unwrap();
    assert!(offered[SHARED].iter().all(|device| device.health == "Unhealthy"));
    let ids = [format!("{}::0", ill.uuid)];
    assert!(the_device(&[ill], SHARED, &ids).unwrap_err().contains("fell off the bus"));
}

#[test]
fn what_cannot_be_offered_is_said() {
    let hami = |memory| Offer::Hami { split: 10, memory };
    let large = Board { memory_bytes: 288 << 30, ..h200(0) };
    for (offer, boards, words) in [
        (hami(MIB), vec![h200(0), h200(1)], "2 GPUs"),
        (hami(MIB), vec![], "0 GPUs"),
        (hami(MIB), vec![large.clone()], "--memory-unit-mib"),
        (Offer::Shared { replicas: 67 }, vec![h200(0)], "at most 66"),
        (Offer::Shared { replicas: 9 }, vec![Board { memory_bytes: 9 << 30, ..h200(0) }], "1024 MiB each"),
    ] {
        let said = offer.resources(&boards).unwrap_err();
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(hami(MemoryUnit::Mib(4)).resources(&[large]).is_ok());
}

#[test]
fn a_container_has_what_it_asks_for() {
    let board = h200(0);
    let id = format!("{}::3", board.uuid);
    let sized = |cores, units, memory: MemoryUnit| {
        hami(&board, &id, memory, &pods(&[("other", 9, 9), (&id, cores, units)], memory.resource()))
    };
    let definition = sized(25, 20_000, MIB).unwrap();
    assert_eq!(definition.size, Some(Size { sms: 32, memory_bytes: 20_000 << 20 }));
    assert_eq!(definition.tenant, format!("{}-3", board.uuid));
    // The answer to Allocate names the same tenant.
    assert_eq!(without_size(&board, &id).tenant, definition.tenant);
    assert_eq!(without_size(&board, &id).allocated, definition.allocated);
    let half = sized(50, 50, MemoryUnit::Percent).unwrap().size.unwrap();
    assert_eq!((half.sms, half.memory_bytes >> 20), (66, board.memory_mib() / 2));
    let shared = shared(&board, &id, 4).unwrap().size.unwrap();
    assert_eq!((shared.sms, shared.memory_bytes >> 20), (32, board.memory_mib() / 4));
    let twice = pods(&[(&id, 9, 2000), (&id, 10, 2000)], GPUMEM);
    for (answer, words) in [
        (sized(0, 2000, MIB), "without nvidia.com/gpucores"),
        (sized(10, 0, MIB), "without nvidia.com/gpumem: "),
        (sized(10, 0, MemoryUnit::Percent), "without nvidia.com/gpumem-percentage: "),
        (sized(1, 2000, MIB), "request at least 2"),
        (sized(10, 1000, MIB), "at least 1024 MiB"),
        (hami(&board, &id, MIB, &pods(&[("other", 9, 9)], GPUMEM)), "no container with"),
        (hami(&board, &id, MIB, &twice), "unequal sizes"),
    ] {
        let said = answer.unwrap_err();
        assert!(said.contains(words), "{words}: {said}");
    }
    // The same container twice in the list, as a pod that is being replaced.
    assert!(hami(&board, &id, MIB, &pods(&[(&id, 9, 2000), (&id, 9, 2000)], GPUMEM)).is_ok());
}

#[test]
fn room_is_what_others_leave() {
    let board = h200(0);
    let of = |which: u32, sms, mib: u64| {
        definition(&board, &format!("{}::{which}", board.uuid), Size { sms, memory_bytes: mib << 20 })
    };
    let all = board.memory_mib();
    let present = [of(0, 66, 1024), of(1, 32, 2048)];
    for (new, has_room) in [
        (of(2, 34, all - 3072), true),
        (of(2, 36, 1024), false),
        (of(2, 2, all - 3071), false),
        // It takes its own place.
        (of(0, 100, all - 2048), true),
    ] {
        assert_eq!(fits(&board, present.iter(), &new), has_room, "{new:?}");
    }
}

#[test]
fn one_device_is_one_share() {
    let boards = [h200(0), h200(1)];
    let [a, b, foreign] = [0, 1, 2].map(|which| format!("{}::1", h200(which).uuid));
    assert_eq!(the_device(&boards, SHARED, std::slice::from_ref(&b)).unwrap(), (&boards[1], b.as_str()));
    for (ids, words) in [(vec![a, b], "requests 2"), (vec![], "requests 0"), (vec![foreign], "no GPU")] {
        let said = the_device(&boards, SHARED, &ids).unwrap_err();
        assert!(said.contains(words), "{words}: {said}");
    }
    // A UUID that begins like another's.
    let longer = format!("{}1::0", boards[0].uuid);
    assert!(the_device(&boards, SHARED, &[longer]).is_err());
}

#[test]
fn the_gpu_with_the_most_left_is_preferred() {
    let all = |text: &str| text.split(' ').filter(|id| !id.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(preferred(&all("a::0 b::0 b::1"), &[], 1), ["b::1"]);
    let two = preferred(&all("a::0 a::1 b::0 b::1 b::2"), &all("a::1"), 2);
    assert_eq!((two.len(), two[0].as_str(), &two[1][..1]), (2, "a::1", "b"));
    assert_eq!(preferred(&all("a::0"), &[], 3), ["a::0"]);
    assert_eq!(preferred(&[], &[], 1), Vec::<String>::new());
}

/// Places tenants one after another, as the planner does.
fn place(board: &Board, topology: &Topology, sizes: &[Size]) -> Result<(), TestCaseError> {
    let mut present: Vec<Present> = Vec::new();
    for size in sizes {
        let ask = Ask { share: Share::Sms(size.sms), placement: Placement::Packed };
        let planned =
            plan(topology, &present, ask).map_err(|error| TestCaseError::fail(error.to_string()))?;
        present.push(Present { name: format!("t{}", present.len()), set: planned.set });
    }
    let claims = sizes.iter().map(|size| Claim { to: To::Promise(size.memory_bytes), driver: 0, user: 0 });
    divide(board.memory_bytes, &claims.collect::<Vec<_>>(), &[])
        .map(drop)
        .map_err(|missing| TestCaseError::fail(format!("{missing} bytes are missing")))
}

fn board() -> impl Strategy<Value = (Board, Topology)> {
    (prop::collection::vec(1u32..10, 1..9), 1u32..3, (4u64 << 30)..(200 << 30)).prop_map(
        |(gpcs, sms_per_tpc, memory_bytes)| {
            let each = gpcs.iter().zip(0u8..).flat_map(|(&tpcs, gpc)| (0..tpcs).map(move |_| gpc));
            let tpcs: Vec<Tpc> = each.zip(0..).map(|(gpc, physical)| Tpc { gpc, physical }).collect();
            let count = tpcs.len() as u32;
            let topology = Topology::new(sms_per_tpc, tpcs).unwrap();
            (Board { sms_per_tpc, tpcs: count, memory_bytes, ..h200(0) }, topology)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// The kubelet admits containers as long as each resource has devices left.
    #[test]
    fn what_the_kubelet_counts_the_planner_places(
        (board, topology) in board(),
        asks in prop::collection::vec((1u64..60, 1u64..60_000, 1u64..60), 1..12),
        unit in prop_oneof![Just(MemoryUnit::Percent), (1u32..600).prop_map(MemoryUnit::Mib)],
        replicas in 1u32..80,
    ) {
        let (mut cores_left, mut memory_left) = (100, unit.count(&board));
        let mut sizes = Vec::new();
        for (which, (cores, mib, percent)) in asks.into_iter().enumerate() {
            let units = match unit {
                MemoryUnit::Percent => percent,
                MemoryUnit::Mib(each) => mib.div_ceil(each.into()),
            };
            if cores > cores_left || units > memory_left {
                continue;
            }
            let id = format!("{}::{which}", board.uuid);
            // Too small ones are refused, and the kubelet counts them all the same.
            (cores_left, memory_left) = (cores_left - cores, memory_left - units);
            let listed = pods(&[(&id, cores, units)], unit.resource());
            if let Ok(definition) = hami(&board, &id, unit, &listed) {
                sizes.push(definition.size.unwrap());
            }
        }
        place(&board, &topology, &sizes)?;
        if let Ok(size) = equal_share(&board, replicas) {
            place(&board, &topology, &vec![size; replicas as usize])?;
        }
    }
}
