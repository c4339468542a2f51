//! Loom finds torn reads; these are the properties that one thread can check.

use super::*;
use crate::sync::crash;

#[test]
fn the_last_value_is_read() {
    let buffer = DoubleBuffer::<3>::new();
    for epoch in 1..=5 {
        assert_eq!(buffer.write(&[epoch, 7, epoch * 2]), epoch);
        assert_eq!(buffer.epoch(), epoch);
        assert_eq!(buffer.read(), Some((epoch, [epoch, 7, epoch * 2])));
        assert_eq!(buffer.read::<1>(), Some((epoch, [epoch])));
    }
}

#[test]
fn a_dead_writer_changes_nothing() {
    // Five accesses: the epoch, three words, the epoch again.
    for steps in 0..5 {
        let buffer = DoubleBuffer::<3>::new();
        buffer.write(&[1, 2, 3]);
        assert!(crash::after(steps, || buffer.write(&[4, 5, 6])).is_none());
        assert_eq!(buffer.read(), Some((1, [1, 2, 3])));
        assert_eq!(buffer.write(&[7, 8, 9]), 2);
        assert_eq!(buffer.read(), Some((2, [7, 8, 9])));
    }
}

#[test]
fn a_reader_gets_a_whole_value_or_none() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let buffer = DoubleBuffer::<2>::new();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let next = buffer.epoch() + 1;
                buffer.write(&[next, !next]);
            }
        });
        for _ in 0..if cfg!(miri) { 100 } else { 20_000 } {
            if let Some((epoch, words)) = buffer.read::<2>() {
                assert!(epoch == 0 || words == [epoch, !epoch], "torn: {epoch} {words:?}");
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}
