//! A damaged chain file: whatever its content, no operation panics, waits for ever, or returns
//! memory that is not the chain's.

use crate::common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use common::{as_path, dir, owner};
use partita_frames::{
    CHAIN_FILE_BYTES, ChainError, ChainFault, ChainFile, ChainPlan, ChainSeat, Policy, ROLES_MAX, SlabOwner,
    SlabPlan, monotonic_ns,
};
use partita_ledger::{LAYOUT_VERSION, Problem};
use proptest::prelude::*;

/// The end of the plan: magic, plan with 17 names of 32 bytes.
const PLAN_END: usize = 64 + (5 + 2 + 17 * 4) * 8;

/// The fault of the file.
fn problem(error: ChainError) -> Problem {
    match error {
        ChainError::File(error) => error.problem().clone(),
        other => panic!("{other}"),
    }
}

fn plan() -> ChainPlan {
    ChainPlan {
        name: "odd".into(),
        roles: ["a", "b", "c"].map(str::to_owned).to_vec(),
        frame_bytes: 100,
        frames: 4,
        queue_max: 2,
        policy: Policy::DropOldest,
        role_gpus: Vec::new(),
    }
}

/// Does everything once, with any result.
fn use_all(seat: &ChainSeat) {
    let soon = || monotonic_ns() + 1_000_000;
    let _ = seat.take();
    if let Ok(partita_frames::Got::Frame(lease)) = seat.take_until(0, soon()) {
        let note = seat.note(&lease);
        assert!(note.bytes <= 100);
        if let Some(recorder) = seat.recorder(&lease) {
            let _ = seat.event_handle(&lease, recorder);
        }
        let _ = seat.slab(lease.slab);
        let _ = seat.leave_event(&lease, &[1; 64]);
        let _ = seat.note_recorded(&lease, true);
        let _ = seat.describe(&lease, &note);
        let _ = seat.send_until(&lease, 0, soon());
        let _ = seat.finish(&lease);
        let _ = seat.discard(&lease);
    }
    for info in seat.slabs() {
        let _ = seat.retire_slab(info.slab);
    }
    let _ = seat.add_slab(&SlabPlan {
        handle: [0; 64],
        begins_at: 0,
        bytes: 1 << 20,
        owner: SlabOwner::Keeper(1),
        tag: [0; 2],
        elsewhere: None,
    });
    let _ = (seat.frames_missing(), seat.census(), seat.suggestion(seat.role()), seat.suggestion_epoch());
}

#[test]
fn what_is_no_chain_is_refused() {
    let dir = dir();
    let path = dir.file("chain");
    drop(ChainFile::create(&path, &plan()).unwrap());
    let good = fs::read(as_path(&path)).unwrap();
    assert_eq!(good.len(), CHAIN_FILE_BYTES);
    let with = |at: usize, bytes: &[u8]| {
        let mut content = good.clone();
        content[at..at + bytes.len()].copy_from_slice(bytes);
        fs::write(as_path(&path), content).unwrap();
        let error = ChainFile::open(&path).unwrap_err();
        assert!(!error.to_string().contains('\n'), "{error}");
        error
    };
    assert!(matches!(problem(with(0, b"PARTITAU")), Problem::Foreign { .. }));
    assert!(matches!(problem(with(8, &(LAYOUT_VERSION + 1).to_ne_bytes())), Problem::Version { .. }));
    let fault = |error| match error {
        ChainError::Refused { fault: ChainFault::Plan(fault), .. } => fault.to_string(),
        other => panic!("{other:?}"),
    };
    let word = |word: u64| word.to_ne_bytes();
    for (at, value, says) in
        [(0, 0, "0 roles"), (0, 99, "99 roles"), (1, 0, "0 frames"), (1, 1 << 40, "frames")]
    {
        assert!(fault(with(64 + at * 8, &word(value))).contains(says));
    }
    for (at, value, says) in [(2, 0, "queues"), (3, 7, "policy"), (4, 0, "0 bytes")] {
        assert!(fault(with(64 + at * 8, &word(value))).contains(says));
    }
    // After five numbers, and whether the GPU of each role is known, and which it is.
    let names = 5 + 1 + 2 * ROLES_MAX;
    assert!(fault(with(64 + names * 8, &[0xff; 32])).contains("a name"));
    fs::write(as_path(&path), &good[..good.len() - 1]).unwrap();
    assert!(matches!(problem(ChainFile::open(&path).unwrap_err()), Problem::Size { .. }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn odd_words_behind_a_good_plan_are_survived(
        noise in prop::collection::vec(any::<u8>(), 4099),
        mask in prop::sample::select(vec![0xffu8, 0x0f, 0x03, 0x01]),
        sparse in any::<bool>(),
    ) {
        let dir = dir();
        let path = dir.file("chain");
        let chain = ChainFile::create(&path, &plan()).unwrap();
        let length = CHAIN_FILE_BYTES - PLAN_END;
        let bytes: Vec<u8> = (0..length)
            .map(|at| if sparse && at % 8 > 2 { 0 } else { noise[at % noise.len()] & mask })
            .collect();
        let file = OpenOptions::new().write(true).open(as_path(&path)).unwrap();
        file.write_all_at(&bytes, PLAN_END as u64).unwrap();
        for role in 0..3 {
            let _ = (chain.status(role).unwrap(), chain.recover(role, 0).unwrap());
            let (seat, _) = ChainFile::open(&path).unwrap().claim(role).unwrap().take(owner(), 0).unwrap();
            use_all(&seat);
            chain.resume();
            use_all(&seat);
        }
        chain.stop();
    }
}
