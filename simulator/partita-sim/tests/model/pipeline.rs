//! Task management unit and work distributor: order, priorities, look-ahead, slots, placement.

use partita_core::TpcSet;
use partita_sim::{Engine, EventKind, GroupKind, KernelWork};

use crate::{bare, done, sms, started, submit, whole_sm};

#[test]
fn blocks_go_breadth_first_over_the_tpcs() {
    let spec = bare("h200");
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let stream = gpu.add_stream(group, 0).unwrap();
    let kernel = KernelWork { record_blocks: true, ..KernelWork::new(265, 256, 1_000, spec.topology.all()) };
    let work = submit(&mut gpu, stream, kernel);
    gpu.run_to_end();
    let order: Vec<u32> = gpu.take_blocks(work).unwrap().iter().map(|block| block.sm).collect();
    // One SM of every TPC, then the other, then the first again.
    assert_eq!(order[..4], [0, 2, 4, 6]);
    assert_eq!(order[65..69], [130, 1, 3, 5]);
    assert_eq!(order[131..134], [131, 0, 2]);
    assert_eq!(order[264], 0);
    assert!(gpu.take_blocks(work).is_none(), "records are handed out once");
}

#[test]
fn the_least_loaded_sm_is_taken_first() {
    let spec = bare("gtx1060-3gb");
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let [a, b] = [0, 0].map(|priority| gpu.add_stream(group, priority).unwrap());
    // Eight SMs get one block; the ninth is the least loaded one.
    submit(&mut gpu, a, KernelWork::new(8, 256, 10_000, spec.topology.all()));
    let probe = submit(
        &mut gpu,
        b,
        KernelWork { record_blocks: true, ..KernelWork::new(1, 32, 1_000, spec.topology.all()) },
    );
    gpu.run_to_end();
    assert_eq!(sms(&gpu.take_blocks(probe).unwrap()), [8]);
}

#[test]
fn the_scarcest_resource_bounds_the_blocks_of_an_sm() {
    let spec = bare("h200");
    let one_tpc = TpcSet::single(7);
    let base = KernelWork::new(1_000, 256, 1_000, one_tpc);
    for (kernel, per_sm) in [
        (base.clone(), 8),                                             // 2048 threads
        (KernelWork { regs_per_thread: 128, ..base.clone() }, 2),      // 65536 registers
        (KernelWork { smem_per_block: 75 << 10, ..base.clone() }, 3), // 228 KiB, 1 KiB of each for the system
        (KernelWork { smem_per_block: 227 << 10, ..base.clone() }, 1), // all that one block may have
        (KernelWork { threads_per_block: 33, ..base.clone() }, 32),   // blocks; 33 threads are two warps
        (KernelWork { threads_per_block: 65, regs_per_thread: 40, ..base.clone() }, 17), // 3 warps of 1280 registers
    ] {
        let mut gpu = Engine::new(&spec, 0);
        let group = gpu.add_group(GroupKind::Own);
        let stream = gpu.add_stream(group, 0).unwrap();
        let work = submit(&mut gpu, stream, kernel.clone());
        let waves = 1_000u64.div_ceil(2 * per_sm);
        assert_eq!(kernel.resident_blocks_max(&spec), 2 * per_sm);
        assert_eq!(done(&gpu.run_to_end(), work), Some(waves * 1_000), "{kernel:?}");
    }
}

#[test]
fn a_later_kernel_waits_until_the_one_ahead_has_placed_all_its_blocks() {
    let spec = bare("gtx1060-3gb");
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let [a, b] = [0, 0].map(|priority| gpu.add_stream(group, priority).unwrap());
    let first = submit(&mut gpu, a, whole_sm(18, 10_000, spec.topology.all()));
    // It would fit beside nothing of the first, whose second wave reserves all SMs.
    let second = submit(&mut gpu, b, whole_sm(1, 1_000, spec.topology.all()));
    let events = gpu.run_to_end();
    assert_eq!(done(&events, first), Some(20_000));
    assert_eq!((started(&events, second), done(&events, second)), (Some(20_000), Some(21_000)));
}

