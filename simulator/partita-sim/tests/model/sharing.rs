//! Several tenants on one device: turns, frozen blocks, partitions, bandwidth.

use partita_core::TpcSet;
use partita_sim::{CopyDirection, CopyWork, DeviceSpec, Engine, EventKind, GroupKind, KernelWork, Time};
use proptest::prelude::*;

use crate::{bare, done, started, submit, whole_sm};

/// Two tenants with three kernels each; when each of them was done.
fn pair(kind: GroupKind, one_group: bool, kernels: [KernelWork; 2]) -> [Time; 2] {
    let spec = bare("h200");
    let mut gpu = Engine::new(&spec, 0);
    let first = gpu.add_group(kind);
    let second = if one_group { first } else { gpu.add_group(kind) };
    let streams = [first, second].map(|group| gpu.add_stream(group, 0).unwrap());
    let mut last = Vec::new();
    for _ in 0..3 {
        last = streams
            .iter()
            .zip(&kernels)
            .map(|(&stream, kernel)| submit(&mut gpu, stream, kernel.clone()))
            .collect();
    }
    let events = gpu.run_to_end();
    [0, 1].map(|i| done(&events, last[i]).expect("all of it ends"))
}

#[test]
fn disjoint_masks_shield_and_shared_sms_do_not() {
    let halves = [TpcSet::range(0..33), TpcSet::range(33..66)];
    let kernel = |enabled| KernelWork { record_blocks: false, ..whole_sm(66 * 4, 50_000, enabled) };
    let solo_half = 3 * 4 * 50_000;
    assert_eq!(pair(GroupKind::Mps, true, halves.map(kernel)), [solo_half; 2]);
    let shared = pair(GroupKind::Mps, true, [kernel(TpcSet::first(66)), kernel(TpcSet::first(66))]);
    let solo_whole = solo_half / 2;
    assert!(shared.iter().all(|&end| end > solo_whole * 3 / 2), "{shared:?} against {solo_whole} alone");
}

#[test]
fn masks_without_mps_still_take_turns() {
    let halves = [TpcSet::range(0..33), TpcSet::range(33..66)];
    let kernel = |enabled| KernelWork { record_blocks: false, ..whole_sm(66 * 100, 50_000, enabled) };
    let alone = 3 * 100 * 50_000;
    let ends = pair(GroupKind::Own, false, halves.map(kernel));
    assert!(ends.iter().all(|&end| end > alone * 3 / 2), "{ends:?} against {alone} alone");
}

#[test]
fn who_has_a_short_slice_gives_way_in_the_middle_of_a_block() {
    let mut spec = bare("h200");
    spec.scheduler.slice_ns = 2_000_000;
    let urgent_ends = |slice_ns| {
        let mut gpu = Engine::new(&spec, 0);
        let [low, urgent] = [0; 2].map(|_| gpu.add_group(GroupKind::Own));
        gpu.set_slice(low, slice_ns).unwrap();
        let streams = [low, urgent].map(|group| gpu.add_stream(group, 0).unwrap());
        submit(&mut gpu, streams[0], whole_sm(132, 10_000_000, spec.topology.all()));
        // It arrives when low has run for 70 µs of a slice.
        gpu.advance(70_000);
        let work = submit(&mut gpu, streams[1], whole_sm(132, 1_000_000, spec.topology.all()));
        let events = gpu.run_to_end();
        done(&events, work).expect("it ends")
    };
    assert_eq!(urgent_ends(None), 2_000_000 + 1_000_000);
    assert_eq!(urgent_ends(Some(50_000)), 100_000 + 1_000_000);
}

