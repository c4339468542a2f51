//! Random programs on random devices: invariants for any submissions.

use std::collections::BTreeMap;

use partita_core::TpcSet;
use partita_sim::{
    BlockRecord, CopyDirection, CopyWork, DeviceSpec, Engine, Event, EventKind, Footprint, GroupKind,
    KernelWork, StreamId, Time, Work, WorkId, catalogue,
};
use proptest::prelude::*;

/// One step of a random program.
#[derive(Clone, Debug)]
enum Step {
    Kernel {
        stream: usize,
        kernel: KernelWork,
    },
    Copy {
        stream: usize,
        copy: CopyWork,
    },
    Delay {
        stream: usize,
        ns: Time,
    },
    Marker {
        stream: usize,
    },
    /// Waits for the work submitted that many steps ago.
    Wait {
        stream: usize,
        back: usize,
    },
    Pass {
        ns: Time,
    },
}

/// A random program.
#[derive(Clone, Debug)]
struct Program {
    device: &'static str,
    /// `(group, priority, whether on the group's shared queue)` of each stream.
    streams: Vec<(usize, i32, bool)>,
    steps: Vec<Step>,
    seed: u64,
}

/// Everything observable of a run.
#[derive(Debug, PartialEq)]
struct Outcome {
    events: Vec<Event>,
    blocks: BTreeMap<WorkId, Vec<BlockRecord>>,
    stuck: Vec<WorkId>,
    ended: Time,
}

/// A run with what was submitted.
struct Run {
    spec: DeviceSpec,
    kernels: BTreeMap<WorkId, (StreamId, KernelWork)>,
    by_stream: BTreeMap<StreamId, Vec<WorkId>>,
    group_of: BTreeMap<StreamId, usize>,
    priority_of: BTreeMap<StreamId, i32>,
    outcome: Outcome,
}

fn device(name: &str) -> DeviceSpec {
    let mut spec = catalogue::device(name).unwrap();
    // Short slices and few slots, so that programs of some 100 µs meet the ends of both.
    spec.scheduler.slice_ns = 20_000;
    spec.scheduler.switch_ns = 300;
    spec.scheduler.preempt_ns = 1_700;
    spec.scheduler.task_slots = 3;
    spec
}

fn kernel() -> impl Strategy<Value = KernelWork> {
    let shape = (1_u64..300, prop_oneof![1_u32..=1024, Just(1024)], 1_u32..128, 0_u32..60_000);
    let set = prop_oneof![
        Just(TpcSet::first(66)),
        (0_u16..60, 1_u16..70).prop_map(|(from, count)| TpcSet::range(from..from + count)),
        any::<[u64; 2]>().prop_map(|[a, b]| TpcSet::from_words([a, b, 0, 0])),
        Just(TpcSet::single(200)),
    ];
    let kind = prop_oneof![
        6 => Just((1_u32, false)),
        2 => (2_u32..=16).prop_map(|cluster| (cluster, false)),
        1 => Just((1, true)),
        1 => (2_u32..=4).prop_map(|cluster| (cluster, true)),
    ];
    let pace =
        (0_u64..30_000, prop_oneof![Just(0_u64), 1_u64..40_000_000], prop_oneof![Just(0_u16), 0_u16..1000]);
    (shape, set, kind, pace).prop_map(
        |((grid, threads, regs, smem), enabled, (cluster, cooperative), (ns, bytes, jitter))| {
            KernelWork {
                grid_blocks: grid * u64::from(cluster),
                threads_per_block: threads,
                // A driver refuses what no SM can hold.
                regs_per_thread: regs.min(60_000 / threads.next_multiple_of(32)),
                smem_per_block: smem.min(48 << 10),
                cluster_blocks: cluster,
                cooperative,
                enabled,
                block_ns: ns,
                bytes_per_block: bytes,
                l2_bytes_per_block: bytes / 3,
                jitter_permille: jitter,
                sm_permille: jitter % 3 * 700,
                record_blocks: true,
                open: false,
            }
        },
    )
}