#[test]
fn a_kernel_keeps_an_sm_on_which_its_block_does_not_fit_yet() {
    let spec = bare("gtx1060-3gb");
    let tpc = TpcSet::single(0);
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let [a, b, c] = [0, 0, 0].map(|priority| gpu.add_stream(group, priority).unwrap());
    // Half of the SM is taken; the next kernel needs all of it; the third would fit into the other
    // half.
    submit(&mut gpu, a, KernelWork::new(1, 1024, 10_000, tpc));
    let large = submit(&mut gpu, b, whole_sm(1, 5_000, tpc));
    let small = submit(&mut gpu, c, KernelWork::new(1, 32, 1_000, tpc));
    let events = gpu.run_to_end();
    assert_eq!(started(&events, large), Some(10_000));
    assert_eq!(
        started(&events, small),
        Some(15_000),
        "first come, first served, even at the price of idling"
    );
}

/// As measured on an H200: with 66 urgent kernels of two blocks, one block on each SM, a kernel of
/// low priority continues beside them; of 100 such kernels 34 wait for shared memory, hold far
/// fewer than all task slots, and no block of low priority starts.
#[test]
fn an_urgent_kernel_that_waits_for_shared_memory_holds_back_the_less_urgent() {
    let spec = bare("h200");
    let all = spec.topology.all();
    for (urgent, goes_on) in [(66, true), (100, false)] {
        let mut gpu = Engine::new(&spec, 0);
        let group = gpu.add_group(GroupKind::Own);
        let low = gpu.add_stream(group, 0).unwrap();
        for _ in 0..urgent {
            let stream = gpu.add_stream(group, -5).unwrap();
            let kernel = KernelWork { smem_per_block: 200 << 10, ..KernelWork::new(2, 32, 1_000_000, all) };
            submit(&mut gpu, stream, kernel);
        }
        gpu.advance(1_000);
        submit(
            &mut gpu,
            low,
            KernelWork { regs_per_thread: 16, ..KernelWork::new(6_000, 1024, 20_000, all) },
        );
        let before = gpu.stats().blocks_started;
        gpu.advance(500_000);
        let begun = gpu.stats().blocks_started - before;
        assert_eq!(begun > 1_000, goes_on, "{urgent} urgent kernels: {begun} blocks");
        assert_eq!(gpu.stats().evictions, 0);
    }
}

#[test]
fn the_distributor_looks_past_a_kernel_that_may_not_use_the_free_tpc() {
    let spec = bare("gtx1060-3gb");
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let [a, b, c] = [0, 0, 0].map(|priority| gpu.add_stream(group, priority).unwrap());
    let low = TpcSet::range(0..5);
    let high = TpcSet::range(5..9);
    submit(&mut gpu, a, whole_sm(10, 10_000, low));
    let behind = submit(&mut gpu, b, whole_sm(5, 10_000, low));
    let elsewhere = submit(&mut gpu, c, whole_sm(4, 10_000, high));
    let events = gpu.run_to_end();
    assert_eq!(started(&events, behind), Some(20_000));
    assert_eq!((started(&events, elsewhere), done(&events, elsewhere)), (Some(0), Some(10_000)));
    assert_eq!(sms(&gpu.take_blocks(elsewhere).unwrap()), [5, 6, 7, 8]);
}

#[test]
fn the_urgent_go_first_but_nothing_running_is_stopped() {
    let spec = bare("gtx1060-3gb");
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let normal = gpu.add_stream(group, 0).unwrap();
    let urgent = gpu.add_stream(group, -1).unwrap();
    let bulk = submit(&mut gpu, normal, whole_sm(27, 10_000, spec.topology.all()));
    gpu.advance(5_000);
    let quick = submit(&mut gpu, urgent, whole_sm(9, 1_000, spec.topology.all()));
    let events = gpu.run_to_end();
    assert_eq!((started(&events, quick), done(&events, quick)), (Some(10_000), Some(11_000)));
    assert_eq!(done(&events, bulk), Some(31_000));
}

