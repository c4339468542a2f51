//! SIGKILL at every instruction: the victim is single-stepped by its debugger interface, and killed
//! after *k* instructions of an operation, for *k* from the first to the last; of operations of
//! very many instructions, after *k* entries to and returns from the kernel, where locks change
//! hands. Whatever others then do works as if it had happened completely or not at all.
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

mod common;

use std::cell::Cell;
use std::ffi::CStr;
use std::ptr;
use std::time::{Duration, Instant};

use common::process::{Child, End, alone, fork};
use common::{dir, owner, sample_limits};
use partita_ledger::chain::{ChainFile, ChainPlan, ChainSeat, Lease, Policy, Sent, SlabOwner, SlabPlan};
use partita_ledger::{Key, Limits, LimitsFile, LimitsMap, Slot, UsageMap, UsageView};

const QUOTA: u64 = 1000;
/// What the one that lives holds.
const OWN: u64 = 200;
const VICTIM_BEFORE: u64 = 300;
/// Kills are spread over all instructions; an unoptimised build has thousands.
const KILLS_MAX: usize = 80;
/// Steps that all victims of a test make; each takes microseconds.
const STEPS_MAX: usize = 200_000;
const KEY: Key = Key([7, 9]);

fn claim(usage: &CStr) -> Slot {
    UsageMap::open(usage).unwrap().claim(owner()).unwrap()
}

/// A process that prepares, and stopped before it does the operation under test; `None` where no
/// process may trace another.
fn stopped<P>(prepare: impl FnOnce() -> P, operation: impl FnOnce(P)) -> Option<Child> {
    let child = fork(|| {
        // SAFETY: asks to be traced by the parent, and stops for it.
        unsafe {
            if libc::ptrace(libc::PTRACE_TRACEME, 0, ptr::null_mut::<u8>(), ptr::null_mut::<u8>()) != 0 {
                libc::_exit(77);
            }
        }
        let prepared = prepare();
        // SAFETY: stops this process until its parent resumes it.
        unsafe { libc::raise(libc::SIGSTOP) };
        operation(prepared);
        // SAFETY: ends the child as it is, so nothing is given back on the way.
        unsafe { libc::_exit(0) }
    });
    match wait_stop(&child) {
        Some(libc::SIGSTOP) => Some(child),
        other => {
            assert_eq!(other, None, "stopped by another signal");
            None
        }
    }
}

/// The signal that stopped it, or `None` if it has ended.
fn wait_stop(child: &Child) -> Option<i32> {
    let mut status = 0;
    // SAFETY: the status is where the call writes.
    let waited = unsafe { libc::waitpid(child.0, &mut status, 0) };
    assert_eq!(waited, child.0);
    libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status))
}

/// How far a step goes.
#[derive(Clone, Copy)]
enum Step {
    /// One instruction.
    Instruction,
    /// To the next entry to the kernel or return from it.
    SystemCall,
}