#[test]
fn turns_are_fair_and_running_blocks_freeze() {
    let mut spec = bare("h200");
    spec.scheduler.slice_ns = 2_000_000;
    let mut gpu = Engine::new(&spec, 0);
    let groups = [0; 3].map(|_| gpu.add_group(GroupKind::Own));
    let works = groups.map(|group| {
        let stream = gpu.add_stream(group, 0).unwrap();
        submit(&mut gpu, stream, whole_sm(132, 10_000_000, spec.topology.all()))
    });
    let events = gpu.run_to_end();
    // Five slices of 2 ms each, in turn: 0, 6, 12, 18, 24 ms for the first, which ends at 26 ms.
    assert_eq!(works.map(|work| done(&events, work)), [Some(26_000_000), Some(28_000_000), Some(30_000_000)]);
    assert_eq!(works.map(|work| started(&events, work)), [Some(0), Some(2_000_000), Some(4_000_000)]);
    let order: Vec<_> = events
        .iter()
        .filter_map(|event| match event.kind {
            EventKind::GroupSwitched { group } => Some((event.time, group)),
            _ => None,
        })
        .collect();
    assert_eq!(order.len(), 14);
    for (i, &(time, group)) in order.iter().enumerate() {
        assert_eq!((time, group), ((i as Time + 1) * 2_000_000, groups[(i + 1) % 3]));
    }
    let blocks = gpu.take_blocks(works[1]).unwrap();
    assert!(blocks.iter().all(|block| (block.start_ns, block.stop_ns) == (2_000_000, 28_000_000)));
}

#[test]
fn a_wave_that_ends_with_the_slice_is_followed_in_the_next_turn() {
    let spec = bare("h200");
    let mut gpu = Engine::new(&spec, 0);
    let [a, b] = [0; 2].map(|_| gpu.add_group(GroupKind::Own)).map(|group| gpu.add_stream(group, 0).unwrap());
    let waves = submit(&mut gpu, a, whole_sm(132 * 4, 1_000_000, spec.topology.all()));
    let other = submit(&mut gpu, b, whole_sm(132 * 4, 1_000_000, spec.topology.all()));
    let events = gpu.run_to_end();
    assert_eq!([waves, other].map(|work| done(&events, work)), [Some(6_000_000), Some(8_000_000)]);
    let mut starts: Vec<Time> = gpu.take_blocks(waves).unwrap().iter().map(|block| block.start_ns).collect();
    starts.sort_unstable();
    starts.dedup();
    assert_eq!(starts, [0, 1_000_000, 4_000_000, 5_000_000]);
}

#[test]
fn a_block_placed_but_not_begun_begins_in_the_next_turn() {
    let mut spec = bare("h200");
    spec.scheduler.block_start_ns = 200;
    let mut gpu = Engine::new(&spec, 0);
    let [a, b] = [0; 2].map(|_| gpu.add_group(GroupKind::Own)).map(|group| gpu.add_stream(group, 0).unwrap());
    let first = submit(&mut gpu, a, whole_sm(132, 1_999_700, spec.topology.all()));
    let cut = submit(&mut gpu, a, whole_sm(132, 10_000, spec.topology.all()));
    submit(&mut gpu, b, whole_sm(132, 2_500_000, spec.topology.all()));
    let events = gpu.run_to_end();
    // Placed at 1999.9 µs, frozen after 0.1 of its 0.2 µs, back at 4 ms.
    assert_eq!((done(&events, first), started(&events, cut)), (Some(1_999_900), Some(1_999_900)));
    assert_eq!(done(&events, cut), Some(4_010_100));
    let block = gpu.take_blocks(cut).unwrap()[0];
    assert_eq!((block.start_ns, block.stop_ns), (4_000_100, 4_010_100));
}

#[test]
fn a_group_without_work_gives_way_at_once() {
    let spec = bare("h200");
    let mut gpu = Engine::new(&spec, 0);
    let [a, b] = [0; 2].map(|_| gpu.add_group(GroupKind::Own)).map(|group| gpu.add_stream(group, 0).unwrap());
    submit(&mut gpu, a, whole_sm(132, 300_000, spec.topology.all()));
    let second = submit(&mut gpu, b, whole_sm(132, 300_000, spec.topology.all()));
    assert_eq!(started(&gpu.run_to_end(), second), Some(300_000));
}