fn program() -> impl Strategy<Value = Program> {
    let stream = (0_usize..2, -2_i32..=0, any::<bool>());
    (prop::sample::select(catalogue::NAMES.to_vec()), prop::collection::vec(stream, 1..7), any::<u64>())
        .prop_flat_map(|(device, streams, seed)| {
            let count = streams.len();
            let direction = prop::sample::select(vec![
                CopyDirection::ToDevice,
                CopyDirection::ToHost,
                CopyDirection::Within,
                CopyDirection::Fill,
            ]);
            let step = prop_oneof![
                8 => (0..count, kernel()).prop_map(|(stream, kernel)| Step::Kernel { stream, kernel }),
                2 => (0..count, 0_u64..50_000_000, direction)
                    .prop_map(|(stream, bytes, direction)| {
                        let client = stream as u64 % 2;
                        Step::Copy { stream, copy: CopyWork { bytes, direction, client } }
                    }),
                1 => (0..count, 0_u64..30_000).prop_map(|(stream, ns)| Step::Delay { stream, ns }),
                1 => (0..count).prop_map(|stream| Step::Marker { stream }),
                2 => (0..count, 1_usize..6).prop_map(|(stream, back)| Step::Wait { stream, back }),
                3 => (0_u64..60_000).prop_map(|ns| Step::Pass { ns }),
            ];
            prop::collection::vec(step, 1..30).prop_map(move |steps| Program {
                device,
                streams: streams.clone(),
                steps,
                seed,
            })
        })
}

/// Runs a program; `step_ns` is how far time is moved at once, 0 for event by event.
fn run(program: &Program, record: bool, step_ns: Time) -> Run {
    let spec = device(program.device);
    let mut gpu = Engine::new(&spec, program.seed);
    let groups = [GroupKind::Own, GroupKind::Mps].map(|kind| gpu.add_group(kind));
    let shared = groups.map(|group| gpu.add_queue(group).unwrap());
    let (mut group_of, mut priority_of) = (BTreeMap::new(), BTreeMap::new());
    let streams: Vec<StreamId> = program
        .streams
        .iter()
        .map(|&(group, priority, on_shared)| {
            let stream = if on_shared {
                gpu.add_stream_on(shared[group], priority).unwrap()
            } else {
                gpu.add_stream(groups[group], priority).unwrap()
            };
            group_of.insert(stream, group);
            priority_of.insert(stream, priority);
            stream
        })
        .collect();
    let mut events = Vec::new();
    let mut kernels = BTreeMap::new();
    let mut by_stream: BTreeMap<StreamId, Vec<WorkId>> = BTreeMap::new();
    let mut submitted: Vec<WorkId> = Vec::new();
    for step in &program.steps {
        let (stream, work) = match step.clone() {
            Step::Kernel { stream, kernel } => {
                (stream, Work::Kernel(KernelWork { record_blocks: record, ..kernel }))
            }
            Step::Copy { stream, copy } => (stream, Work::Copy(copy)),
            Step::Delay { stream, ns } => (stream, Work::Delay { ns }),
            Step::Marker { stream } => (stream, Work::Marker),
            Step::Wait { stream, back } => match submitted.len().checked_sub(back) {
                Some(at) => (stream, Work::WaitOn(submitted[at])),
                None => continue,
            },
            Step::Pass { ns } => {
                let until = gpu.now() + ns;
                move_time(&mut gpu, until, step_ns, &mut events);
                continue;
            }
        };
        let id = gpu.submit(streams[stream], work.clone()).unwrap();
        if let Work::Kernel(kernel) = work {
            kernels.insert(id, (streams[stream], kernel));
        }
        by_stream.entry(streams[stream]).or_default().push(id);
        submitted.push(id);
    }
    while let Some(next) = gpu.next_event() {
        let until = if step_ns == 0 { next } else { gpu.now().max(next) };
        move_time(&mut gpu, until, step_ns, &mut events);
    }
    let blocks = kernels.keys().filter_map(|&work| Some((work, gpu.take_blocks(work)?))).collect();
    let stuck = gpu.stuck().iter().map(|stuck| stuck.work).collect();
    let outcome = Outcome { events, blocks, stuck, ended: gpu.now() };
    Run { spec, kernels, by_stream, group_of, priority_of, outcome }
}

