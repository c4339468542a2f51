//! White-box tests: the distributor leaves no usable room free, and the books balance.

use std::collections::BTreeMap;

use partita_core::TpcSet;
use proptest::prelude::*;

use crate::group::Group;
use crate::layout::{Layout, SmSet};
use crate::sm::SmFree;
use crate::{DeviceSpec, Engine, GroupKind, KernelWork, catalogue};

/// No kernel with unplaced blocks finds room on an SM that no kernel ahead of it reserves.
fn check_conservation(group: &Group, layout: &Layout) -> Result<(), TestCaseError> {
    let mut kept = SmSet::default();
    for entry in &group.pipeline.ready {
        let task = group.tasks.get(entry.task).expect("a kernel in the pipeline is known");
        prop_assert!(task.remaining > 0);
        let usable = task.allowed.minus(&kept);
        let room = |set: &SmSet| -> Vec<u64> {
            set.iter()
                .map(|sm| u64::from(group.sms[sm].fits(&task.footprint)))
                .filter(|&blocks| blocks > 0)
                .collect()
        };
        if task.never.is_some() {
            prop_assert_eq!(task.resident, 0);
        } else if task.cooperative {
            // All or nothing: either none is placed or none is left.
            prop_assert_eq!(task.resident, 0);
            if task.cluster_blocks == 1 {
                prop_assert!(room(&usable).iter().sum::<u64>() < task.remaining);
            }
        } else if task.cluster_blocks > 1 {
            for gpc in &layout.gpcs {
                prop_assert!(room(&gpc.and(&usable)).len() < task.cluster_blocks as usize);
            }
        } else {
            prop_assert!(room(&usable).is_empty(), "room left for {task:?}");
        }
        kept.add(&task.allowed);
    }
    Ok(())
}

/// The SMs' free resources and the groups' counts match the resident blocks.
fn check_books(group: &Group, layout: &Layout, spec: &DeviceSpec) -> Result<(), TestCaseError> {
    let mut sms = vec![SmFree::new(&spec.sm); group.sms.len()];
    let (mut resident, mut recorded) = (0, 0);
    let mut asked = vec![[0_u64; 2]; layout.gpcs.len()];
    let mut asked_of_sms = vec![0_u64; layout.sm_count()];
    let mut by_task: BTreeMap<u64, u64> = BTreeMap::new();
    for cohort in group.cohorts.iter().filter(|cohort| cohort.live) {
        let task = group.tasks.get(cohort.task).expect("a resident block's kernel is known");
        let mut place = SmSet::default();
        place.insert(usize::from(cohort.sm));
        prop_assert!(place.minus(&task.allowed).is_empty());
        let count = u64::from(cohort.count);
        sms[usize::from(cohort.sm)].take(&task.footprint, cohort.count);
        resident += count;
        recorded += if task.records.is_some() { count } else { 0 };
        let of_gpc = &mut asked[layout.gpc_of(usize::from(cohort.sm))];
        of_gpc[0] += task.demand.dram * count;
        of_gpc[1] += task.demand.l2 * count;
        asked_of_sms[usize::from(cohort.sm)] += task.sm_permille * count;
        *by_task.entry(cohort.task).or_default() += count;
    }
    prop_assert_eq!(&sms, &group.sms);
    prop_assert_eq!((resident, recorded), (group.resident, group.recorded));
    for (sm, asked) in asked_of_sms.into_iter().enumerate() {
        prop_assert_eq!(asked, group.contended.demand(sm));
    }
    // Each GPC draws at most what its SMs can, and passes at most what its ports can.
    let sms = layout.gpcs.iter().map(|gpc| gpc.iter().count() as u64);
    let passed = sms.zip(asked).map(|(sms, [dram, l2])| {
        let draw = spec.memory.sm_bytes_per_s / 1_000 * sms;
        let width = u64::from(spec.clocks.sm_khz) * 64 * sms;
        let drawn = dram.min(draw);
        drawn as f64 * (width as f64 / (drawn + l2) as f64).min(1.0)
    });
    let (passed, demand) = (passed.sum::<f64>(), group.memory.demand() as f64);
    prop_assert!((passed - demand).abs() <= 1e-6 * passed + 64.0, "{passed} and {demand}");
    let followed = group.by_time.len() + group.memory.len() + group.contended.len();
    prop_assert_eq!(followed, group.cohorts.len() - group.cohorts_free.len());
    for (handle, task) in group.tasks.iter() {
        prop_assert_eq!(task.resident, by_task.get(&handle).copied().unwrap_or(0));
    }
    Ok(())
}

