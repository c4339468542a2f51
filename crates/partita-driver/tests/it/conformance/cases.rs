//! The cases. Each holds for every mechanism on every device, or panics.

use partita_core::{Misfit, Residence, TpcSet};
use partita_driver::{BlockRecord, Error, Stream, runs_clusters};

use super::bench::Bench;
use crate::common;

/// A case.
pub type Case = fn(&Bench<'_, '_>);

/// Every case by its name.
pub const CASES: [(&str, Case); 14] = [
    ("blocks stay inside", blocks_stay_inside),
    ("every single TPC is usable", every_single_tpc_is_usable),
    ("a retarget is obeyed at the next launch", a_retarget_is_obeyed_at_the_next_launch),
    ("queued work keeps the set that it was launched with", queued_work_keeps_its_set),
    ("the order of a stream is kept across sets", order_is_kept_across_sets),
    ("disjoint lanes run at the same time", disjoint_lanes_run_at_the_same_time),
    ("overlapping lanes both run, each inside", overlapping_lanes_both_run),
    ("clusters that fit run inside", clusters_that_fit_run_inside),
    ("clusters that do not fit are refused", clusters_that_do_not_fit_are_refused),
    ("cooperative grids that fit run inside", cooperative_grids_that_fit_run_inside),
    ("cooperative grids that do not fit are refused", cooperative_grids_that_do_not_fit_are_refused),
    ("sets that nothing could run on are refused", impossible_sets_are_refused),
    ("neighbours are not touched", neighbours_are_not_touched),
    ("nothing is left behind", nothing_is_left_behind),
];

/// On sets of every kind, and on all of their TPCs.
fn blocks_stay_inside(bench: &Bench<'_, '_>) {
    for set in bench.sets() {
        let lane = bench.lane(&set);
        assert_eq!(lane.set(), set);
        assert_eq!(bench.seen(&lane), set);
    }
}

/// As a partition alone, or as part of the smallest one that the mechanism offers.
fn every_single_tpc_is_usable(bench: &Bench<'_, '_>) {
    let step = bench.mechanism.step().unwrap();
    assert!(step.least_tpcs >= 1 && step.step_tpcs >= 1, "{step:?}");
    let mut reached = TpcSet::EMPTY;
    for tpc in bench.topology.all().iter() {
        let lane = bench.lane(&TpcSet::single(tpc));
        assert!(lane.set().contains(tpc));
        if step.any_tpcs && step.least_tpcs == 1 {
            assert_eq!(lane.set(), TpcSet::single(tpc));
        }
        assert_eq!(bench.seen(&lane), lane.set());
        reached |= lane.set();
    }
    assert_eq!(reached, bench.topology.all());
}

/// From any set to any other, without a step in between.
fn a_retarget_is_obeyed_at_the_next_launch(bench: &Bench<'_, '_>) {
    let sets = bench.sets();
    let mut lane = bench.lane(&sets[0]);
    for (from, to) in sets.iter().zip(sets.iter().cycle().skip(3)) {
        for set in [from, to, from] {
            // A pool of contexts may have dropped the set.
            bench.offered(set);
            lane.retarget(set).unwrap();
            assert_eq!(lane.set(), *set);
            assert_eq!(bench.seen(&lane), *set, "from {from} to {to}");
        }
    }
}

/// Work that was queued before the change runs on the old set, even if it starts later.
fn queued_work_keeps_its_set(bench: &Bench<'_, '_>) {
    let [low, high] = bench.disjoint();
    let mut lane = bench.lane(&low);
    let kept = bench.lane(&high);
    let [first, second, after] = [(); 3].map(|()| bench.census());
    // So long that the second is still queued when the set changes, unless this process is stopped
    // meanwhile; the assertion holds either way.
    bench.launch(&lane, &first, 3_000_000);
    bench.launch(&lane, &second, 20_000);
    lane.retarget(&high).unwrap();
    bench.launch(&lane, &after, 20_000);
    bench.wait(&lane);
    for before in [first, second] {
        let seen = bench.tpcs(&before.read());
        assert!(seen.is_subset(&low), "queued for {low}, ran on {seen}");
    }
    let seen = bench.tpcs(&after.read());
    assert!(seen.is_subset(&high), "launched for {high}, ran on {seen}");
    drop(kept);
}

/// Every kernel of a stream begins after the one before it has ended, whatever their sets: figure
/// 10 of the paper that stream masks come from (Bakita, Anderson, «Hardware Compute Partitioning on
/// NVIDIA GPUs», RTAS 2023).
fn order_is_kept_across_sets(bench: &Bench<'_, '_>) {
    let sets = bench.sets();
    let kept: Vec<_> = sets.iter().map(|set| bench.lane(set)).collect();
    let mut lane = bench.lane(&sets[0]);
    let launches: Vec<_> = sets.iter().chain(&sets).map(|set| (set, bench.census())).collect();
    for (set, records) in &launches {
        lane.retarget(set).unwrap();
        bench.launch(&lane, records, 50_000);
    }
    bench.wait(&lane);
    let ran: Vec<Vec<BlockRecord>> = launches.iter().map(|(_, records)| records.read()).collect();
    for ((set, _), records) in launches.iter().zip(&ran) {
        assert!(bench.tpcs(records).is_subset(set), "{set}");
    }
    for pair in ran.windows(2) {
        let ended = pair[0].iter().map(|record| record.stop_ns).max();
        let began = pair[1].iter().map(|record| record.start_ns).min();
        assert!(began >= ended, "{began:?} before {ended:?}");
    }
    drop(kept);
}

