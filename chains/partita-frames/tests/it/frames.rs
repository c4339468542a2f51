//! The chain file: frames pass from role to role, and arrive unchanged.

use crate::common;

use std::ffi::CStr;

use common::{dir, owner};
use partita_frames::{
    ChainError, ChainFault, ChainFile, ChainPlan, ChainSeat, Got, Lease, Note, Policy, Reach, Sent,
    SlabOwner, SlabPlan,
};

const FRAME_BYTES: u64 = 1000;
/// The distance of frames.
const STRIDE_BYTES: u64 = 1024 + 256;

fn plan(roles: usize, frames: u32, queue_max: u32, policy: Policy) -> ChainPlan {
    ChainPlan {
        name: "camera".into(),
        roles: (0..roles).map(|role| format!("role-{role}")).collect(),
        frame_bytes: FRAME_BYTES,
        frames,
        queue_max,
        policy,
        role_gpus: vec![*b"0123456789abcdef"; roles],
    }
}

/// Why the chain refused.
fn fault(error: &ChainError) -> ChainFault {
    match error {
        ChainError::Refused { fault, .. } => fault.clone(),
        other => panic!("{other}"),
    }
}

fn slab(frames: u64, owner: SlabOwner) -> SlabPlan {
    SlabPlan {
        handle: std::array::from_fn(|i| i as u8),
        begins_at: 0,
        bytes: frames * STRIDE_BYTES + 7,
        owner,
        tag: [5, 6],
        elsewhere: None,
    }
}

fn attach(path: &CStr, role: u8) -> ChainSeat {
    ChainFile::open(path).unwrap().claim(role).unwrap().take(owner(), 0).unwrap().0
}

fn frame(seat: &ChainSeat) -> Lease {
    seat.take().unwrap().expect("a frame")
}

#[test]
fn a_frame_passes_from_end_to_end_with_what_is_said_of_it() {
    let dir = dir();
    let path = dir.file("chain");
    let chain = ChainFile::create(&path, &plan(3, 4, 2, Policy::Wait)).unwrap();
    assert_eq!(ChainFile::open(&path).unwrap().plan(), chain.plan());
    let [first, middle, last] = [0, 1, 2].map(|role| attach(&path, role));
    assert_eq!(first.take().unwrap(), None, "no memory yet");
    assert_eq!(first.frames_missing(), 4);
    let of = first.add_slab(&slab(4, SlabOwner::Keeper(9))).unwrap();
    assert_eq!((first.frames_missing(), chain.census().free), (0, 4));
    assert_eq!(chain.slab(of).unwrap().plan, slab(4, SlabOwner::Keeper(9)));

    for round in 0..10 {
        let lease = frame(&first);
        assert_eq!((lease.slab, lease.offset), (of, round % 4 * STRIDE_BYTES), "the pool goes round");
        let note = Note { bytes: 10 + round, meta: [round, 1, 2, 3], ..first.note(&lease) };
        assert_eq!(note.sequence, round);
        first.describe(&lease, &note).unwrap();
        first.leave_event(&lease, &[round as u8; 64]).unwrap();
        first.note_recorded(&lease, true).unwrap();
        assert_eq!(first.send_until(&lease, 0, 0).unwrap(), Sent::Queued);
        let got = frame(&middle);
        assert_eq!((got.slab, got.offset, middle.note(&got)), (lease.slab, lease.offset, note));
        let recorder = middle.recorder(&got).unwrap();
        assert_eq!(recorder, first.recorder_of_own());
        assert_eq!(middle.event_handle(&got, recorder), Some([round as u8; 64]));
        assert_eq!(middle.send_until(&got, 0, 0).unwrap(), Sent::Queued);
        let got = frame(&last);
        assert_eq!(last.note(&got), note);
        last.finish(&got).unwrap();
        assert_eq!(chain.census().free, 4);
    }
    assert_eq!((chain.frames_finished(), chain.status(1).unwrap().frames_in), (10, 10));
    assert_eq!(middle.take_until(0, 0).unwrap(), Got::Late);
    chain.stop();
    assert_eq!(middle.take_until(0, u64::MAX).unwrap(), Got::Stopping);
    assert_eq!(first.take_until(0, u64::MAX).unwrap(), Got::Stopping);
    chain.resume();
    for _ in 0..2 {
        assert_eq!(first.send_until(&frame(&first), 0, 0).unwrap(), Sent::Queued);
    }
    let more = first.acquire().unwrap().unwrap();
    chain.stop();
    assert_eq!(first.send_until(&more, 0, 0).unwrap(), Sent::Late, "there will be room");
    assert!(matches!(middle.take_until(0, 0).unwrap(), Got::Frame(_)), "what is there is still worked on");
    assert_eq!(first.send_until(&more, 0, u64::MAX).unwrap(), Sent::Queued);
}