/// Moves time in steps, and checks the engine's prediction of the next event meanwhile.
fn move_time(gpu: &mut Engine, until: Time, step_ns: Time, events: &mut Vec<Event>) {
    while step_ns > 0 && gpu.now() + step_ns < until {
        let next = gpu.next_event();
        let before = events.len();
        let to = gpu.now() + step_ns;
        gpu.advance_into(to, events);
        if next.is_none_or(|next| next > to) {
            assert_eq!(events.len(), before, "something happened before {next:?}");
        }
    }
    gpu.advance_into(until, events);
}

fn times(events: &[Event], pick: impl Fn(EventKind) -> Option<WorkId>) -> BTreeMap<WorkId, Time> {
    events.iter().filter_map(|event| Some((pick(event.kind)?, event.time))).collect()
}

fn done_times(events: &[Event]) -> BTreeMap<WorkId, Time> {
    times(events, |kind| if let EventKind::WorkDone { work } = kind { Some(work) } else { None })
}

/// Times of taking and releasing: `(time, taken, [threads, registers, shared memory, blocks])`.
type Change = (Time, bool, [i64; 4]);

/// Each group's blocks never hold more of an SM than it has.
fn check_occupancy(run: &Run) -> Result<(), TestCaseError> {
    let sm = &run.spec.sm;
    let mut changes: BTreeMap<(usize, u32), Vec<Change>> = BTreeMap::new();
    for (work, blocks) in &run.outcome.blocks {
        let (stream, kernel) = &run.kernels[work];
        let block = Footprint::of(kernel, sm);
        let take = [i64::from(block.threads), i64::from(block.registers), i64::from(block.shared_bytes), 1];
        for record in blocks.iter().filter(|record| record.stop_ns > record.start_ns) {
            let list = changes.entry((run.group_of[stream], record.sm)).or_default();
            list.push((record.start_ns, true, take));
            list.push((record.stop_ns, false, take.map(|n| -n)));
        }
    }
    let most = [sm.threads_max, sm.registers, sm.shared_bytes, sm.blocks_max].map(i64::from);
    for (place, mut list) in changes {
        list.sort_by_key(|&(time, starts, _)| (time, starts));
        let mut held = [0; 4];
        for (time, _, change) in list {
            for i in 0..4 {
                held[i] += change[i];
                prop_assert!(held[i] <= most[i], "{place:?} at {time}: {held:?} of {most:?}");
            }
        }
    }
    Ok(())
}