/// Two kernels on two halves overlap in time. The host can be too slow to launch the second while
/// the first runs, so there are several tries.
fn disjoint_lanes_run_at_the_same_time(bench: &Bench<'_, '_>) {
    let sets = bench.disjoint();
    let lanes = sets.map(|set| bench.lane(&set));
    let overlap = |duration_ns: u64| {
        let records = [bench.census(), bench.census()];
        for (lane, records) in lanes.iter().zip(&records) {
            bench.launch(lane, records, duration_ns);
        }
        lanes.iter().for_each(|lane| bench.wait(lane));
        let ran = records.map(|records| records.read());
        for (set, records) in sets.iter().zip(&ran) {
            assert!(bench.tpcs(records).is_subset(set));
        }
        let [one, two] = ran.map(|records| {
            let began = records.iter().map(|record| record.start_ns).min().unwrap();
            (began, records.iter().map(|record| record.stop_ns).max().unwrap())
        });
        one.0 < two.1 && two.0 < one.1
    };
    // 0.3 ms, doubled up to 0.15 s.
    assert!((0..10).any(|doubled| overlap(300_000 << doubled)), "never at the same time");
}

/// Sets can share TPCs, and need not be contiguous.
fn overlapping_lanes_both_run(bench: &Bench<'_, '_>) {
    let all = bench.topology.all();
    let every = |step: u8| all.iter().filter(move |tpc| tpc % step == 0).collect::<TpcSet>();
    let lanes = [every(2), every(3), TpcSet::single(0), all].map(|set| bench.lane(&set));
    let records = lanes.each_ref().map(|_| bench.census());
    for (lane, records) in lanes.iter().zip(&records) {
        bench.launch(lane, records, 20_000);
    }
    for (lane, records) in lanes.iter().zip(&records) {
        bench.wait(lane);
        // These blocks must not run on the other's TPCs.
        let seen = bench.tpcs(&records.read());
        assert!(seen.is_subset(&lane.set()), "{} ran on {seen}", lane.set());
    }
}

/// Sizes of clusters that CUDA knows.
const CLUSTERS: [u32; 4] = [2, 4, 8, 16];

/// The largest clusters that fit into a set, up to the portable size; the blocks of a cluster are
/// in one GPC.
fn clusters_that_fit_run_inside(bench: &Bench<'_, '_>) {
    if !runs_clusters(bench.gpu) {
        return;
    }
    for set in bench.sets() {
        let lane = bench.lane(&set);
        let room = bench.cluster_room(&set);
        let Some(blocks) = [8, 4, 2].into_iter().find(|&blocks| blocks <= room) else { continue };
        let records = bench.census();
        bench.launch_clusters(&lane, &records, blocks).unwrap();
        bench.wait(&lane);
        let ran = records.read();
        let seen = bench.tpcs(&ran);
        assert!(seen.is_subset(&set), "clusters of {blocks} for {set} ran on {seen}");
        for cluster in ran.chunks_exact(blocks as usize) {
            let of_cluster = bench.tpcs(cluster);
            let gpcs = bench.topology.gpcs().iter().filter(|gpc| !gpc.tpcs.is_disjoint(&of_cluster));
            assert_eq!(gpcs.count(), 1, "a cluster on {of_cluster}");
        }
    }
}

/// Clusters that are larger than the set's SMs in any GPC: the hardware would wait forever, so the
/// mechanism refuses before the launch. A driver without clusters refuses in the call. Either way
/// the lane still works.
fn clusters_that_do_not_fit_are_refused(bench: &Bench<'_, '_>) {
    let has_clusters = runs_clusters(bench.gpu);
    for set in bench.sets() {
        let (lane, room) = (bench.lane(&set), bench.cluster_room(&set));
        for blocks in CLUSTERS {
            let launch =
                Residence { grid_blocks: 64, cluster_blocks: blocks, cooperative: false, blocks_per_sm: 1 };
            let (judged, by_lane) = (bench.mechanism.fits(&set, &launch), lane.fits(&launch));
            assert_eq!(
                (judged.is_ok(), by_lane.is_ok()),
                (blocks <= room, blocks <= room),
                "{blocks} on {set}"
            );
            if has_clusters && blocks <= room {
                continue;
            }
            match bench.launch_clusters(&lane, &bench.records(64), blocks) {
                Err(Error::Misfit(Misfit::Cluster { cluster_blocks, sms_max })) if blocks > room => {
                    assert_eq!((cluster_blocks, sms_max), (blocks, room));
                }
                Err(Error::Call { .. } | Error::MissingSymbol(_)) if !has_clusters => {}
                other => panic!("clusters of {blocks} on {set}: {other:?}"),
            }
        }
        assert_eq!(bench.seen(&lane), set);
    }
}

