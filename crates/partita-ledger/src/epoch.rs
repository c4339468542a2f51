//! A value of several words that one writer replaces while any number of readers read it.
//!
//! Two copies and an epoch. The current copy is `copies[epoch % 2]`; the writer fills the other one
//! and then increments the epoch. A writer that dies while it fills a copy has changed nothing that
//! a reader uses, so it blocks no process; the next writer fills the same copy again from its first
//! word.
//!
//! **Why a reader never returns a mixture.** A reader loads the epoch `e`, reads `copies[e % 2]`,
//! and accepts it only if the epoch is still `e`. The next write to that copy is for epoch `e + 2`,
//! by a writer that has stored (or, if another writer did, loaded under the writers' lock) epoch `e
//! + 1` before. The writer's stores to the copy have release ordering, and the reader's fence after
//! its relaxed reads makes each an acquire: a reader that has seen one word of `e + 2` therefore
//! finds an epoch of at least `e + 1` and reads again. The epoch has 64 bits and does not wrap.
//!
//! **Bound.** A reader reads again only if a writer stored a new epoch during the few nanoseconds
//! of the read, or while the reader did not run. After [`READ_TRIES_MAX`] such coincidences in a
//! row it gives up, without an answer rather than with a wrong one.

use crate::sync::{Word, acquire};

/// How many times a reader tries before it gives up.
pub const READ_TRIES_MAX: u32 = 64;

/// The layout of the double buffer in the file: the epoch alone on a cache line, then two copies of
/// `N` words.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct DoubleBuffer<const N: usize> {
    epoch: Word,
    unused: [u64; 7],
    copies: [[Word; N]; 2],
}

impl<const N: usize> DoubleBuffer<N> {
    /// An empty buffer at epoch 0.
    #[cfg(any(test, loom))]
    pub fn new() -> Self {
        let copy = || core::array::from_fn(|_| Word::new(0));
        Self { epoch: Word::new(0), unused: [0; 7], copies: [copy(), copy()] }
    }

    /// Offset of the epoch in the buffer, for code that reads the file instead of mapping it.
    #[cfg(not(loom))]
    pub const EPOCH_OFFSET: usize = core::mem::offset_of!(Self, epoch);

    /// Offset of the copy of an epoch in the buffer.
    #[cfg(not(loom))]
    pub const fn copy_offset(epoch: u64) -> usize {
        core::mem::offset_of!(Self, copies) + (epoch % 2) as usize * size_of::<[Word; N]>()
    }

    /// The epoch: the number of writes.
    #[inline]
    pub fn epoch(&self) -> u64 {
        let epoch = self.epoch.peek();
        acquire();
        epoch
    }

    /// The first `K` words of the current value with their epoch, or `None` after
    /// `READ_TRIES_MAX` disturbed tries.
    #[inline]
    pub fn read<const K: usize>(&self) -> Option<(u64, [u64; K])> {
        const { assert!(K <= N) };
        for _ in 0..READ_TRIES_MAX {
            let epoch = self.epoch();
            let copy = &self.copies[(epoch % 2) as usize];
            let words = core::array::from_fn(|i| copy[i].peek());
            acquire();
            if self.epoch.peek() == epoch {
                return Some((epoch, words));
            }
            core::hint::spin_loop();
        }
        None
    }

    /// Makes `words` the current value and returns its epoch. The caller must be the only writer at
    /// this time.
    pub fn write(&self, words: &[u64; N]) -> u64 {
        let next = self.epoch.peek().wrapping_add(1);
        acquire();
        for (cell, word) in self.copies[(next % 2) as usize].iter().zip(words) {
            cell.store(*word);
        }
        self.epoch.store(next);
        next
    }
}

#[cfg(any(test, loom))]
impl<const N: usize> Default for DoubleBuffer<N> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