#[test]
fn who_comes_late_waits_for_the_end_of_the_slice() {
    let mut spec = bare("h200");
    spec.scheduler.switch_ns = 35_000;
    spec.scheduler.preempt_ns = 150_000;
    let mut gpu = Engine::new(&spec, 0);
    let [a, b] = [0; 2].map(|_| gpu.add_group(GroupKind::Own)).map(|group| gpu.add_stream(group, 0).unwrap());
    let long = submit(&mut gpu, a, whole_sm(132, 9_000_000, spec.topology.all()));
    gpu.advance(4_700_000);
    let late = submit(&mut gpu, b, whole_sm(132, 500_000, spec.topology.all()));
    let events = gpu.run_to_end();
    // Its turn ends at 6 ms; the long kernel's blocks are saved, the late one's have nothing to
    // restore.
    assert_eq!((started(&events, late), done(&events, late)), (Some(6_185_000), Some(6_685_000)));
    assert_eq!(done(&events, long), Some(9_000_000 + 185_000 + 500_000 + 185_000));
}

#[test]
fn memory_bound_blocks_share_the_bandwidth_and_others_do_not_care() {
    let mut spec = bare("h200");
    limit_memory(&mut spec);
    let run = |bytes: [u64; 2]| {
        let mut gpu = Engine::new(&spec, 0);
        let group = gpu.add_group(GroupKind::Mps);
        let halves = [TpcSet::range(0..33), TpcSet::range(33..66)];
        let works = [0, 1].map(|i| {
            let stream = gpu.add_stream(group, 0).unwrap();
            let kernel = KernelWork { bytes_per_block: bytes[i], ..whole_sm(66 * 4, 10_000, halves[i]) };
            submit(&mut gpu, stream, kernel)
        });
        let events = gpu.run_to_end();
        works.map(|work| done(&events, work).unwrap())
    };
    // The law: 66 blocks of 2 bytes/ns each demand the whole supply, two such halves twice as much.
    let slower = |asked: f64| (1.0 + asked.powf(2.5)).powf(0.4);
    for (bytes, expected) in [
        ([20_000, 0], [40_000.0 * slower(1.0), 40_000.0]),
        ([20_000, 20_000], [40_000.0 * slower(2.0); 2]),
        ([40_000, 0], [40_000.0 * slower(2.0), 40_000.0]),
        // A low demand is hardly slowed.
        ([1_000, 0], [40_000.0 * slower(0.05), 40_000.0]),
    ] {
        for (time, expected) in run(bytes).into_iter().zip(expected) {
            assert!(
                (time as f64 / expected - 1.0).abs() < 1e-3,
                "{bytes:?}: {time} ns, {expected} by the law"
            );
        }
    }
}

/// 132 bytes per nanosecond, all of which kernels reach, and no narrow paths to it.
fn limit_memory(spec: &mut DeviceSpec) {
    spec.memory.bandwidth_bytes_per_s = 132_000_000_000;
    spec.memory.reached_permille = 1_000;
    spec.memory.sm_bytes_per_s = 100_000_000_000;
}

#[test]
fn a_gpc_that_asks_for_more_than_its_sms_can_draw_slows_itself_alone() {
    let mut spec = bare("h200");
    // So much memory that nothing contends for it.
    spec.memory.bandwidth_bytes_per_s = 1_000_000_000_000_000;
    spec.memory.sm_bytes_per_s = 1_000_000_000; // one byte per nanosecond
    let gpcs = spec.topology.gpcs();
    let (hungry, modest) = (gpcs[1].tpcs, gpcs[2].tpcs);
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Mps);
    let works = [(hungry, 20_000), (modest, 10_000)].map(|(set, bytes_per_block)| {
        let stream = gpu.add_stream(group, 0).unwrap();
        let blocks = u64::from(set.len() * 2);
        submit(&mut gpu, stream, KernelWork { bytes_per_block, ..whole_sm(blocks, 10_000, set) })
    });
    let events = gpu.run_to_end();
    // Two bytes per nanosecond and SM where each has one: twice as long. One is exactly the supply.
    // The last nanosecond is DRAM's, at a very low demand.
    assert_eq!(works.map(|work| done(&events, work)), [Some(20_001), Some(10_001)]);
}

