//! Launches that hang on hardware hang here, and the engine reports which and why.

use partita_core::TpcSet;
use partita_sim::{Engine, GroupKind, KernelWork, NeverRuns, SmResource, Stuck, WorkId};

use crate::{bare, done, submit};

/// Submits one launch and lets the device run dry: the reason why the launch is stuck, if it is.
fn fate(kernel: KernelWork) -> Option<NeverRuns> {
    let spec = bare("h200");
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let stream = gpu.add_stream(group, 0).unwrap();
    let work = submit(&mut gpu, stream, kernel.clone());
    let events = gpu.run_to_end();
    assert_eq!(gpu.next_event(), None);
    let stuck = gpu.stuck();
    match done(&events, work) {
        Some(_) => {
            assert!(stuck.is_empty() && kernel.check(&spec).is_ok());
            None
        }
        None => {
            let [Stuck { work: which, stream: on, reason }] = stuck[..] else { panic!("{stuck:?}") };
            assert_eq!((which, on), (work, stream));
            assert_eq!(kernel.check(&spec), Err(reason));
            assert!(!gpu.is_done(work));
            Some(reason)
        }
    }
}

fn clusters(size: u32, enabled: TpcSet) -> KernelWork {
    KernelWork { cluster_blocks: size, ..KernelWork::new(u64::from(size) * 4, 1024, 1_000, enabled) }
}

#[test]
fn clusters_hang_under_masks_that_leave_no_gpc_enough_sms() {
    // Measured: clusters of 4, 8 and 16 on logical TPCs 0 to 7 never complete, nor 16 on 0 to 32.
    for size in [4, 8, 16] {
        let reason = fate(clusters(size, TpcSet::first(8)));
        assert_eq!(reason, Some(NeverRuns::ClusterTooLarge { cluster_blocks: size, gpc_sms_max: 2 }));
    }
    assert!(matches!(fate(clusters(16, TpcSet::first(33))), Some(NeverRuns::ClusterTooLarge { .. })));
    for size in [2, 4, 8, 16] {
        assert_eq!(fate(clusters(size, TpcSet::first(66))), None);
    }
    assert_eq!(fate(clusters(2, TpcSet::first(8))), None);
}

#[test]
fn cooperative_grids_hang_when_they_cannot_be_resident_at_once() {
    // Measured: a grid sized for 132 SMs under a mask of 33 TPCs.
    let grid =
        |blocks, enabled| KernelWork { cooperative: true, ..KernelWork::new(blocks, 1024, 1_000, enabled) };
    let reason = fate(grid(264, TpcSet::first(33)));
    assert_eq!(reason, Some(NeverRuns::CooperativeTooLarge { grid_blocks: 264, resident_max: 132 }));
    assert_eq!(fate(grid(132, TpcSet::first(33))), None);
    assert_eq!(fate(grid(264, TpcSet::first(66))), None);
    // With clusters, SMs of a GPC beyond whole clusters are unused.
    let both = |blocks| KernelWork { cluster_blocks: 16, ..grid(blocks, TpcSet::first(66)) };
    let most = both(16).resident_blocks_max(&bare("h200"));
    assert!(most % 16 == 0 && most < 264);
    assert_eq!(fate(both(most)), None);
    assert!(matches!(fate(both(most + 16)), Some(NeverRuns::CooperativeTooLarge { .. })));
}

#[test]
fn a_mask_of_dead_bits_hangs() {
    assert_eq!(fate(KernelWork::new(1, 32, 1_000, TpcSet::range(66..128))), Some(NeverRuns::NoLiveTpc));
    assert_eq!(fate(KernelWork::new(1, 32, 1_000, TpcSet::EMPTY)), Some(NeverRuns::NoLiveTpc));
    assert_eq!(fate(KernelWork::new(1, 32, 1_000, TpcSet::range(65..128))), None);
}

#[test]
fn a_block_larger_than_an_sm_hangs() {
    let kernel = KernelWork { regs_per_thread: 65, ..KernelWork::new(1, 1024, 1_000, TpcSet::first(66)) };
    assert_eq!(
        fate(kernel),
        Some(NeverRuns::BlockTooLarge { resource: SmResource::Registers, needed: 73_728, available: 65_536 })
    );
    let kernel = KernelWork { smem_per_block: 228 << 10, ..KernelWork::new(1, 32, 1_000, TpcSet::first(66)) };
    assert!(matches!(
        fate(kernel),
        Some(NeverRuns::BlockTooLarge { resource: SmResource::SharedMemory, .. })
    ));
}

#[test]
fn what_is_behind_a_stuck_launch_waits_and_others_go_on() {
    let spec = bare("h200");
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let [a, b] = [0, 0].map(|priority| gpu.add_stream(group, priority).unwrap());
    let dead = submit(&mut gpu, a, KernelWork::new(1, 32, 1_000, TpcSet::EMPTY));
    let behind = submit(&mut gpu, a, KernelWork::new(1, 32, 1_000, spec.topology.all()));
    let other = submit(&mut gpu, b, KernelWork::new(1, 32, 1_000, spec.topology.all()));
    let events = gpu.run_to_end();
    assert_eq!((done(&events, behind), done(&events, other)), (None, Some(1_000)));
    assert_eq!(gpu.stuck().iter().map(|stuck| stuck.work).collect::<Vec<WorkId>>(), [dead]);
    assert_eq!(gpu.pending(a), Some(2));
    // The end of the process is the remedy.
    gpu.remove_group(group).unwrap();
    assert!(gpu.stuck().is_empty() && gpu.is_done(dead) && gpu.is_done(behind));
}

#[test]
fn reasons_are_printed_in_words() {
    for (reason, words) in [
        (NeverRuns::NoLiveTpc, "its mask enables no TPC of this device"),
        (
            NeverRuns::ClusterTooLarge { cluster_blocks: 16, gpc_sms_max: 10 },
            "a cluster of 16 blocks needs that many SMs of one GPC, at most 10 are enabled in any",
        ),
        (
            NeverRuns::CooperativeTooLarge { grid_blocks: 264, resident_max: 132 },
            "a cooperative grid of 264 blocks must be resident at once, the enabled SMs hold 132",
        ),
        (
            NeverRuns::BlockTooLarge { resource: SmResource::Registers, needed: 70_000, available: 65_536 },
            "one block needs 70000 registers, an SM has 65536",
        ),
    ] {
        assert_eq!(reason.to_string(), words);
    }
}
