//! Streams, hardware queues, waits, external operations, copies, and the state after their removal.

use partita_core::TpcSet;
use partita_sim::{
    Connections, CopyDirection, CopyWork, Engine, EventKind, GroupKind, KernelWork, StreamId, SubmitError,
    Time, UnknownHandle, Work, WorkId,
};

use crate::{bare, done, started, submit, whole_sm};

#[test]
fn a_stream_is_a_queue_and_streams_are_independent() {
    let spec = bare("gtx1060-3gb");
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let [a, b] = [0, 0].map(|priority| gpu.add_stream(group, priority).unwrap());
    let one = submit(&mut gpu, a, whole_sm(1, 5_000, spec.topology.all()));
    let two = submit(&mut gpu, a, whole_sm(1, 5_000, spec.topology.all()));
    let beside = submit(&mut gpu, b, whole_sm(1, 5_000, spec.topology.all()));
    let events = gpu.run_to_end();
    assert_eq!([one, two, beside].map(|work| started(&events, work)), [Some(0), Some(5_000), Some(0)]);
}

#[test]
fn a_shared_hardware_queue_makes_streams_wait_for_each_other() {
    let spec = bare("gtx1060-3gb");
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let queue = gpu.add_queue(group).unwrap();
    let [a, b] = [0, 0].map(|priority| gpu.add_stream_on(queue, priority).unwrap());
    submit(&mut gpu, a, whole_sm(1, 5_000, spec.topology.all()));
    submit(&mut gpu, a, whole_sm(1, 5_000, spec.topology.all()));
    // Nothing is ahead of it in its stream; in the queue the second kernel of the other stream is.
    let beside = submit(&mut gpu, b, whole_sm(1, 1_000, spec.topology.all()));
    assert_eq!(started(&gpu.run_to_end(), beside), Some(5_000));
    assert_eq!(gpu.remove_queue(queue), Ok(()));
    assert_eq!(gpu.remove_queue(queue), Err(UnknownHandle));
    assert_eq!(gpu.submit(a, Work::Marker), Err(SubmitError::UnknownStream));
}

/// The end times of streams on this many queues: each waits for 10 µs and then runs 10 µs on a
/// separate SM.
fn dealt(device: &str, variable: Option<&str>, streams: u64) -> Vec<Time> {
    let spec = bare(device);
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let mut connections = Connections::new(&spec.scheduler, group, variable).unwrap();
    let works: Vec<WorkId> = (0..streams)
        .map(|stream| {
            let sm = TpcSet::single(stream as u8);
            let stream = connections.add_stream(&mut gpu, 0).unwrap();
            submit(&mut gpu, stream, whole_sm(1, 10_000, sm));
            submit(&mut gpu, stream, whole_sm(1, 10_000, sm))
        })
        .collect();
    let events = gpu.run_to_end();
    works.into_iter().map(|work| done(&events, work).unwrap()).collect()
}

#[test]
fn a_process_has_as_many_queues_as_its_variable_says() {
    // Eight by default: the ninth stream's first kernel waits behind the first's second, which
    // waits for the first's first.
    let mut expected = vec![20_000; 8];
    expected.push(30_000);
    assert_eq!(dealt("h200", None, 9), expected);
    assert_eq!(dealt("h200", Some("9"), 9), [20_000; 9]);
    assert_eq!(dealt("h200", Some(" 32 "), 32), [20_000; 32]);
    assert_eq!(dealt("h200", Some("1"), 3), [20_000, 30_000, 40_000]);
    // The first Kepler has a single queue.
    assert_eq!(dealt("gtx-680", None, 3), [20_000, 30_000, 40_000]);
}

#[test]
fn a_number_of_queues_that_cannot_be_is_refused() {
    let spec = bare("h200");
    let group = Engine::new(&spec, 0).add_group(GroupKind::Own);
    for value in ["0", "33", "-1", "many", ""] {
        let error = Connections::new(&spec.scheduler, group, Some(value)).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "CUDA_DEVICE_MAX_CONNECTIONS is '{value}': hardware queues of a process, give a number from 1 to 32"
            )
        );
    }
}