/// Lets it make one step; false if that ended it.
fn step(child: &Child, step: Step) -> bool {
    let request = match step {
        Step::Instruction => libc::PTRACE_SINGLESTEP,
        Step::SystemCall => libc::PTRACE_SYSCALL,
    };
    // SAFETY: the child is stopped and traced by this thread.
    let result = unsafe { libc::ptrace(request, child.0, ptr::null_mut::<u8>(), ptr::null_mut::<u8>()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    wait_stop(child).is_some_and(|signal| {
        assert_eq!(signal, libc::SIGTRAP);
        true
    })
}

/// Counts the steps of an operation, looking at each, and kills it after some of them. Returns
/// false where no process may trace another.
fn at_every(
    unit: Step,
    start: impl Fn() -> Option<Child>,
    mut at_each: impl FnMut(usize),
    mut at_kill: impl FnMut(usize, Child),
) -> bool {
    let Some(victim) = start() else {
        eprintln!("skipped: this system does not let a process trace its child");
        return false;
    };
    let mut steps = 0;
    while step(&victim, unit) {
        steps += 1;
        at_each(steps);
    }
    // It was waited for.
    std::mem::forget(victim);
    // On average each makes half of them.
    let kills = KILLS_MAX.min(2 * STEPS_MAX / steps);
    assert!(kills > 10, "{steps} steps are too many to try enough of them");
    for kill in (0..steps).step_by(1 + steps / kills) {
        let victim = start().unwrap();
        if (0..kill).all(|_| step(&victim, unit)) {
            at_kill(kill, victim);
        } else {
            // A few instructions fewer than the first one: it has ended, and was waited for.
            std::mem::forget(victim);
        }
    }
    true
}

fn end(victim: Child) {
    victim.kill();
    assert_eq!(victim.wait(), End::Signal(libc::SIGKILL));
}

/// An operation on bytes of one who holds [`VICTIM_BEFORE`], and what it may leave.
fn try_bytes(unit: Step, operation: fn(Slot), outcomes: [u64; 2]) {
    let dir = dir();
    let path = dir.file("usage");
    UsageMap::create(&path, 0o600).unwrap();
    let own = claim(&path);
    own.reserve(OWN, QUOTA).unwrap();
    let start = || {
        // The one before left what it had.
        own.map().reap().unwrap();
        let prepare = || {
            let slot = claim(&path);
            slot.try_reserve(VICTIM_BEFORE, QUOTA).unwrap();
            slot
        };
        stopped(prepare, operation)
    };
    let mut seen = outcomes.map(|_| false);
    let ran = at_every(
        unit,
        start,
        |step| {
            let used = own.map().used();
            assert!(outcomes.map(|bytes| OWN + bytes).contains(&used), "step {step}: {used}");
        },
        |kill, victim| {
            // While it stands there: what fits is granted, what does not is refused, to the byte.
            let used = own.map().used();
            let which = outcomes.iter().position(|bytes| OWN + bytes == used).expect("one of the outcomes");
            seen[which] = true;
            own.try_reserve(QUOTA - used, QUOTA).unwrap();
            assert!(own.try_reserve(1, QUOTA).is_err());
            own.release(QUOTA - used).unwrap();
            let lives = used - OWN;
            end(victim);
            assert_eq!(own.map().used(), used);
            assert_eq!(own.map().reap().unwrap(), lives, "after step {kill}");
            assert_eq!((own.map().used(), own.bytes()), (OWN, OWN));
        },
    );
    if ran {
        let expected = if outcomes[0] == outcomes[1] { [true, false] } else { [true; 2] };
        assert_eq!(seen, expected);
    }
}

#[test]
fn of_a_reservation() {
    let _alone = alone();
    let after = VICTIM_BEFORE + 70;
    try_bytes(
        Step::Instruction,
        |slot| {
            slot.try_reserve(70, QUOTA).unwrap();
            std::mem::forget(slot);
        },
        [VICTIM_BEFORE, after],
    );
}

#[test]
fn of_a_release() {
    let _alone = alone();
    try_bytes(
        Step::Instruction,
        |slot| {
            slot.release(40).unwrap();
            std::mem::forget(slot);
        },
        [VICTIM_BEFORE, VICTIM_BEFORE - 40],
    );
}

#[test]
fn of_an_orderly_end() {
    let _alone = alone();
    try_bytes(
        Step::Instruction,
        |slot| assert_eq!(slot.finish().unwrap(), VICTIM_BEFORE),
        [VICTIM_BEFORE, 0],
    );
}

/// The total stays the same at each instruction; and the name under which the bytes are shared can
/// be used again.
#[test]
fn of_sharing_and_leaving() {
    let _alone = alone();
    try_bytes(
        Step::SystemCall,
        |slot| {
            let share = slot.share(KEY, 50).unwrap().unwrap();
            std::mem::forget((slot, share));
        },
        [VICTIM_BEFORE; 2],
    );
    try_bytes(
        Step::SystemCall,
        |slot| {
            let share = slot.join_or_reserve(KEY, 60, QUOTA).unwrap().unwrap();
            std::mem::forget((slot, share));
        },
        [VICTIM_BEFORE, VICTIM_BEFORE + 60],
    );
}

/// Whoever dies while it takes its place leaves the place to others, and none is used up.
#[test]
fn of_a_claim() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("usage");
    UsageMap::create(&path, 0o600).unwrap();
    let view = UsageView::open(&path).unwrap();
    let own = claim(&path);
    let start = || {
        own.map().reap().unwrap();
        stopped(|| (), |()| std::mem::forget(claim(&path)))
    };
    let mut places = std::collections::BTreeSet::new();
    at_every(
        Step::Instruction,
        start,
        |_| assert_eq!(own.map().used(), 0),
        |kill, victim| {
            // While it stands there another one finds a place, and without waiting for it.
            let began = Instant::now();
            let beside = claim(&path);
            assert!(began.elapsed() < Duration::from_secs(10), "after step {kill}: it waited");
            places.insert(beside.index());
            beside.finish().unwrap();
            end(victim);
            own.map().reap().unwrap();
            let living = view.slots().map(Result::unwrap).filter(|slot| slot.live).count();
            assert_eq!(living, 1, "after step {kill}");
        },
    );
    // Places of the dead are taken last, but a finished one is free again: no kill uses one up for
    // good.
    assert!(places.len() <= KILLS_MAX + 2, "{places:?}");
    let all: Vec<_> = std::iter::from_fn(|| UsageMap::open(&path).unwrap().claim(owner()).ok()).collect();
    assert_eq!(all.len() + 1, partita_ledger::PROCESS_SLOTS);
}

/// A writer of limits that dies: readers have the old or the new ones, whole, and the next writer
/// does not wait.
#[test]
fn of_a_change_of_limits() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("limits");
    let old = sample_limits();
    let mut file = LimitsFile::create(&path, &old, 0o600).unwrap();
    let map = LimitsMap::open_ro(&path).unwrap();
    let new = Limits { memory_quota_bytes: 20 << 30, set: [0xff, 0, 0, 0], priority: 1, ..old.clone() };
    let start = || {
        LimitsFile::open_rw(&path).unwrap().store(&old).unwrap();
        let prepare = || LimitsFile::open_rw(&path).unwrap();
        stopped(prepare, |mut file| {
            file.store(&new).unwrap();
            std::mem::forget(file);
        })
    };
    let seen = Cell::new([false; 2]);
    let check = |step| {
        let (_, now) = map.load().unwrap();
        assert!(now == old || now == new, "after step {step}: {now:?}");
        let [old_seen, new_seen] = seen.get();
        seen.set([old_seen || now == old, new_seen || now == new]);
    };
    let ran = at_every(Step::Instruction, start, &check, |kill, victim| {
        end(victim);
        check(kill);
        let began = Instant::now();
        file.store(&old).unwrap();
        assert!(began.elapsed() < Duration::from_secs(1), "after step {kill}: the lock stayed");
        assert_eq!(map.load().unwrap().1, old);
    });
    if ran {
        assert_eq!(seen.get(), [true; 2]);
    }
}