/// As many blocks as the set has SMs are resident at the same time: each SM has one.
fn cooperative_grids_that_fit_run_inside(bench: &Bench<'_, '_>) {
    for set in bench.sets() {
        let lane = bench.lane(&set);
        let records = bench.records(bench.sms(&set));
        match bench.launch_cooperative(&lane, &records) {
            Ok(()) => {}
            // Cooperative launches came with Pascal.
            Err(Error::Call { .. } | Error::MissingSymbol(_))
                if bench.gpu.facts().compute_capability < 60 =>
            {
                return;
            }
            Err(error) => panic!("{set}: {error}"),
        }
        bench.wait(&lane);
        let ran = records.read();
        assert!(bench.tpcs(&ran).is_subset(&set));
        let last_start = ran.iter().map(|record| record.start_ns).max();
        let first_stop = ran.iter().map(|record| record.stop_ns).min();
        assert!(last_start <= first_stop, "not at one time on {set}");
    }
}

/// More blocks than the set holds: the driver's own check considers the whole device, and the
/// hardware would wait forever.
fn cooperative_grids_that_do_not_fit_are_refused(bench: &Bench<'_, '_>) {
    for set in bench.sets() {
        let (lane, sms) = (bench.lane(&set), bench.sms(&set));
        let launch = |grid_blocks: u32, blocks_per_sm| Residence {
            grid_blocks: grid_blocks.into(),
            cluster_blocks: 1,
            cooperative: true,
            blocks_per_sm,
        };
        for (blocks, per_sm) in [(sms, 1), (sms * 3, 3)] {
            bench.mechanism.fits(&set, &launch(blocks, per_sm)).unwrap();
            let refused = lane.fits(&launch(blocks + 1, per_sm));
            assert!(matches!(refused, Err(Error::Misfit(Misfit::Cooperative { .. }))), "{set}: {refused:?}");
        }
        let refused = bench.launch_cooperative(&lane, &bench.records(sms + 1));
        assert!(matches!(refused, Err(Error::Misfit(Misfit::Cooperative { .. }))), "{set}: {refused:?}");
        assert_eq!(bench.seen(&lane), set);
    }
}

/// The empty set, and a set of TPCs that the device lacks: a launch would hang.
fn impossible_sets_are_refused(bench: &Bench<'_, '_>) {
    let mut lane = bench.lane(&TpcSet::first(2));
    let (before, count) = (lane.set(), bench.topology.tpc_count());
    let beyond = TpcSet::single(count as u8);
    let any = Residence { grid_blocks: 1, cluster_blocks: 1, cooperative: false, blocks_per_sm: 1 };
    for set in [TpcSet::EMPTY, beyond, !bench.topology.all()] {
        let judged = bench.mechanism.fits(&set, &any);
        assert!(matches!(judged, Err(Error::Misfit(Misfit::NoTpc))), "{set}: {judged:?}");
    }
    for set in [TpcSet::EMPTY, beyond, !bench.topology.all(), beyond | TpcSet::single(0)] {
        for refused in [bench.mechanism.lane(&set).err(), lane.retarget(&set).err()] {
            let error = refused.unwrap_or_else(|| panic!("{set} of {count} TPCs is accepted"));
            assert!(matches!(error, Error::Refused(_) | Error::NotOffered { .. }), "{set}: {error}");
        }
        assert_eq!(lane.set(), before);
        assert_eq!(bench.seen(&lane), before);
    }
}

/// A stream beside a lane has the whole device, before, during and after.
fn neighbours_are_not_touched(bench: &Bench<'_, '_>) {
    let all = bench.topology.all();
    let neighbour = Stream::new(bench.gpu.cuda()).unwrap();
    assert_eq!(bench.seen_on(neighbour.as_ref()), all);
    let one = bench.offered(&TpcSet::single(0));
    let mut lane = bench.lane(&all);
    assert_eq!(bench.seen_on(neighbour.as_ref()), all);
    lane.retarget(&one).unwrap();
    assert_eq!(bench.seen(&lane), one);
    assert_eq!(bench.seen_on(neighbour.as_ref()), all);
    // A second lane does not touch the first.
    let other = bench.lane(&all);
    assert_eq!(bench.seen(&other), all);
    assert_eq!(bench.seen(&lane), one);
}

/// A stream created after a lane is gone may get the lane's structure; it has the whole device.
fn nothing_is_left_behind(bench: &Bench<'_, '_>) {
    for round in 0..8u32 {
        let lane = bench.lane(&TpcSet::single((round % bench.topology.tpc_count()) as u8));
        assert_eq!(bench.seen(&lane), lane.set());
        drop(lane);
        let stream = Stream::new(bench.gpu.cuda()).unwrap();
        assert_eq!(bench.seen_on(stream.as_ref()), bench.topology.all());
    }
    assert_eq!(bench.seen_on(bench.gpu.stream()), bench.topology.all());
    if let Some(count) = common::corruptions(bench.gpu.cuda()) {
        assert_eq!(count, 0, "other code changed the simulated driver's state");
    }
}