#[test]
fn an_event_orders_two_streams() {
    let spec = bare("gtx1060-3gb");
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let [a, b] = [0, 0].map(|priority| gpu.add_stream(group, priority).unwrap());
    submit(&mut gpu, a, whole_sm(1, 7_000, spec.topology.all()));
    let record = gpu.submit(a, Work::Marker).unwrap();
    let wait = gpu.submit(b, Work::WaitOn(record)).unwrap();
    let after = submit(&mut gpu, b, whole_sm(1, 1_000, spec.topology.all()));
    let events = gpu.run_to_end();
    assert_eq!([record, wait].map(|work| done(&events, work)), [Some(7_000); 2]);
    assert_eq!(started(&events, after), Some(7_000));
    // A wait for a work that ended long ago ends at once, and so does one for an unknown work.
    for past in [record, WorkId::from_u64(u64::MAX)] {
        let wait = gpu.submit(b, Work::WaitOn(past)).unwrap();
        assert!(gpu.is_done(wait));
    }
    assert_eq!(gpu.next_event(), Some(gpu.now()), "their events wait to be handed out");
    assert_eq!(gpu.advance(0).len(), 2);
}

#[test]
fn an_external_operation_ends_at_its_signal() {
    let spec = bare("gtx1060-3gb");
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let stream = gpu.add_stream(group, 0).unwrap();
    submit(&mut gpu, stream, whole_sm(1, 3_000, spec.topology.all()));
    let host = gpu.submit(stream, Work::External).unwrap();
    let after = gpu.submit(stream, Work::Delay { ns: 500 }).unwrap();
    assert_eq!(gpu.complete(host), Err(UnknownHandle), "not started yet");
    let events = gpu.run_to_end();
    assert_eq!((started(&events, host), done(&events, host)), (Some(3_000), None));
    assert_eq!(gpu.next_event(), None);
    gpu.advance(10_000);
    gpu.complete(host).unwrap();
    assert_eq!(gpu.complete(host), Err(UnknownHandle), "ended already");
    let events = gpu.run_to_end();
    assert_eq!((done(&events, host), done(&events, after)), (Some(10_000), Some(10_500)));
}

#[test]
fn copies_run_beside_kernels_one_per_direction() {
    let mut spec = bare("h200");
    spec.copy.link_bytes_per_s = 1_000_000_000; // one byte per nanosecond
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let streams = [0; 4].map(|priority| gpu.add_stream(group, priority).unwrap());
    let copy = |direction| CopyWork { bytes: 10_000, direction, client: 0 };
    let kernel = submit(&mut gpu, streams[0], whole_sm(132, 10_000, spec.topology.all()));
    let up = gpu.submit(streams[1], copy(CopyDirection::ToDevice)).unwrap();
    let up_too = gpu.submit(streams[2], copy(CopyDirection::ToDevice)).unwrap();
    let down = gpu.submit(streams[3], copy(CopyDirection::ToHost)).unwrap();
    let events = gpu.run_to_end();
    assert_eq!([kernel, up, down].map(|work| done(&events, work)), [Some(10_000); 3]);
    assert_eq!((started(&events, up_too), done(&events, up_too)), (Some(10_000), Some(20_000)));
}

/// A GPU that copies a byte in a nanosecond, and three streams.
fn copying() -> (Engine, [StreamId; 3]) {
    let mut spec = bare("h200");
    spec.copy.link_bytes_per_s = 1_000_000_000;
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Mps);
    let streams = [0; 3].map(|priority| gpu.add_stream(group, priority).unwrap());
    (gpu, streams)
}

fn up(client: u64, bytes: u64) -> CopyWork {
    CopyWork { bytes, direction: CopyDirection::ToDevice, client }
}

#[test]
fn a_copy_waits_a_slice_for_a_client_that_copies_all_the_time() {
    let (mut gpu, [first, also, other]) = copying();
    // One copy of 5 ms, many of 0.1 ms, or many in two streams: no difference for the other client.
    let floods: [&dyn Fn(&mut Engine); 3] = [
        &|gpu| {
            gpu.submit(first, up(1, 5_000_000)).unwrap();
        },
        &|gpu| {
            (0..50).for_each(|_| {
                gpu.submit(first, up(1, 100_000)).unwrap();
            })
        },
        &|gpu| {
            (0..50).for_each(|n| {
                gpu.submit([first, also][n % 2], up(1, 100_000)).unwrap();
            })
        },
    ];
    for flood in floods {
        let began = gpu.now();
        flood(&mut gpu);
        gpu.advance(began + 30_000);
        let small = gpu.submit(other, up(2, 1_000)).unwrap();
        let events = gpu.run_to_end();
        assert_eq!(done(&events, small), Some(began + 30_000 + 1_000_000 + 1_000));
        // Nothing of the interrupted copy is lost.
        assert_eq!(gpu.now(), began + 5_001_000);
    }
}