#[test]
fn on_several_gpus_a_frame_has_memory_on_each_before_anyone_gets_it() {
    let dir = dir();
    let path = dir.file("chain");
    let role_gpus = vec![[1; 16], [2; 16], [1; 16], [3; 16]];
    let plan = ChainPlan { role_gpus: role_gpus.clone(), ..plan(4, 3, 2, Policy::Wait) };
    assert_eq!(plan.gpus(), [[1; 16], [2; 16], [3; 16]]);
    assert_eq!([0, 1, 2, 3].map(|role| plan.gpu_of(role)), [0, 1, 0, 2]);
    let chain = ChainFile::create(&path, &plan).unwrap();
    assert_eq!(ChainFile::open(&path).unwrap().plan(), &plan);
    let first = attach(&path, 0);
    let home = first.add_slab(&slab(3, SlabOwner::Keeper(1))).unwrap();
    let elsewhere = |gpu: u8, begins_at: u64| {
        let other = slab(3, SlabOwner::Keeper(1 + u64::from(gpu)));
        SlabPlan { begins_at, bytes: other.bytes + begins_at, elsewhere: Some((gpu, home)), ..other }
    };
    first.add_slab(&elsewhere(1, 512)).unwrap();
    assert_eq!((first.frames_missing(), first.take().unwrap()), (3, None), "not on the third GPU yet");
    // The next owner of the first role finds the same.
    drop(first);
    let first = attach(&path, 0);
    assert_eq!((first.frames_missing(), chain.census().free), (3, 0));
    first.add_slab(&elsewhere(2, 0)).unwrap();
    assert_eq!((first.frames_missing(), chain.census().free), (0, 3));
    let lease = frame(&first);
    let info = first.slab(lease.slab).unwrap();
    let moved = |gpu| first.slab_on(gpu, &info).map(|(slab, moved)| (slab.plan.owner, moved));
    assert_eq!(moved(0), Some((SlabOwner::Keeper(1), 0)));
    assert_eq!(moved(1), Some((SlabOwner::Keeper(2), 512)));
    assert_eq!((moved(2), moved(3)), (Some((SlabOwner::Keeper(3), 0)), None));
    // What it says of its way from another GPU is its process's own.
    let second = attach(&path, 1);
    assert_eq!(chain.reach(1), Reach::Unknown);
    for reach in [Reach::Peer, Reach::Host] {
        second.note_reach(reach);
        assert_eq!((chain.reach(1), chain.status(1).unwrap().reach), (reach, reach));
    }
    drop(second);
    let _second = attach(&path, 1);
    assert_eq!(chain.reach(1), Reach::Unknown);
    // Without its memory on one GPU a frame is gone on all of them, and the places are free again.
    assert_eq!(first.retire_slab(home).unwrap(), 0);
    assert_eq!(first.slabs().iter().filter(|info| info.live).count(), 0);
    assert_eq!((moved(1), first.frames_missing()), (None, 3));
}