/// As many TPCs packed into one GPC and spread over all, as in figure 13 of the paper.
#[test]
fn packed_and_spread_are_equal_until_a_gpcs_path_is_full() {
    let mut spec = bare("h200");
    spec.memory.sm_bytes_per_s = 1_000_000_000;
    spec.clocks.sm_khz = 1_000_000; // 64 bytes per nanosecond and SM
    let gpcs: Vec<TpcSet> =
        spec.topology.gpcs().iter().map(|gpc| gpc.tpcs).filter(|gpc| gpc.len() > 6).collect();
    let first = |set: &TpcSet, count: usize| set.iter().take(count).collect::<TpcSet>();
    let count = gpcs.len().min(7);
    let packed = first(&gpcs[0], count);
    let spread: TpcSet =
        gpcs.iter().flat_map(|gpc| first(gpc, 1).iter().collect::<Vec<_>>()).take(count).collect();
    let time = |set: TpcSet, work: KernelWork| {
        let mut gpu = Engine::new(&spec, 0);
        let group = gpu.add_group(GroupKind::Mps);
        let stream = gpu.add_stream(group, 0).unwrap();
        let blocks = 2 * set.len() as u64;
        let work = submit(&mut gpu, stream, KernelWork { grid_blocks: blocks, enabled: set, ..work });
        done(&gpu.run_to_end(), work).unwrap()
    };
    let of_l2 = |bytes| KernelWork { l2_bytes_per_block: bytes, ..whole_sm(1, 10_000, packed) };
    for bytes in [1, 64_000, 640_000] {
        assert_eq!((time(packed, of_l2(bytes)), time(spread, of_l2(bytes))), (10_000, 10_000), "{bytes}");
    }
    // Each SM asks for four times what a port passes: one TPC has all ports of its GPC.
    let (slow, fast) = (time(packed, of_l2(2_560_000)), time(spread, of_l2(2_560_000)));
    assert_eq!(fast, 10_000);
    let path = gpcs[0].len() as f64 / count as f64;
    assert!((slow as f64 / 10_000.0 * path / 4.0 - 1.0).abs() < 1e-3, "{slow}");
}

/// A product that reads its tiles from L2 is no slower beside copies that take all of DRAM.
#[test]
fn dram_slows_no_block_that_l2_serves() {
    let mut spec = bare("h200");
    limit_memory(&mut spec);
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Mps);
    let halves = [TpcSet::range(0..33), TpcSet::range(33..66)];
    let bytes = [(1_000_000, 0), (0, 1_000_000)];
    let works = [0, 1].map(|i| {
        let stream = gpu.add_stream(group, 0).unwrap();
        let (bytes_per_block, l2_bytes_per_block) = bytes[i];
        submit(
            &mut gpu,
            stream,
            KernelWork { bytes_per_block, l2_bytes_per_block, ..whole_sm(66, 10_000, halves[i]) },
        )
    });
    let events = gpu.run_to_end();
    let [of_dram, of_l2] = works.map(|work| done(&events, work).unwrap());
    assert_eq!(of_l2, 10_000);
    assert!(of_dram > 400_000, "{of_dram}");
}