#[test]
fn a_copy_goes_between_the_pieces_of_another_client() {
    let (mut gpu, [first, _, other]) = copying();
    for _ in 0..50 {
        gpu.submit(first, up(1, 100_000)).unwrap();
        gpu.submit(first, CopyWork { bytes: 1, direction: CopyDirection::Fill, client: 1 }).unwrap();
    }
    gpu.advance(30_000);
    let small = gpu.submit(other, up(2, 1_000)).unwrap();
    assert_eq!(done(&gpu.run_to_end(), small), Some(101_000));
}

#[test]
fn a_removed_stream_finishes_and_a_killed_one_does_not() {
    let spec = bare("gtx1060-3gb");
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Mps);
    let [a, b, c] = [0, 0, 0].map(|priority| gpu.add_stream(group, priority).unwrap());
    let tidy = submit(&mut gpu, a, whole_sm(9, 5_000, TpcSet::range(0..3)));
    let doomed = [
        submit(&mut gpu, b, whole_sm(90, 5_000, TpcSet::range(3..9))),
        gpu.submit(b, CopyWork { bytes: 1 << 20, direction: CopyDirection::ToDevice, client: 0 }).unwrap(),
    ];
    let waits = gpu.submit(c, Work::WaitOn(doomed[1])).unwrap();
    let next = submit(&mut gpu, c, whole_sm(6, 1_000, TpcSet::range(3..9)));
    gpu.remove_stream(a).unwrap();
    assert_eq!(gpu.remove_stream(a), Err(UnknownHandle));
    assert_eq!(gpu.submit(a, Work::Marker), Err(SubmitError::UnknownStream));
    gpu.advance(7_000);
    gpu.kill_stream(b).unwrap();
    assert!(doomed.iter().all(|&work| gpu.is_done(work)));
    let events = gpu.run_to_end();
    let killed: Vec<WorkId> = events
        .iter()
        .filter_map(|event| match event.kind {
            EventKind::WorkKilled { work } => Some(work),
            _ => None,
        })
        .collect();
    assert_eq!(killed, doomed);
    assert_eq!(done(&events, waits), Some(7_000), "a wait for a killed work ends");
    assert_eq!(done(&events, next), Some(8_000), "the SMs are free at once");
    assert_eq!(done(&events, tidy), Some(15_000));
    assert_eq!((gpu.pending(a), gpu.pending(b), gpu.pending(c)), (None, None, Some(0)));
}

#[test]
fn a_process_may_end_at_any_moment() {
    let spec = bare("h200");
    for moment in (0..60_000).step_by(2_500) {
        let mut gpu = Engine::new(&spec, 7);
        let stays = gpu.add_group(GroupKind::Own);
        let goes = gpu.add_group(GroupKind::Own);
        let kernel = KernelWork {
            jitter_permille: 300,
            bytes_per_block: 1 << 20,
            ..KernelWork::new(2_000, 256, 9_000, spec.topology.all())
        };
        for group in [stays, goes] {
            for priority in [0, -1] {
                let stream = gpu.add_stream(group, priority).unwrap();
                gpu.submit(
                    stream,
                    CopyWork { bytes: 500_000, direction: CopyDirection::ToDevice, client: 0 },
                )
                .unwrap();
                submit(&mut gpu, stream, kernel.clone());
                gpu.submit(stream, Work::Delay { ns: 10_000 }).unwrap();
                submit(&mut gpu, stream, kernel.clone());
            }
        }
        gpu.advance(moment);
        gpu.remove_group(goes).unwrap();
        assert_eq!(gpu.remove_group(goes), Err(UnknownHandle));
        gpu.run_to_end();
        let stats = gpu.stats();
        let all = stats.works_submitted - stats.works_done;
        assert!(all <= 8, "only the removed group's works are missing: {stats:?}");
        assert!(gpu.stuck().is_empty());
        // The device works as before.
        let stream = gpu.add_stream(stays, 0).unwrap();
        let begin = gpu.now();
        let work = submit(&mut gpu, stream, KernelWork::new(132 * 8, 256, 1_000, spec.topology.all()));
        assert_eq!(done(&gpu.run_to_end(), work), Some(begin + 1_000));
    }
}

