//! SIGKILL at every instruction of a role's operations on its frames; see the test of this name of
//! partita-ledger.
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

use crate::common;

use std::cell::Cell;
use std::ffi::CStr;

use common::process::alone;
use common::steps::{Step, at_every, end, stopped};
use common::{dir, owner};
use partita_frames::{ChainFile, ChainPlan, ChainSeat, Lease, Policy, Sent, SlabOwner, SlabPlan};

/// A role of a chain.
fn seat(path: &CStr, role: u8) -> ChainSeat {
    ChainFile::open(path).unwrap().claim(role).unwrap().take(owner(), 0).unwrap().0
}

/// An operation on a frame of a chain by the role in the middle, which holds one, beside one that
/// waits for it and one that it has sent. Wherever it is killed, each of the three is in one place,
/// and its own is free again after its role is taken again. `left` are the possible numbers of free
/// frames and of those that wait for the last role.
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
        role_gpus: Vec::new(),
    };
    let chain = ChainFile::create(&path, &plan).unwrap();
    let last = seat(&path, 2);
    let slab = SlabPlan {
        handle: [0; 64],
        begins_at: 0,
        bytes: 4096,
        owner: SlabOwner::Keeper(1),
        tag: [0; 2],
        elsewhere: None,
    };
    seat(&path, 0).add_slab(&slab).unwrap();
    let start = || {
        chain.recover(1, 0).unwrap().unwrap();
        // Returns everything to the pool, whatever was left.
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
            // Queued leases can be taken, in order and once.
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