fn kernel() -> impl Strategy<Value = KernelWork> {
    let shape = (1_u64..400, 1_u32..=1024, 1_u32..=128, 0_u32..49_152);
    let set = (any::<u64>(), 0_u64..4).prop_map(|(a, b)| TpcSet::from_words([a, b, 0, 0]));
    let kind = prop_oneof![
        5 => Just((1_u32, false)),
        2 => (2_u32..=8).prop_map(|cluster| (cluster, false)),
        1 => Just((1, true)),
    ];
    (shape, set, kind, 100_u64..20_000, 0_u64..8_000_000, 0_u16..500).prop_map(
        |((grid, threads, regs, smem), enabled, (cluster, cooperative), ns, bytes, jitter)| KernelWork {
            grid_blocks: grid * u64::from(cluster),
            threads_per_block: threads,
            regs_per_thread: regs,
            smem_per_block: smem,
            cluster_blocks: cluster,
            cooperative,
            enabled,
            block_ns: ns,
            bytes_per_block: bytes / 2_000_000 * bytes,
            l2_bytes_per_block: (bytes % 3) * bytes,
            jitter_permille: jitter,
            sm_permille: (jitter % 5) * 300,
            record_blocks: jitter % 2 == 1,
            open: false,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_distributor_leaves_no_usable_room_and_the_books_balance(
        launches in prop::collection::vec((0_usize..8, kernel(), 0_u64..5_000), 1..16),
        kill in prop::option::of((0_usize..8, 0_u64..60_000)),
        slots in 1_u32..6,
    ) {
        let mut spec = catalogue::device("h200").expect("a catalogued device");
        spec.scheduler.task_slots = slots;
        spec.scheduler.slice_ns = 15_000;
        let mut gpu = Engine::new(&spec, 5);
        let groups = [GroupKind::Own, GroupKind::Mps].map(|kind| gpu.add_group(kind));
        let streams: Vec<_> =
            (0..8).map(|i| gpu.add_stream(groups[i % 2], -(i as i32 / 3)).expect("the group is there")).collect();
        for (stream, kernel, pass) in launches {
            gpu.submit(streams[stream], kernel).expect("a well-formed launch");
            gpu.advance(gpu.now() + pass);
        }
        let mut kill = kill;
        let mut looks = 0_u32;
        while let Some(next) = gpu.next_event() {
            if let Some((stream, at)) = kill && at <= next {
                gpu.kill_stream(streams[stream]).expect("the stream is there");
                kill = None;
            }
            gpu.advance(next);
            // A check takes far longer than a step: most events have no check.
            looks += 1;
            if looks % 11 != 1 {
                continue;
            }
            for (_, entry) in gpu.groups.iter() {
                check_books(&entry.group, &gpu.layout, &spec)?;
                if !entry.group.wants_round {
                    check_conservation(&entry.group, &gpu.layout)?;
                }
            }
        }
        // Only works that can never run remain, and those that they block.
        for (_, entry) in gpu.groups.iter() {
            prop_assert_eq!(entry.group.resident, 0);
            let stuck = entry.group.stuck().count() > 0;
            prop_assert!(stuck || !entry.group.is_runnable());
        }
    }
}
