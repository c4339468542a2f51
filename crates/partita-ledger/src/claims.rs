//! Sets of TPCs that several processes take for themselves, without a lock: no two hold the same.
//!
//! A process writes what it wants into its own place, then reads the places of all others, and
//! keeps what it finds in none of them. Of two that want the same TPC at the same time at least one
//! sees the other's wish ([`see_each_other`]), so at most one keeps it; it may be that neither
//! does, and both try again at their next unit. What a process held before, every other one sees,
//! so it keeps that. A process that dies in between leaves more in its place than it had: that
//! keeps others away until the place is cleared.

use crate::sync::{Word, see_each_other};

/// A process's place: four words, one bit for each TPC.
#[derive(Debug)]
#[repr(C)]
pub struct Claims([Word; 4]);

impl Claims {
    /// A place without claims.
    #[cfg(any(test, loom))]
    pub fn new() -> Self {
        Self(core::array::from_fn(|_| Word::new(0)))
    }

    /// What is in it.
    #[inline]
    pub fn get(&self) -> [u64; 4] {
        core::array::from_fn(|at| self.0[at].load())
    }

    /// Replaces what is in it: by less, or by what no other process wants.
    pub fn put(&self, set: [u64; 4]) {
        self.0.iter().zip(set).for_each(|(word, value)| word.store(value));
    }

    /// Takes as much of `wanted` as no other process has or wants, and returns what the process
    /// holds then, with what it held before. One thread of a process at a time.
    pub fn take<'a>(&self, wanted: [u64; 4], others: impl Iterator<Item = &'a Self>) -> [u64; 4] {
        let before = self.get();
        self.put(core::array::from_fn(|at| before[at] | wanted[at]));
        see_each_other();
        let mut taken = [0; 4];
        for other in others.filter(|other| !core::ptr::eq(*other, self)) {
            let other = other.get();
            taken = core::array::from_fn(|at| taken[at] | other[at]);
        }
        let kept = core::array::from_fn(|at| before[at] | wanted[at] & !taken[at]);
        self.put(kept);
        kept
    }
}

#[cfg(any(test, loom))]
impl Default for Claims {
    fn default() -> Self {
        Self::new()
    }
}