#[test]
fn who_is_to_end_leaves_when_nothing_comes_any_more() {
    let dir = dir();
    let path = dir.file("chain");
    let chain = ChainFile::create(&path, &plan(4, 4, 1, Policy::Wait)).unwrap();
    let [first, second, third, last] = [0, 1, 2, 3].map(|role| attach(&path, role));
    first.add_slab(&slab(4, SlabOwner::Keeper(9))).unwrap();
    let soon = || partita_frames::monotonic_ns() + 20_000_000;
    let lease = frame(&first);
    chain.stop();
    // One frame on its way, at each of its possible places.
    assert_eq!(first.take_until(0, u64::MAX).unwrap(), Got::Stopping, "none begins");
    assert_eq!(last.take_until(0, soon()).unwrap(), Got::Late);
    assert_eq!(first.send_until(&lease, 0, 0).unwrap(), Sent::Queued);
    assert_eq!(last.take_until(0, soon()).unwrap(), Got::Late);
    assert_eq!(third.take_until(0, soon()).unwrap(), Got::Late);
    let Got::Frame(lease) = second.take_until(0, u64::MAX).unwrap() else { panic!("it is there") };
    assert_eq!(second.take_until(0, u64::MAX).unwrap(), Got::Stopping);
    // A process that waits for it gets it, however late.
    let last = std::thread::scope(|scope| {
        let waiting = scope.spawn(move || match last.take_until(0, u64::MAX).unwrap() {
            Got::Frame(lease) => (last, lease),
            other => panic!("{other:?}"),
        });
        assert_eq!(second.send_until(&lease, 0, 0).unwrap(), Sent::Queued);
        let Got::Frame(lease) = third.take_until(0, u64::MAX).unwrap() else { panic!("it is there") };
        drop(second);
        assert_eq!(third.send_until(&lease, 0, 0).unwrap(), Sent::Queued);
        let (last, lease) = waiting.join().unwrap();
        last.finish(&lease).unwrap();
        last
    });
    for seat in [&first, &third, &last] {
        assert_eq!(seat.take_until(0, u64::MAX).unwrap(), Got::Stopping);
    }
    assert_eq!(chain.frames_finished(), 1);
}

#[test]
fn who_is_to_end_does_not_wait_for_the_dead() {
    let dir = dir();
    let path = dir.file("chain");
    let chain = ChainFile::create(&path, &plan(3, 4, 1, Policy::Wait)).unwrap();
    let [first, middle, last] = [0, 1, 2].map(|role| attach(&path, role));
    first.add_slab(&slab(4, SlabOwner::Keeper(9))).unwrap();
    let (queued, held) = (frame(&first), frame(&first));
    assert_eq!(first.send_until(&queued, 0, 0).unwrap(), Sent::Queued);
    chain.stop();
    assert_eq!(last.take_until(0, 0).unwrap(), Got::Late, "two are on their way");
    drop(middle);
    assert_eq!(last.take_until(0, u64::MAX).unwrap(), Got::Stopping);
    assert_eq!(first.send_until(&held, 0, u64::MAX).unwrap(), Sent::Stopping);
}

#[test]
fn a_lease_is_used_once() {
    let dir = dir();
    let path = dir.file("chain");
    ChainFile::create(&path, &plan(2, 2, 2, Policy::Wait)).unwrap();
    let [first, last] = [0, 1].map(|role| attach(&path, role));
    first.add_slab(&slab(2, SlabOwner::Keeper(9))).unwrap();
    let lease = frame(&first);
    first.send_until(&lease, 0, 0).unwrap();
    let not_held = |error: ChainError| {
        assert_eq!(fault(&error), ChainFault::NotHeld { lease: lease.ticket.lease() });
        assert!(error.to_string().contains("use each frame once"), "{error}");
    };
    not_held(first.send_until(&lease, 0, 0).unwrap_err());
    not_held(first.discard(&lease).unwrap_err());
    not_held(first.describe(&lease, &Note::default()).unwrap_err());
    not_held(last.finish(&lease).unwrap_err());
    let got = frame(&last);
    last.finish(&got).unwrap();
    not_held(last.finish(&got).unwrap_err());
    assert_eq!(last.census().total(), 2);
}

