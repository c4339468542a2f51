//! A value of several words that any of many processes replaces as a whole.
//!
//! Every writer has two records of its own. One word, `current`, names the record that counts: its
//! place below a version. To change the value a writer reads `current` and the record that it
//! names, fills that of its own two which is not named, and replaces `current`. So a writer that
//! dies, or is stopped, at any instruction has either changed nothing or all, and nobody waits for
//! it.
//!
//! **Why a reader never returns a mixture.** It accepts what it has read if `current` is what it
//! was before. A record is written only while it is not named, by a writer that has seen another
//! one named; its stores to the record have release ordering and the reads of it acquire. So a
//! reader that has seen one word of a later value finds a later `current` and reads again. A
//! version has 48 bits: at a million changes a second they last for nine years.
//!
//! **Bound.** A writer tries again only if another one has succeeded meanwhile. After [`TRIES_MAX`]
//! such coincidences it gives up and says so.

use crate::sync::Word;

/// How often a change, or a read, is tried.
pub const TRIES_MAX: u32 = 1024;

/// Bits of `current` that name a record.
const PLACE_BITS: u32 = 16;

/// What a writer has: two records.
pub type Records<const N: usize> = [[Word; N]; 2];

/// The value, where it lies.
#[derive(Debug)]
pub struct Shared<'a, const N: usize> {
    current: &'a Word,
    writers: &'a [Records<N>],
}

impl<'a, const N: usize> Shared<'a, N> {
    /// The value whose record `current` names. Zeros are a value of zeros.
    pub fn new(current: &'a Word, writers: &'a [Records<N>]) -> Self {
        debug_assert!(writers.len() <= 1 << (PLACE_BITS - 1));
        Self { current, writers }
    }

    /// The record that a word names. Whatever stands in the word, there is one.
    fn record(&self, name: u64) -> Option<&'a [Word; N]> {
        let place = (name & ((1 << PLACE_BITS) - 1)) as usize;
        let writer = self.writers.get(place / 2).or_else(|| self.writers.first())?;
        Some(&writer[place % 2])
    }

    /// The value with its name, unless it changed during each of many tries.
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

    /// The value; `None` if it changed during each of [`TRIES_MAX`] tries.
    #[cfg(loom)]
    pub fn load(&self) -> Option<[u64; N]> {
        self.named().map(|(_, words)| words)
    }

    /// Replaces the value by what `change` makes of it, as `writer`, and returns the new version
    /// and what `change` said beside; `None` if others changed it during each of [`TRIES_MAX`]
    /// tries. A writer is one thread at a time.
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