/// While a kernel has unplaced blocks, no block of a less urgent one of its group starts on an SM
/// that it may use.
///
/// That holds from its first block on: before, it may lack a task slot, as kernels that have placed
/// all their blocks keep theirs.
fn check_priorities(run: &Run) -> Result<(), TestCaseError> {
    let sms_per_tpc = run.spec.topology.sms_per_tpc();
    let starts = |work: &WorkId| run.outcome.blocks[work].iter().map(|block| block.start_ns);
    for (urgent, (stream, kernel)) in &run.kernels {
        if !run.outcome.blocks.contains_key(urgent) {
            continue;
        }
        let placing = starts(urgent).min().unwrap_or(0)..starts(urgent).max().unwrap_or(0);
        for (other, (other_stream, _)) in &run.kernels {
            let is_less_urgent = run.priority_of[other_stream] > run.priority_of[stream];
            if !is_less_urgent || run.group_of[other_stream] != run.group_of[stream] {
                continue;
            }
            for block in run.outcome.blocks.get(other).into_iter().flatten() {
                let may_use = kernel.enabled.contains((block.sm / sms_per_tpc) as u8);
                prop_assert!(
                    !(may_use && placing.contains(&block.start_ns)),
                    "{other} began at {} on SM {} while {urgent} placed blocks, {placing:?}",
                    block.start_ns,
                    block.sm
                );
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_program_keeps_the_rules(program in program()) {
        let run = run(&program, true, 0);
        let outcome = &run.outcome;
        let done = done_times(&outcome.events);
        prop_assert!(outcome.events.is_sorted_by_key(|event| event.time));

        // Every block of every completed kernel once, on an enabled SM that exists, within the
        // kernel's time.
        for (work, (_, kernel)) in &run.kernels {
            let Some(&end) = done.get(work) else {
                prop_assert!(!outcome.blocks.contains_key(work));
                continue;
            };
            let blocks = &outcome.blocks[work];
            prop_assert!(blocks.iter().map(|block| block.block).eq(0..kernel.grid_blocks));
            for block in blocks {
                let tpc = (block.sm / run.spec.topology.sms_per_tpc()) as u8;
                prop_assert!(block.sm < run.spec.sm_count() && kernel.enabled.contains(tpc));
                prop_assert!(block.start_ns <= block.stop_ns && block.stop_ns <= end);
                let half = kernel.block_ns * u64::from(kernel.jitter_permille) / 1000;
                prop_assert!(block.stop_ns - block.start_ns >= kernel.block_ns - half);
            }
            prop_assert_eq!(blocks.iter().map(|block| block.stop_ns).max(), Some(end));
            if kernel.cooperative {
                let last_start = blocks.iter().map(|block| block.start_ns).max();
                prop_assert_eq!(blocks.iter().map(|block| block.start_ns).min(), last_start);
            }
            for cluster in blocks.chunks(kernel.cluster_blocks as usize).filter(|_| kernel.cluster_blocks > 1) {
                let gpc = |block: &BlockRecord| run.spec.topology.tpcs()[(block.sm / run.spec.topology.sms_per_tpc()) as usize].gpc;
                prop_assert!(cluster.iter().all(|block| gpc(block) == gpc(&cluster[0])));
                let mut sms: Vec<u32> = cluster.iter().map(|block| block.sm).collect();
                sms.sort_unstable();
                sms.dedup();
                prop_assert_eq!(sms.len(), cluster.len());
            }
        }
        check_occupancy(&run)?;
        check_priorities(&run)?;

        // Streams are first in, first out.
        for works in run.by_stream.values() {
            let ends: Vec<Option<Time>> = works.iter().map(|work| done.get(work).copied()).collect();
            prop_assert!(ends.is_sorted_by_key(|end| end.unwrap_or(Time::MAX)));
            for (ahead, behind) in works.iter().zip(&works[1..]) {
                let first = outcome.blocks.get(behind).and_then(|blocks| blocks.iter().map(|block| block.start_ns).min());
                if let Some(first) = first {
                    prop_assert!(done[ahead] <= first);
                }
            }
        }

        // Stuck works are those that cannot run; all others end.
        let impossible = |kernel: &KernelWork| kernel.check(&run.spec).is_err();
        for work in &outcome.stuck {
            prop_assert!(impossible(&run.kernels[work].1) && !done.contains_key(work));
        }
        for (work, (_, kernel)) in &run.kernels {
            prop_assert!(!(impossible(kernel) && done.contains_key(work)));
        }
        if !run.kernels.values().any(|(_, kernel)| impossible(kernel)) {
            prop_assert!(outcome.stuck.is_empty());
            prop_assert_eq!(done.len(), run.by_stream.values().map(Vec::len).sum::<usize>());
        }
    }

    /// The same program gives the same result, in whatever steps time advances.
    #[test]
    fn runs_repeat(program in program(), step_ns in 1_u64..50_000) {
        let once = run(&program, true, 0).outcome;
        prop_assert_eq!(&once, &run(&program, true, 0).outcome);
        let steps = run(&program, true, step_ns).outcome;
        prop_assert_eq!(&once.events, &steps.events);
        prop_assert_eq!(&once.blocks, &steps.blocks);
        prop_assert_eq!(&once.stuck, &steps.stuck);
    }

    /// Tracking each block separately changes nothing.
    #[test]
    fn recording_does_not_disturb(program in program()) {
        let recorded = run(&program, true, 0).outcome;
        let plain = run(&program, false, 0).outcome;
        prop_assert_eq!(recorded.events, plain.events);
        prop_assert_eq!(recorded.ended, plain.ended);
    }
}
