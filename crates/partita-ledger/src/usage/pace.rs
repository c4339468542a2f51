//! The pace of a tenant: how long its bursts of work and its steps take.
//!
//! A process counts in the place of its slot. Processes beyond [`PLACES`] share places, and a
//! process goes on from what the one before it in the place has counted: so the sum of all places
//! only grows while the tenant lives. Each count is one atomic addition. A process that is killed
//! between a count and its sum leaves a sum that lacks one time, which a reader corrects to the
//! least that the counts allow ([`Histogram::new`]).

use core::mem::size_of;

use partita_core::histogram::{BUCKETS, Histogram, bucket_of};

use crate::sync::Word;
use crate::usage::Slot;

/// Places for counts in a file.
pub(crate) const PLACES: usize = 64;

/// Times of one kind.
#[repr(C, align(64))]
struct Times {
    sum_ns: Word,
    counts: [Word; BUCKETS],
}

/// A place for counts. Each part has separate cache lines.
#[repr(C, align(64))]
pub(crate) struct PaceCells {
    bursts: Times,
    steps: Times,
    /// Launches of the bursts.
    launches: Word,
}

const PLACE_WORDS: usize = size_of::<PaceCells>() / size_of::<u64>();
const TIMES_WORDS: usize = size_of::<Times>() / size_of::<u64>();
const _: () = {
    assert!(core::mem::offset_of!(PaceCells, steps) == TIMES_WORDS * size_of::<u64>());
    assert!(core::mem::offset_of!(PaceCells, launches) == 2 * TIMES_WORDS * size_of::<u64>());
};

impl Times {
    #[inline]
    fn count(&self, time_ns: u64) {
        self.counts[bucket_of(time_ns)].count();
        self.sum_ns.add(time_ns);
    }
}

/// What the processes of a tenant have counted together since its start, on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pace {
    /// Bursts of work: from the first launch after a rest to the end of all work. Their sum is the
    /// time for which processes were busy; two that are busy at once count twice.
    pub bursts: Histogram,
    /// Launches of these bursts, as far as they are counted: graphs are not, nor are the launches
    /// of tenants without masks.
    pub launches: u64,
    /// The times between two steps that the programs name themselves.
    pub steps: Histogram,
}

impl Slot {
    /// Counts a burst of work that took so many nanoseconds, with its launches. No allocation, lock
    /// or system call.
    pub fn count_burst(&self, time_ns: u64, launches: u64) {
        let place = self.map.pace(self.index);
        place.bursts.count(time_ns);
        place.launches.add(launches);
    }

    /// Counts a step that took so many nanoseconds: two relaxed additions.
    #[inline]
    pub fn count_step(&self, time_ns: u64) {
        self.map.pace(self.index).steps.count(time_ns);
    }
}

/// The words of a place, as bytes.
pub(crate) type PlaceBytes = [[u8; size_of::<u64>()]; PLACE_WORDS];

/// A place in which nothing is counted.
pub(crate) const EMPTY_PLACE: PlaceBytes = [[0; size_of::<u64>()]; PLACE_WORDS];

impl Pace {
    /// Adds what is in a place. Any numbers make some histogram.
    pub(crate) fn add(&mut self, place: &PlaceBytes) {
        let word = |at: usize| place.get(at).map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        let times = |first: usize| {
            Histogram::new(core::array::from_fn(|bucket| word(first + 1 + bucket)), word(first))
        };
        self.bursts.merge(&times(0));
        self.steps.merge(&times(TIMES_WORDS));
        self.launches = self.launches.saturating_add(word(2 * TIMES_WORDS));
    }
}