/// A role of a chain.
fn seat(path: &CStr, role: u8) -> ChainSeat {
    ChainFile::open(path).unwrap().claim(role).unwrap().take(owner(), 0).unwrap().0
}

/// An operation on a frame of a chain by the role in the middle, which holds one, beside one that
/// waits for it and one that it has sent. Wherever it is killed, each of the three is in one place,
/// and what it held is free again once its role is taken anew. `left` are the numbers of free
/// frames and of those that wait for the last role, that there may be then.
fn try_frames(unit: Step, policy: Policy, operation: fn(&ChainSeat, &Lease), left: &[(u32, u32)]) {
    const FRAMES: u32 = 3;
    let dir = dir();
    let path = dir.file("chain");
    let roles = ["first", "middle", "last"].map(str::to_owned).to_vec();
    let plan = ChainPlan {
        name: "steps".into(),
        roles,
        frame_bytes: 1,
        frames: FRAMES,
        queue_max: if policy == Policy::Wait { 2 } else { 1 },
        policy,
        gpu_uuid: [0; 16],
    };
    let chain = ChainFile::create(&path, &plan).unwrap();
    let last = seat(&path, 2);
    let slab =
        SlabPlan { handle: [0; 64], begins_at: 0, bytes: 4096, owner: SlabOwner::Keeper(1), tag: [0; 2] };
    seat(&path, 0).add_slab(&slab).unwrap();
    let start = || {
        chain.recover(1, 0).unwrap().unwrap();
        // Everything back to the pool, whatever was left.
        while let Some(lease) = last.take().unwrap() {
            last.finish(&lease).unwrap();
        }
        let rest = seat(&path, 1);
        while let Some(lease) = rest.take().unwrap() {
            rest.discard(&lease).unwrap();
        }
        drop(rest);
        assert_eq!((chain.census().free, chain.census().lost), (FRAMES, 0));
        let prepare = || {
            // Here, because a seat is its own process's alone.
            let [first, middle] = [0, 1].map(|role| seat(&path, role));
            let pass = |from: &ChainSeat| {
                let lease = from.take().unwrap().unwrap();
                assert_eq!(from.send_until(&lease, 0, 0).unwrap(), Sent::Queued);
            };
            pass(&first);
            pass(&middle);
            pass(&first);
            let held = middle.take().unwrap().unwrap();
            pass(&first);
            drop(first);
            (middle, held)
        };
        stopped(prepare, |(middle, held)| {
            operation(&middle, &held);
            std::mem::forget(middle);
        })
    };
    let seen = Cell::new(0u32);
    let ran = at_every(
        unit,
        start,
        |step| {
            let census = chain.census();
            assert_eq!((census.total(), census.lost), (FRAMES, 0), "step {step}: {census:?}");
        },
        |kill, victim| {
            end(victim);
            let recovered = chain.recover(1, 0).unwrap().unwrap();
            let census = chain.census();
            assert_eq!(recovered.stranded, 0, "step {kill}: {census:?}");
            assert_eq!(
                (census.total(), census.lost, census.held[1]),
                (FRAMES, 0, 0),
                "step {kill}: {census:?}"
            );
            let now = left.iter().position(|left| *left == (census.free, census.queued[1]));
            let now = now.unwrap_or_else(|| panic!("step {kill}: {census:?}, {recovered:?}"));
            seen.set(seen.get() | 1 << now);
            // What is queued can be had, in order and once.
            let got =
                std::iter::from_fn(|| last.take().unwrap()).inspect(|lease| last.finish(lease).unwrap());
            assert_eq!(got.count() as u32, census.queued[1]);
        },
    );
    if ran {
        assert_eq!(seen.get(), (1 << left.len()) - 1, "each of {left:?}");
    }
}

#[test]
fn of_a_frame_that_is_sent() {
    let _alone = alone();
    // Dropped with its sender, or on its way with the one before it.
    let left = [(1, 1), (0, 2)];
    try_frames(
        Step::Instruction,
        Policy::Wait,
        |seat, held| assert_eq!(seat.send_until(held, 0, 0).unwrap(), Sent::Queued),
        &left,
    );
}

#[test]
fn of_a_frame_that_is_sent_in_place_of_an_older_one() {
    let _alone = alone();
    // The older one is still there; neither is; the newer one is.
    let left = [(1, 1), (2, 0)];
    try_frames(
        Step::Instruction,
        Policy::DropOldest,
        |seat, held| assert_eq!(seat.send_until(held, 0, 0).unwrap(), Sent::DroppedOldest(1)),
        &left,
    );
}

#[test]
fn of_a_frame_that_is_given_back_and_of_the_next_one() {
    let _alone = alone();
    let left = [(1, 1), (2, 1)];
    try_frames(
        Step::Instruction,
        Policy::Wait,
        |seat, held| {
            seat.discard(held).unwrap();
            seat.take().unwrap().unwrap();
        },
        &left,
    );
}
