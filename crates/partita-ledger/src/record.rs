//! A value of several words that any of many processes replaces as a whole.
//!
//! Every writer has two records. One word, `current`, names the record in force: its place, with a
//! version above it. To change the value, a writer reads `current` and the record that it names,
//! fills the one of its own two records that is not named, and replaces `current`. So a writer that
//! dies, or is stopped, at any instruction has changed either nothing or all, and no process waits
//! for it.
//!
//! **Why a reader never returns a mixture.** It accepts the words only if `current` is unchanged
//! after reading them. A writer fills a record only while it is not named, after it has seen
//! another one named; its stores to the record have release ordering and the reads of it acquire.
//! So a reader that has seen one word of a later value finds a later `current` and reads again. A
//! version has 48 bits: at a million changes a second they last for nine years.
//!
//! **Bound.** A writer tries again only if another one has succeeded meanwhile. After [`TRIES_MAX`]
//! such coincidences it returns `None`.

use crate::sync::Word;

/// How many times a change, or a read, is tried.
pub const TRIES_MAX: u32 = 4096;

/// Bits of `current` that name a record.
const PLACE_BITS: u32 = 16;

/// The two records of a writer.
pub type Records<const N: usize> = [[Word; N]; 2];

/// The value in memory.
#[derive(Debug)]
pub struct Shared<'a, const N: usize> {
    current: &'a Word,
    writers: &'a [Records<N>],
}

impl<'a, const N: usize> Shared<'a, N> {
    /// The value whose record `current` names. In zeroed memory the value is zeros.
    pub fn new(current: &'a Word, writers: &'a [Records<N>]) -> Self {
        debug_assert!(writers.len() <= 1 << (PLACE_BITS - 1));
        Self { current, writers }
    }

    /// The record that a word names. Any word names a record.
    fn record(&self, name: u64) -> Option<&'a [Word; N]> {
        let place = (name & ((1 << PLACE_BITS) - 1)) as usize;
        let writer = self.writers.get(place / 2).or_else(|| self.writers.first())?;
        Some(&writer[place % 2])
    }

    /// The value with its name, unless it changed during each of many attempts.
    fn named(&self) -> Option<(u64, [u64; N])> {
        for _ in 0..TRIES_MAX {
            let name = self.current.load();
            let record = self.record(name)?;
            let words = core::array::from_fn(|at| record[at].load());
            if self.current.load() == name {
                return Some((name, words));
            }
        }
        None
    }

    /// The value; `None` if it changed during each of [`TRIES_MAX`] attempts.
    #[cfg(loom)]
    pub fn load(&self) -> Option<[u64; N]> {
        self.named().map(|(_, words)| words)
    }

    /// Replaces the value by the result of `change`, as `writer`, and returns the new version and
    /// the second result of `change`; `None` if others changed it during each of [`TRIES_MAX`]
    /// attempts. A writer is one thread at a time.
    pub fn update<T>(
        &self,
        writer: usize,
        mut change: impl FnMut(&[u64; N]) -> ([u64; N], T),
    ) -> Option<(u64, T)> {
        let records = self.writers.get(writer)?;
        for _ in 0..TRIES_MAX {
            let (name, words) = self.named()?;
            let (words, said) = change(&words);
            let own = writer as u64 * 2;
            let place = if name & ((1 << PLACE_BITS) - 1) == own { own + 1 } else { own };
            for (cell, word) in records[(place % 2) as usize].iter().zip(words) {
                cell.store(word);
            }
            let version = (name >> PLACE_BITS).wrapping_add(1);
            if self.current.replace(name, version << PLACE_BITS | place) {
                return Some((version & (u64::MAX >> PLACE_BITS), said));
            }
        }
        None
    }
}