#[test]
fn each_policy_does_what_it_says_of_a_full_queue() {
    for (name, policy) in Policy::NAMES {
        let dir = dir();
        let path = dir.file("chain");
        ChainFile::create(&path, &plan(2, 4, 2, policy)).unwrap();
        let [first, last] = [0, 1].map(|role| attach(&path, role));
        first.add_slab(&slab(4, SlabOwner::Keeper(9))).unwrap();
        for _ in 0..2 {
            assert_eq!(first.send_until(&frame(&first), 0, 0).unwrap(), Sent::Queued);
        }
        let third = frame(&first);
        let sent = first.send_until(&third, 0, 0).unwrap();
        let status = first.status(0).unwrap();
        let (expected, left) = match policy {
            Policy::Wait => (Sent::Late, [0, 1]),
            Policy::DropNewest => (Sent::DroppedNewest, [0, 1]),
            Policy::DropOldest => (Sent::DroppedOldest(1), [1, 2]),
        };
        assert_eq!((sent, policy.name(), Policy::from_name(name)), (expected, name, Some(policy)));
        let counted = (status.dropped_newest, status.dropped_oldest);
        let should = (u64::from(policy == Policy::DropNewest), u64::from(policy == Policy::DropOldest));
        assert_eq!(counted, should, "{name}");
        let got = [(); 2].map(|()| frame(&last));
        assert_eq!(got.map(|lease| last.note(&lease).sequence), left, "{name}");
        assert_eq!(last.take().unwrap(), None);
        got.iter().for_each(|lease| last.finish(lease).unwrap());
        if policy == Policy::Wait {
            assert_eq!(first.send_until(&third, 0, 0).unwrap(), Sent::Queued, "there is room now");
        }
        assert_eq!((first.census().total(), first.census().lost), (4, 0));
    }
}

#[test]
fn memory_of_a_dead_first_role_is_never_handed_out_again() {
    let dir = dir();
    let path = dir.file("chain");
    let chain = ChainFile::create(&path, &plan(3, 4, 4, Policy::Wait)).unwrap();
    let [middle, last] = [1, 2].map(|role| attach(&path, role));
    let first = attach(&path, 0);
    let old = first.add_slab(&slab(4, SlabOwner::FirstRole(first.incarnation(0)))).unwrap();
    for _ in 0..3 {
        first.send_until(&frame(&first), 0, 0).unwrap();
    }
    let on_its_way = frame(&middle);
    middle.send_until(&frame(&middle), 0, 0).unwrap();
    drop(first);
    // One with the middle role, one behind each role, one free.
    let first = attach(&path, 0);
    assert!(!chain.slab(old).unwrap().live);
    assert_eq!(chain.census().total(), 1, "the one that the middle role holds");
    assert_eq!(chain.census().unbacked, 1);
    assert_eq!(first.frames_missing(), 4);
    let new = first.add_slab(&slab(4, SlabOwner::FirstRole(first.incarnation(0)))).unwrap();
    assert_ne!(old.index, new.index, "still referred to");
    assert_eq!(middle.send_until(&on_its_way, 0, 0).unwrap(), Sent::Queued);
    assert_eq!(last.take().unwrap(), None, "its memory is gone");
    assert_eq!((chain.census().total(), chain.census().unbacked), (4, 0));
    for _ in 0..8 {
        let lease = frame(&first);
        assert_eq!(lease.slab, new);
        first.discard(&lease).unwrap();
    }
    drop(first);
    let first = attach(&path, 0);
    let newest = first.add_slab(&slab(4, SlabOwner::Keeper(1))).unwrap();
    assert_eq!((newest.index, newest.generation), (old.index, old.generation + 1));
    drop(first);
    assert_eq!(attach(&path, 0).frames_missing(), 0, "the keeper's stays");
}

