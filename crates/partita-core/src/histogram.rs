//! [`Histogram`]: times in buckets whose width grows with the time.
//!
//! A bucket is a 32nd of a power of two wide, so the middle of a bucket is at most a 64th away
//! from each time in it. Times below [`SHORT_NS`] share the first bucket, and those from
//! [`LONG_NS`] on the last. Counts and sums saturate: what a histogram is made from may be any
//! numbers.

#[cfg(test)]
mod tests;

/// Buckets of a power of two, as bits of the time.
const PART_BITS: u32 = 5;
/// Bits of the shortest time that has a bucket of a 32nd.
const SHORT_BITS: u32 = 11;
/// Bits of the first time beyond those buckets.
const LONG_BITS: u32 = 38;

/// Shorter times share a bucket: 2 µs, in nanoseconds.
pub const SHORT_NS: u64 = 1 << SHORT_BITS;
/// This time and longer ones share a bucket: 275 s, in nanoseconds.
pub const LONG_NS: u64 = 1 << LONG_BITS;
/// How many buckets there are.
pub const BUCKETS: usize = ((LONG_BITS - SHORT_BITS) << PART_BITS) as usize + 2;

/// The bucket of a time in nanoseconds, below [`BUCKETS`].
#[inline]
#[must_use]
pub fn bucket_of(time_ns: u64) -> usize {
    if time_ns < SHORT_NS {
        return 0;
    }
    let bits = time_ns.ilog2();
    if bits >= LONG_BITS {
        return BUCKETS - 1;
    }
    let part = time_ns >> (bits - PART_BITS) & ((1 << PART_BITS) - 1);
    1 + (((bits - SHORT_BITS) << PART_BITS) as usize) + part as usize
}

/// The times of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bounds {
    /// The shortest, in nanoseconds.
    pub low_ns: u64,
    /// The longest, in nanoseconds; `u64::MAX` for the last bucket.
    pub high_ns: u64,
}

impl Bounds {
    /// Those of a bucket; numbers from [`BUCKETS`] on mean the last.
    #[must_use]
    pub fn of(bucket: usize) -> Self {
        let begin = |bucket: usize| {
            let (power, part) = ((bucket - 1) >> PART_BITS, (bucket - 1) as u64 & ((1 << PART_BITS) - 1));
            ((1 << PART_BITS) + part) << (power as u32 + SHORT_BITS - PART_BITS)
        };
        match bucket {
            0 => Self { low_ns: 0, high_ns: SHORT_NS - 1 },
            bucket if bucket < BUCKETS - 1 => Self { low_ns: begin(bucket), high_ns: begin(bucket + 1) - 1 },
            _ => Self { low_ns: LONG_NS, high_ns: u64::MAX },
        }
    }

    /// The middle, in nanoseconds: at most a 64th away from each time between [`SHORT_NS`] and
    /// [`LONG_NS`]. The last bucket has no middle; its shortest time stands for it.
    #[must_use]
    pub fn middle_ns(&self) -> u64 {
        if self.high_ns == u64::MAX { self.low_ns } else { self.low_ns.midpoint(self.high_ns) }
    }
}

/// How often times of each bucket were seen, and their sum.
///
/// ```
/// use partita_core::histogram::Histogram;
///
/// let mut times = Histogram::default();
/// for ms in 1..=100 {
///     times.add(ms * 1_000_000);
/// }
/// let p99 = times.quantile(990).unwrap();
/// assert!(p99.low_ns <= 99_000_000 && 99_000_000 <= p99.high_ns);
/// assert_eq!((times.count(), times.sum_ns()), (100, 5_050_000_000));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    /// Between the least and the most that the counts allow.
    sum_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], sum_ns: 0 }
    }
}

impl Histogram {
    /// Counts and a sum in nanoseconds from a place that anything may have written. A sum that the
    /// counts do not allow becomes the nearest one that they do.
    #[must_use]
    pub fn new(counts: [u64; BUCKETS], sum_ns: u64) -> Self {
        let sum_of = |time_ns: fn(Bounds) -> u64| {
            let times = counts.iter().enumerate().map(|(bucket, count)| (Bounds::of(bucket), *count));
            times.fold(0u64, |sum, (bounds, count)| sum.saturating_add(time_ns(bounds).saturating_mul(count)))
        };
        let (least, most) = (sum_of(|bounds| bounds.low_ns), sum_of(|bounds| bounds.high_ns));
        Self { counts, sum_ns: sum_ns.clamp(least, most) }
    }

    /// Adds a time in nanoseconds.
    pub fn add(&mut self, time_ns: u64) {
        let count = &mut self.counts[bucket_of(time_ns)];
        *count = count.saturating_add(1);
        self.sum_ns = self.sum_ns.saturating_add(time_ns);
    }

    /// Adds the times of another one.
    pub fn merge(&mut self, other: &Self) {
        for (count, other) in self.counts.iter_mut().zip(other.counts) {
            *count = count.saturating_add(other);
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// The times that came since an earlier look at the same place. A bucket that has fallen since
    /// counts as empty.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let counts =
            core::array::from_fn(|bucket| self.counts[bucket].saturating_sub(earlier.counts[bucket]));
        Self::new(counts, self.sum_ns.saturating_sub(earlier.sum_ns))
    }

    /// How many times there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |all, count| all.saturating_add(*count))
    }

    /// Their sum, in nanoseconds.
    #[must_use]
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// How many times each bucket has.
    #[must_use]
    pub fn counts(&self) -> &[u64; BUCKETS] {
        &self.counts
    }

    /// For each power of two the longest time below it, in nanoseconds, and how many times are
    /// above the power before and not above that; the last one has all the rest.
    pub fn by_powers(&self) -> impl Iterator<Item = (u64, u64)> {
        let (first, rest) = self.counts.split_at(1);
        let all = |counts: &[u64]| counts.iter().fold(0u64, |all, count| all.saturating_add(*count));
        let powers = rest.chunks(1 << PART_BITS).zip(SHORT_BITS..).map(move |(counts, bits)| {
            let high_ns = if bits < LONG_BITS { (1 << (bits + 1)) - 1 } else { u64::MAX };
            (high_ns, all(counts))
        });
        core::iter::once((SHORT_NS - 1, first[0])).chain(powers)
    }

    /// The bucket of the shortest time that at least `per_mille` thousandths of all times do not
    /// exceed (nearest rank, as [`Samples::quantile`](crate::Samples::quantile)). `None` without
    /// times.
    #[must_use]
    pub fn quantile(&self, per_mille: u32) -> Option<Bounds> {
        let all = self.counts.iter().map(|count| u128::from(*count)).sum::<u128>();
        let rank = (all * u128::from(per_mille.min(1000))).div_ceil(1000).max(1);
        let mut below = 0;
        let bucket = self.counts.iter().position(|count| {
            below += u128::from(*count);
            below >= rank
        })?;
        Some(Bounds::of(bucket))
    }
}