#[test]
fn urgent_kernels_that_take_all_slots_starve_a_partition_they_do_not_use() {
    // Figure 12 of the partitioning paper: 32 urgent kernels evict the 33rd, which has a separate
    // partition.
    let spec = bare("gtx1060-3gb");
    let run = |urgent_priority: i32, urgent_count: u32| {
        let mut gpu = Engine::new(&spec, 0);
        let group = gpu.add_group(GroupKind::Own);
        let own = gpu.add_stream(group, 0).unwrap();
        let victim = submit(&mut gpu, own, whole_sm(16, 10_000, TpcSet::range(5..9)));
        gpu.advance(5_000);
        for _ in 0..urgent_count {
            let stream = gpu.add_stream(group, urgent_priority).unwrap();
            submit(&mut gpu, stream, whole_sm(5, 10_000, TpcSet::range(0..5)));
        }
        let events = gpu.run_to_end();
        (done(&events, victim).unwrap(), gpu.stats().evictions)
    };
    let alone = 40_000;
    let (starved, evictions) = run(-1, 32);
    assert_eq!(evictions, 1);
    // Its first wave continues; then it waits for the first of the urgent ones to end, at 15 ms.
    assert_eq!(starved, alone + 5_000);
    // The paper's two remedies: no more streams than slots, or no priorities.
    assert_eq!(run(-1, 31), (alone, 0));
    assert_eq!(run(0, 32), (alone, 0));
}

#[test]
fn a_cluster_lies_on_distinct_sms_of_one_gpc() {
    let spec = bare("h200");
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let stream = gpu.add_stream(group, 0).unwrap();
    let kernel = KernelWork {
        cluster_blocks: 8,
        record_blocks: true,
        ..KernelWork::new(800, 256, 1_000, spec.topology.all())
    };
    let work = submit(&mut gpu, stream, kernel);
    gpu.run_to_end();
    let blocks = gpu.take_blocks(work).unwrap();
    assert_eq!(blocks.len(), 800);
    for cluster in blocks.chunks(8) {
        assert_eq!(sms(cluster).len(), 8, "distinct SMs");
        let gpc = |sm: u32| spec.topology.tpcs()[sm as usize / 2].gpc;
        assert!(cluster.iter().all(|block| gpc(block.sm) == gpc(cluster[0].sm)), "one GPC");
        assert!(cluster.iter().all(|block| block.start_ns == cluster[0].start_ns), "started together");
    }
}

#[test]
fn a_cooperative_grid_starts_when_all_of_it_fits() {
    let spec = bare("gtx1060-3gb");
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let [a, b] = [0, 0].map(|priority| gpu.add_stream(group, priority).unwrap());
    submit(&mut gpu, a, whole_sm(1, 10_000, TpcSet::single(3)));
    let grid = KernelWork { cooperative: true, ..whole_sm(9, 2_000, spec.topology.all()) };
    let grid = submit(&mut gpu, b, grid);
    let events = gpu.run_to_end();
    assert_eq!((started(&events, grid), done(&events, grid)), (Some(10_000), Some(12_000)));
    assert!(gpu.stuck().is_empty());
}

#[test]
fn delays_add_up_as_documented() {
    let mut spec = bare("gtx1060-3gb");
    spec.scheduler.launch_ns = 2_000;
    spec.scheduler.kernel_gap_ns = 1_000;
    spec.scheduler.block_start_ns = 200;
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let stream = gpu.add_stream(group, 0).unwrap();
    let first = submit(&mut gpu, stream, whole_sm(9, 10_000, spec.topology.all()));
    let second = submit(&mut gpu, stream, whole_sm(9, 10_000, spec.topology.all()));
    assert_eq!(gpu.next_event(), Some(2_000));
    let events = gpu.run_to_end();
    assert_eq!((started(&events, first), done(&events, first)), (Some(2_000), Some(12_200)));
    assert_eq!((started(&events, second), done(&events, second)), (Some(13_200), Some(23_400)));
    let blocks = gpu.take_blocks(first).unwrap();
    assert_eq!((blocks[0].start_ns, blocks[0].stop_ns), (2_200, 12_200));
}

