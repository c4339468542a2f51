//! Bursts and steps of the processes of a tenant: counted, merged and kept.

use crate::common;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use common::{as_path, dir, owner};
use partita_core::histogram::bucket_of;
use partita_ledger::{Pace, USAGE_FILE_BYTES, UsageMap, UsageView};

const MS: u64 = 1_000_000;

#[test]
fn processes_are_merged_and_the_dead_stay() {
    let dir = dir();
    let path = dir.file("usage");
    let one = UsageMap::create(&path, 0o600).unwrap().claim(owner()).unwrap();
    let view = UsageView::open(&path).unwrap();
    assert_eq!(view.pace().unwrap(), Pace::default());
    let other = UsageMap::open(&path).unwrap().claim(owner()).unwrap();
    one.count_burst(3 * MS, 5);
    one.count_step(MS);
    other.count_burst(7 * MS, 1);
    let first = view.pace().unwrap();
    assert_eq!((first.bursts.count(), first.bursts.sum_ns(), first.launches), (2, 10 * MS, 6));
    assert_eq!((first.steps.count(), first.steps.sum_ns()), (1, MS));
    assert_eq!(first.bursts.counts()[bucket_of(7 * MS)], 1);
    // One dies, one leaves, and others take their places.
    drop(one);
    other.finish().unwrap();
    assert_eq!(view.pace().unwrap(), first);
    let next = UsageMap::open(&path).unwrap().claim(owner()).unwrap();
    next.count_burst(3 * MS, 0);
    let since = view.pace().unwrap().bursts.since(&first.bursts);
    assert_eq!((since.count(), since.sum_ns()), (1, 3 * MS));
}

#[test]
fn more_processes_than_places_lose_nothing() {
    let dir = dir();
    let path = dir.file("usage");
    drop(UsageMap::create(&path, 0o600).unwrap());
    let slots: Vec<_> = (0..150).map(|_| UsageMap::open(&path).unwrap().claim(owner()).unwrap()).collect();
    slots.iter().for_each(|slot| slot.count_burst(MS, 2));
    let pace = UsageView::open(&path).unwrap().pace().unwrap();
    assert_eq!((pace.bursts.count(), pace.bursts.sum_ns(), pace.launches), (150, 150 * MS, 300));
}

#[test]
fn hostile_numbers_make_some_histogram() {
    for fill in [0x7fu8, 0xff] {
        let dir = dir();
        let path = dir.file("usage");
        let slot = UsageMap::create(&path, 0o600).unwrap().claim(owner()).unwrap();
        let file = OpenOptions::new().write(true).open(as_path(&path)).unwrap();
        file.write_all_at(&vec![fill; USAGE_FILE_BYTES - 128], 128).unwrap();
        slot.count_burst(u64::MAX, u64::MAX);
        slot.count_step(0);
        let view = UsageView::open(&path).unwrap();
        let pace = view.pace().unwrap();
        assert_eq!((pace.bursts.count(), pace.bursts.sum_ns()), (u64::MAX, u64::MAX));
        assert!(pace.bursts.quantile(500) <= pace.bursts.quantile(990));
        file.set_len(5000).unwrap();
        assert!(view.pace().is_err());
    }
}