#[test]
fn a_role_has_one_owner_and_the_next_one_gives_back_what_it_held() {
    let dir = dir();
    let path = dir.file("chain");
    let chain = ChainFile::create(&path, &plan(2, 4, 4, Policy::Wait)).unwrap();
    let first = attach(&path, 0);
    first.add_slab(&slab(4, SlabOwner::Keeper(9))).unwrap();
    let refused = ChainFile::open(&path).unwrap().claim(0).unwrap_err();
    let pid = std::process::id().into();
    assert_eq!(fault(&refused), ChainFault::RoleHeld { role: 0, pid });
    let none = ChainFile::open(&path).unwrap().claim(2).unwrap_err();
    assert_eq!(fault(&none), ChainFault::NoRole { role: 2, roles: 2 });
    assert!(none.to_string().contains("roles 0 to 1"), "{none}");
    assert!(chain.status(0).unwrap().live && !chain.status(1).unwrap().live);
    assert_eq!(chain.recover(0, 0).unwrap(), None, "it lives");
    let held = [(); 3].map(|()| frame(&first));
    first.send_until(&held[0], 0, 0).unwrap();
    drop(first);
    assert!(!chain.is_held(0).unwrap());
    let far = u64::MAX;
    let recovered = chain.recover(0, far).unwrap().unwrap();
    assert_eq!((recovered.dropped, recovered.completed, recovered.stranded), (2, 0, 0));
    assert_eq!((chain.census().free, chain.census().queued[0]), (3, 1));
    let first = attach(&path, 0);
    assert_eq!(first.incarnation(0), 2);
    let one = frame(&first);
    assert_eq!(first.take().unwrap(), None, "two rest");
    assert!(first.send_until(&held[1], 0, 0).is_err(), "a ticket of the dead one's");
    first.discard(&one).unwrap();
    assert_eq!(first.status(0).unwrap().dropped_of_dead, 2);
}

#[test]
fn suggestions_are_read_whole_and_only_once_there_is_one() {
    let dir = dir();
    let path = dir.file("chain");
    let mut chain = ChainFile::create(&path, &plan(2, 1, 1, Policy::Wait)).unwrap();
    let seat = attach(&path, 1);
    assert_eq!((seat.suggestion_epoch(), seat.suggestion(1)), (0, None));
    assert_eq!(chain.suggest(1, &[1, 2, 3, 4]).unwrap(), 1);
    assert_eq!((seat.suggestion_epoch(), seat.suggestion(1)), (1, Some((1, [1, 2, 3, 4]))));
    seat.note_applied(1, 7);
    let status = chain.status(1).unwrap();
    assert_eq!((status.applied_epoch, status.applied_how), (1, 7));
    assert!(chain.suggest(2, &[0; 4]).is_err());
}

#[test]
fn plans_that_no_chain_can_have() {
    let dir = dir();
    let path = dir.file("chain");
    let good = plan(2, 4, 4, Policy::Wait);
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let bad = [
        (ChainPlan { roles: vec![], ..good.clone() }, "0 roles"),
        (plan(17, 4, 4, Policy::Wait), "17 roles"),
        (ChainPlan { roles: names(&["a", "a"]), ..good.clone() }, "two roles of the same name"),
        (ChainPlan { roles: names(&["a", ""]), ..good.clone() }, "a name"),
        (ChainPlan { roles: names(&["a", "b\0c"]), ..good.clone() }, "a name"),
        (ChainPlan { name: "x".repeat(32), ..good.clone() }, "a name"),
        (ChainPlan { frames: 0, ..good.clone() }, "0 frames"),
        (ChainPlan { frames: 257, ..good.clone() }, "257 frames"),
        (ChainPlan { queue_max: 0, ..good.clone() }, "queues of 0"),
        (ChainPlan { frame_bytes: 0, ..good.clone() }, "0 bytes"),
        (ChainPlan { role_gpus: vec![[1; 16]; 7], ..good.clone() }, "the GPUs of 7 roles"),
    ];
    for (plan, words) in bad {
        let error = ChainFile::create(&path, &plan).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert!(!common::as_path(&path).exists());
    }
    assert_eq!(good.role("role-1"), Some(1));
    assert_eq!(good.role("other"), None);
}