#[test]
fn malformed_launches_are_refused() {
    let spec = bare("h200");
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let stream = gpu.add_stream(group, 0).unwrap();
    let good = KernelWork::new(8, 32, 1_000, spec.topology.all());
    for (kernel, error) in [
        (KernelWork { grid_blocks: 0, ..good.clone() }, SubmitError::EmptyLaunch),
        (KernelWork { threads_per_block: 0, ..good.clone() }, SubmitError::EmptyLaunch),
        (
            KernelWork { threads_per_block: 1_025, ..good.clone() },
            SubmitError::TooManyThreads { threads_per_block: 1_025, max: 1_024 },
        ),
        (
            KernelWork { cluster_blocks: 3, ..good.clone() },
            SubmitError::BadCluster { grid_blocks: 8, cluster_blocks: 3 },
        ),
        (
            KernelWork { cluster_blocks: 0, ..good.clone() },
            SubmitError::BadCluster { grid_blocks: 8, cluster_blocks: 0 },
        ),
        (KernelWork { jitter_permille: 1_000, ..good.clone() }, SubmitError::BadJitter),
    ] {
        assert_eq!(gpu.submit(stream, kernel), Err(error));
        assert!(!error.to_string().is_empty());
    }
    assert_eq!(gpu.pending(stream), Some(0));
}

#[test]
fn a_block_that_never_ends_ends_no_run() {
    let spec = bare("gtx1060-3gb");
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Own);
    let stream = gpu.add_stream(group, 0).unwrap();
    let spin = submit(&mut gpu, stream, KernelWork::new(9, 32, u64::MAX, spec.topology.all()));
    let events = gpu.run_to_end();
    assert_eq!((started(&events, spin), done(&events, spin)), (Some(0), None));
    gpu.advance(u64::MAX);
    assert!(!gpu.is_done(spin));
    assert!(gpu.stuck().is_empty(), "it was dispatched");
}

#[test]
fn what_a_killed_kernel_kept_is_free_for_others() {
    let spec = bare("gtx1060-3gb");
    let tpc = TpcSet::single(0);
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Mps);
    let [a, b, c] = [0, 0, 0].map(|priority| gpu.add_stream(group, priority).unwrap());
    // Half of the SM is taken; the next kernel waits for all of it and keeps the third from the
    // other half.
    submit(&mut gpu, a, KernelWork::new(1, 1024, 10_000, tpc));
    submit(&mut gpu, b, whole_sm(1, 5_000, tpc));
    let small = submit(&mut gpu, c, KernelWork::new(1, 32, 1_000, tpc));
    gpu.advance(3_000);
    gpu.kill_stream(b).unwrap();
    assert_eq!(started(&gpu.run_to_end(), small), Some(3_000));
}

#[test]
fn a_killed_launch_delays_no_other() {
    let mut spec = bare("gtx1060-3gb");
    spec.scheduler.launch_ns = 2_000;
    let mut gpu = Engine::new(&spec, 0);
    let [a, b] = [0; 2].map(|_| gpu.add_group(GroupKind::Own)).map(|group| gpu.add_stream(group, 0).unwrap());
    submit(&mut gpu, a, whole_sm(1, 1_000, spec.topology.all()));
    gpu.run_to_end();
    submit(&mut gpu, a, whole_sm(1, 1_000, spec.topology.all()));
    gpu.advance(gpu.now() + 1_000);
    gpu.kill_stream(a).unwrap();
    // The first group has the turn, and nothing to do with it.
    let now = gpu.now();
    let other = submit(&mut gpu, b, whole_sm(1, 1_000, spec.topology.all()));
    assert_eq!(started(&gpu.run_to_end(), other), Some(now + 2_000));
}
