//! A tenant of a thousand processes, and reused process numbers.

use crate::common;

use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::SeqCst;

use common::process::{End, alone, fork, shared_words, wait_until};
use common::{as_path, dir, owner};
use partita_ledger::{NO_QUOTA, UsageMap, UsageView};

const PROCESSES: u64 = 1000;

/// All at once: each has its slot and its bytes, and sees the sum to the byte; half are killed,
/// half end.
#[test]
fn a_thousand_processes_hold_a_byte_each() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("usage");
    let map = UsageMap::create(&path, 0o600).unwrap();
    let [ready, stop] = shared_words::<2>();
    let children: Vec<_> = (0..PROCESSES)
        .map(|_| {
            fork(|| {
                let slot = UsageMap::open(&path).unwrap().claim(owner()).unwrap();
                slot.reserve(1, PROCESSES).unwrap();
                ready.fetch_add(1, SeqCst);
                while stop.load(SeqCst) == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                i32::from(slot.finish().unwrap() != 1)
            })
        })
        .collect();
    wait_until("all have their byte", || ready.load(SeqCst) == PROCESSES);
    assert_eq!((map.used(), map.peak(), map.reap().unwrap()), (PROCESSES, PROCESSES, 0));
    let view = UsageView::open(&path).unwrap();
    let slots: Vec<_> = view.slots().map(Result::unwrap).collect();
    assert!(slots.iter().all(|slot| slot.live && slot.bytes == 1));
    assert_eq!(slots.len() as u64, PROCESSES);

    let (killed, ended): (Vec<_>, Vec<_>) =
        children.into_iter().enumerate().partition(|(number, _)| number % 2 == 0);
    for (_, child) in killed {
        child.kill();
        assert_eq!(child.wait(), End::Signal(libc::SIGKILL));
    }
    assert_eq!(map.reap().unwrap(), PROCESSES / 2);
    stop.store(1, SeqCst);
    for (_, child) in ended {
        assert_eq!(child.wait(), End::Exit(0));
    }
    assert_eq!((map.used(), view.slots().count()), (0, 0));
}

/// A slot belongs to its lock, not to its number: another process with the same number does not
/// keep it alive.
#[test]
fn a_dead_owner_whose_number_lives_again_is_reaped() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("usage");
    let map = UsageMap::create(&path, 0o600).unwrap();
    let dead = fork(|| {
        let slot = UsageMap::open(&path).unwrap().claim(owner()).unwrap();
        slot.reserve(700, NO_QUOTA).unwrap();
        std::mem::forget(slot);
        0
    });
    let number = dead.0;
    assert_eq!(dead.wait(), End::Exit(0));
    // As if this process, which lives, had got the number.
    let bytes = std::fs::read(as_path(&path)).unwrap();
    let words = bytes.as_chunks::<8>().0;
    let places: Vec<usize> =
        (0..words.len()).filter(|&at| u64::from_ne_bytes(words[at]) == number as u64).collect();
    assert_eq!(places.len(), 1, "the owner's number stands in one place");
    let file = std::fs::OpenOptions::new().write(true).open(as_path(&path)).unwrap();
    file.write_all_at(&u64::from(std::process::id()).to_ne_bytes(), places[0] as u64 * 8).unwrap();

    let view = UsageView::open(&path).unwrap();
    let shown = view.slots().next().unwrap().unwrap();
    assert_eq!((shown.pid as u32, shown.bytes, shown.live), (std::process::id(), 700, false));
    // What a dead process held is not in use, though it is charged until it is reaped.
    assert_eq!((view.in_use().unwrap(), map.used()), ((0, 0), 700));
    let slot = UsageMap::open(&path).unwrap().claim(owner()).unwrap();
    slot.reserve(300, NO_QUOTA).unwrap();
    slot.show_driver(40);
    assert_eq!(view.in_use().unwrap(), (300, 40));
    drop(slot);
    assert_eq!((map.reap().unwrap(), map.used()), (1000, 0));
}