#[test]
fn a_copy_within_the_device_takes_bandwidth_from_kernels() {
    let mut spec = bare("h200");
    limit_memory(&mut spec);
    spec.copy.local_bytes_per_s = 66_000_000_000; // reading and writing: all of it
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let [a, b] = [0; 2].map(|priority| gpu.add_stream(group, priority).unwrap());
    let kernel = KernelWork { bytes_per_block: 10_000, ..whole_sm(132, 10_000, spec.topology.all()) };
    let kernel = submit(&mut gpu, a, kernel);
    let copy =
        gpu.submit(b, CopyWork { bytes: 660_000, direction: CopyDirection::Within, client: 0 }).unwrap();
    let events = gpu.run_to_end();
    // Both demand everything. The copy, with priority, has half of it: 20 µs. The kernel has (1 +
    // 2^5/2)^-2/5 = 0.467 of its pace meanwhile, and 2^-2/5 = 0.758 of it for the last 0.66 µs of
    // its 10.
    assert_eq!(done(&events, copy), Some(20_000));
    let expected = 20_000.0 + (10_000.0 - 20_000.0 * (1.0 + 2f64.powf(2.5)).powf(-0.4)) / 2f64.powf(-0.4);
    let kernel = done(&events, kernel).unwrap() as f64;
    assert!((kernel / expected - 1.0).abs() < 1e-3, "{kernel} ns, {expected} by the law");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Groups that always have work get the compute engine for equal times, to a slice.
    #[test]
    fn busy_groups_get_equal_time(
        count in 2usize..6,
        blocks in prop::collection::vec((1_u64..400, 1_000_u64..400_000), 6),
        slice_ns in 50_000_u64..3_000_000,
    ) {
        let mut spec = bare("a100");
        spec.scheduler.slice_ns = slice_ns;
        let mut gpu = Engine::new(&spec, 0);
        for &(grid, ns) in &blocks[..count] {
            let group = gpu.add_group(GroupKind::Own);
            let stream = gpu.add_stream(group, 0).unwrap();
            // More than enough for the observed time.
            for _ in 0..200_000_000 / ns + 1 {
                gpu.submit(stream, KernelWork::new(grid, 512, ns, spec.topology.all())).unwrap();
            }
        }
        let horizon = slice_ns * count as u64 * 10;
        prop_assume!(horizon <= 200_000_000);
        let mut held = std::collections::BTreeMap::new();
        let mut since = 0;
        let mut holder = None;
        let events = gpu.advance(horizon);
        for event in &events {
            if let EventKind::GroupSwitched { group } = event.kind {
                *held.entry(holder).or_insert(0) += event.time - since;
                (since, holder) = (event.time, Some(group));
            }
        }
        *held.entry(holder).or_insert(0) += horizon - since;
        // The first group is not announced; it holds `None` first and its own name later.
        let times: Vec<Time> = held.values().copied().collect();
        prop_assert_eq!(times.iter().sum::<Time>(), horizon);
        let first = held.remove(&None).unwrap_or(0);
        prop_assert_eq!(first, slice_ns);
        prop_assert_eq!(held.len(), count);
        let least = held.values().min().copied().unwrap_or(0) + slice_ns;
        let most = held.values().max().copied().unwrap_or(0);
        prop_assert!(most <= least, "{:?} with slices of {}", held, slice_ns);
    }
}

#[test]
fn blocks_that_want_all_of_an_sm_share_it_evenly_whosever_they_are() {
    let spec = bare("h200");
    let one_tpc = TpcSet::single(0);
    // Half an SM's threads each; every block would have the SM for itself.
    let kernel =
        |blocks, ns, sm_permille| KernelWork { sm_permille, ..KernelWork::new(blocks, 1024, ns, one_tpc) };
    let run = |works: &[KernelWork]| {
        let mut gpu = Engine::new(&spec, 0);
        let group = gpu.add_group(GroupKind::Mps);
        let works: Vec<_> = works
            .iter()
            .map(|work| {
                let stream = gpu.add_stream(group, 0).unwrap();
                submit(&mut gpu, stream, work.clone())
            })
            .collect();
        let events = gpu.run_to_end();
        works.into_iter().map(|work| done(&events, work).unwrap()).collect::<Vec<Time>>()
    };
    // Alone on its SM; in a pair; eleven on two SMs, six of them on one: six times as long as one,
    // in pairs.
    assert_eq!(run(&[kernel(2, 9_000, 1_000)]), [9_000]);
    assert_eq!(run(&[kernel(4, 9_000, 1_000)]), [18_000]);
    assert_eq!(run(&[kernel(11, 9_000, 1_000)]), [54_000]);
    // Another's block takes half of the SM while it is there, and nothing without a demand.
    assert_eq!(run(&[kernel(2, 9_000, 1_000), kernel(2, 3_000, 1_000)]), [12_000, 6_000]);
    assert_eq!(run(&[kernel(2, 9_000, 1_000), kernel(2, 3_000, 0)]), [9_000, 3_000]);
    // Two that demand three quarters each get half each, and a started nanosecond counts.
    assert_eq!(run(&[kernel(2, 9_000, 750), kernel(2, 9_000, 750)]), [13_501, 13_501]);
    assert_eq!(run(&[kernel(2, 9_000, 400), kernel(2, 9_000, 600)]), [9_000, 9_000]);
}