#[test]
fn the_distributor_places_no_more_blocks_than_its_rate_allows() {
    let mut spec = bare("gtx1060-3gb");
    spec.scheduler.block_interval_ps = 10_000;
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let stream = gpu.add_stream(group, 0).unwrap();
    // 100000 blocks of no length: the distributor needs 10 ns for each.
    let work = submit(&mut gpu, stream, KernelWork::new(100_000, 32, 0, spec.topology.all()));
    let end = done(&gpu.run_to_end(), work).unwrap();
    // The pause of the last round comes after the last block.
    assert!((990_000..=1_000_000).contains(&end), "{end}");
}

#[test]
fn a_cluster_takes_the_least_loaded_sms_of_its_gpc() {
    let spec = bare("gtx1060-3gb");
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let [a, b] = [0, 0].map(|priority| gpu.add_stream(group, priority).unwrap());
    // GPC 0 has the even TPCs; two of them are busy.
    submit(&mut gpu, a, KernelWork::new(2, 32, 10_000, [0_u8, 4].into_iter().collect()));
    let even: TpcSet = (0..9).step_by(2).collect();
    let kernel = KernelWork { cluster_blocks: 3, record_blocks: true, ..KernelWork::new(3, 32, 1_000, even) };
    let work = submit(&mut gpu, b, kernel);
    gpu.run_to_end();
    assert_eq!(sms(&gpu.take_blocks(work).unwrap()), [2, 6, 8]);
}

#[test]
fn blocks_of_open_kernels_end_when_the_caller_says_so() {
    let spec = bare("gtx1060-3gb");
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let stream = gpu.add_stream(group, 0).unwrap();
    // One block more than fits at once.
    let kernel = KernelWork { open: true, record_blocks: true, ..whole_sm(10, 0, spec.topology.all()) };
    let work = submit(&mut gpu, stream, kernel);
    let block = |kind: &EventKind| match *kind {
        EventKind::BlockStarted { block, sm, start_ns, .. } => Some((block, sm, start_ns)),
        _ => None,
    };
    let first: Vec<_> = gpu.run_to_end().iter().filter_map(|event| block(&event.kind)).collect();
    assert_eq!(first.len(), 9);
    assert!(gpu.is_running(group) && gpu.next_event().is_none(), "nothing ends by itself");
    let start = first[0].2;
    gpu.end_block(work, 3, 5_000).unwrap();
    assert!(gpu.end_block(work, 3, 5_000).is_err(), "a block ends once");
    assert!(gpu.end_block(work, 9, 5_000).is_err(), "the last block has not started");
    let second: Vec<_> = gpu.advance(start + 5_000).iter().filter_map(|event| block(&event.kind)).collect();
    assert_eq!(second, [(9, first[3].1, start + 5_000)]);
    // An end in the past is now.
    for block in [0, 1, 2, 4, 5, 6, 7, 8, 9] {
        gpu.end_block(work, block, 10).unwrap();
    }
    let events = gpu.run_to_end();
    assert_eq!(done(&events, work), Some(start + 5_010));
    let records = gpu.take_blocks(work).unwrap();
    assert_eq!((records[0].stop_ns, records[3].stop_ns), (start + 5_000, start + 5_000));
    // Killed with open blocks, it leaves no trace.
    let other = submit(&mut gpu, stream, KernelWork { open: true, ..whole_sm(9, 0, spec.topology.all()) });
    gpu.run_to_end();
    gpu.kill_stream(stream).unwrap();
    assert!(gpu.is_done(other) && gpu.end_block(other, 0, 1).is_err());
}
