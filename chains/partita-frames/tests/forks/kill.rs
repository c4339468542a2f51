//! SIGKILL at any time: no lease of a chain is lost, each is in one place, and the chain goes on.
//!
//! Some hundred times; `PARTITA_TEST_KILLS=10000` sets the number; that takes 45 seconds on two
//! cores.

use crate::common;

use std::ffi::CStr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use common::process::{Child, End, Random, alone, fork, shared_words, wait_until};
use common::{dir, owner};
use partita_frames::{ChainFile, ChainPlan, ChainSeat, Got, Policy, SlabOwner, SlabPlan};

const ROLES: usize = 4;
const FRAMES: u32 = 9;
/// The number of kills of all tests together.
const KILLS: u64 = 900;

fn plan(policy: Policy) -> ChainPlan {
    ChainPlan {
        name: "kills".into(),
        roles: (0..ROLES).map(|role| format!("role-{role}")).collect(),
        frame_bytes: 256,
        frames: FRAMES,
        queue_max: 2,
        policy,
        role_gpus: Vec::new(),
    }
}

fn attach(path: &CStr, role: u8) -> ChainSeat {
    ChainFile::open(path).unwrap().claim(role).unwrap().take(owner(), 0).unwrap().0
}

/// The processes' shared words beside the chain.
struct Words {
    /// How many frames each role has passed on.
    passed: [AtomicU64; ROLES],
    /// For each lease, its holder: a role's number plus one; a second holder would find it set.
    holders: [AtomicU64; FRAMES as usize],
}

fn words() -> &'static Words {
    const N: usize = ROLES + FRAMES as usize;
    let words: &'static [AtomicU64; N] = shared_words::<N>();
    // SAFETY: two arrays of the same words, one behind the other.
    unsafe { &*words.as_ptr().cast::<Words>() }
}

/// A component without a GPU: it takes, marks, and passes on, until it is killed.
fn work(path: &CStr, role: u8, words: &Words) -> i32 {
    let seat = attach(path, role);
    let mut random = Random::new(Instant::now().elapsed().as_nanos() as u64 + u64::from(std::process::id()));
    loop {
        let lease = match seat.take_until(0, u64::MAX).unwrap() {
            Got::Frame(lease) => lease,
            Got::Late => unreachable!("no deadline"),
            Got::Stopping => return 0,
        };
        let holder = &words.holders[lease.ticket.lease()];
        // The former holder has released it, or is dead.
        holder.store(u64::from(role) + 1, SeqCst);
        if random.below(4) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(holder.load(SeqCst), u64::from(role) + 1, "two hold one lease");
        match (role as usize + 1 == ROLES, random.below(64)) {
            (_, 0) => seat.discard(&lease).unwrap(),
            (true, _) => seat.finish(&lease).unwrap(),
            (false, _) => _ = seat.send_until(&lease, 0, u64::MAX).unwrap(),
        }
        words.passed[usize::from(role)].fetch_add(1, Relaxed);
    }
}

fn kill_many(policy: Policy) {
    let _alone = alone();
    let kills = std::env::var("PARTITA_TEST_KILLS").map_or(KILLS, |kills| kills.parse().unwrap()).div_ceil(3);
    let dir = dir();
    let path = dir.file("chain");
    let chain = ChainFile::create(&path, &plan(policy)).unwrap();
    let first = attach(&path, 0);
    let slab = SlabPlan {
        handle: [1; 64],
        begins_at: 0,
        bytes: 4096 * 9,
        owner: SlabOwner::Keeper(1),
        tag: [0; 2],
        elsewhere: None,
    };
    first.add_slab(&slab).unwrap();
    drop(first);
    let words = words();
    let mut random = Random::new(u64::from(std::process::id()));
    let start = |role: usize| -> Child { fork(|| work(&path, role as u8, words)) };
    let mut children: Vec<Option<Child>> = (0..ROLES).map(|role| Some(start(role))).collect();
    for kill in 0..kills {
        let role = random.below(ROLES as u64) as usize;
        let victim = children[role].take().expect("one is always there");
        let (before, wanted) = (words.passed[role].load(Relaxed), random.below(6));
        let began = Instant::now();
        // From before it has attached to after a few frames, whatever else the machine does.
        while words.passed[role].load(Relaxed) < before + wanted
            && began.elapsed() < Duration::from_millis(20)
        {
            assert!(!victim.has_ended(), "kill {kill}: role {role} has ended by itself");
            std::hint::spin_loop();
        }
        let delay = Duration::from_nanos(random.below(4000));
        let began = Instant::now();
        while began.elapsed() < delay {
            std::hint::spin_loop();
        }
        victim.kill();
        assert_eq!(victim.wait(), End::Signal(libc::SIGKILL), "kill {kill}");
        // Every other time its successor finds its remains, and repairs them itself.
        if kill % 2 == 0 {
            let recovered = chain.recover(role as u8, 0).unwrap().expect("no process has it");
            assert_eq!(recovered.stranded, 0, "kill {kill}");
            assert_eq!(chain.census().held[role], 0);
        }
        let census = chain.census();
        assert_eq!((census.lost, census.unbacked), (0, 0), "kill {kill}: {census:?}");
        children[role] = Some(start(role));
        if kill % 100 == 0 {
            let finished = chain.frames_finished();
            wait_until("the chain goes on", || chain.frames_finished() > finished + 10);
        }
    }
    let finished = chain.frames_finished();
    wait_until("the chain goes on", || chain.frames_finished() > finished + 100);
    chain.stop();
    for child in children.into_iter().flatten() {
        assert_eq!(child.wait(), End::Exit(0));
    }
    let recovered = (0..ROLES as u8).map(|role| chain.recover(role, 0).unwrap().unwrap());
    assert!(recovered.into_iter().all(|recovered| recovered.stranded == 0));
    let census = chain.census();
    assert_eq!((census.total(), census.lost, census.held.iter().sum::<u32>()), (FRAMES, 0, 0), "{census:?}");
    let dropped: u64 = (0..ROLES as u8).map(|role| chain.status(role).unwrap().dropped_of_dead).sum();
    let completed: u64 = (0..ROLES as u8).map(|role| chain.status(role).unwrap().completed_of_dead).sum();
    assert!(dropped > 0, "no process died with a frame: the test has tested nothing");
    eprintln!(
        "{}: {dropped} frames of the dead dropped, {completed} of their sends completed",
        policy.name()
    );
}

#[test]
fn with_back_pressure() {
    kill_many(Policy::Wait);
}

#[test]
fn with_the_newest_dropped() {
    kill_many(Policy::DropNewest);
}

#[test]
fn with_the_oldest_dropped() {
    kill_many(Policy::DropOldest);
}
