//! Times of use: the union of the reports of several processes.

/// Length of a tick, in nanoseconds.
const TICK_NS: u64 = 50_000;
/// Words of the bits.
const BIT_WORDS: usize = 16;
/// Ticks that are remembered: the last 51 ms.
const TICKS: u64 = BIT_WORDS as u64 * 64;

/// Words that a [`Timeline`] takes.
pub(super) const WORDS: usize = 1 + BIT_WORDS;

/// The recent times at which a tenant was busy, as far as reported.
///
/// Kernels of two processes that run at the same time are one use of the GPU and are charged once,
/// to the first report. An interval is charged to the nanosecond, except for those of its ticks
/// that were reported before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeline {
    /// One past the last tick that has a bit. The bit of a tick is its number modulo their count.
    end: u64,
    bits: [u64; BIT_WORDS],
}

impl Default for Timeline {
    fn default() -> Self {
        Self { end: 0, bits: [0; BIT_WORDS] }
    }
}

impl Timeline {
    /// Reports a time from `start_ns` to `end_ns`, and returns how much of it is new, in
    /// nanoseconds. Times before the timeline's range count as new.
    pub fn report(&mut self, start_ns: u64, end_ns: u64) -> u64 {
        let Some(length_ns) = end_ns.checked_sub(start_ns) else { return 0 };
        // Rounded, so that an interval close behind another starts where that has ended.
        let (first, end) = (rounded(start_ns), rounded(end_ns));
        self.advance(end);
        if first == end {
            return if self.is_set(first) { 0 } else { length_ns };
        }
        let oldest = self.end.saturating_sub(TICKS);
        let mut known = 0u64;
        for tick in first.max(oldest)..end {
            known += u64::from(self.is_set(tick));
            self.bits[word_of(tick)] |= 1 << (tick % 64);
        }
        part_of(length_ns, end - first - known, end - first)
    }

    /// Takes back that a time was busy, which had been reported, and returns how much of it was
    /// recorded, in nanoseconds.
    pub fn retract(&mut self, start_ns: u64, end_ns: u64) -> u64 {
        let Some(length_ns) = end_ns.checked_sub(start_ns) else { return 0 };
        let (first, end) = (rounded(start_ns), rounded(end_ns));
        if first == end {
            return length_ns;
        }
        let mut known = 0u64;
        for tick in first.max(self.end.saturating_sub(TICKS))..end.min(self.end) {
            known += u64::from(self.is_set(tick));
            self.bits[word_of(tick)] &= !(1 << (tick % 64));
        }
        part_of(length_ns, known, end - first)
    }

    fn is_set(&self, tick: u64) -> bool {
        tick < self.end
            && tick >= self.end.saturating_sub(TICKS)
            && self.bits[word_of(tick)] >> (tick % 64) & 1 != 0
    }

    /// Makes room for the ticks before `end`.
    fn advance(&mut self, end: u64) {
        for tick in self.end.max(end.saturating_sub(TICKS))..end {
            self.bits[word_of(tick)] &= !(1 << (tick % 64));
        }
        self.end = self.end.max(end);
    }

    pub(super) fn to_words(self) -> [u64; WORDS] {
        let mut words = [self.end; WORDS];
        words[1..].copy_from_slice(&self.bits);
        words
    }

    pub(super) fn from_words(words: &[u64; WORDS]) -> Self {
        let [end, bits @ ..] = *words;
        Self { end, bits }
    }
}

fn part_of(length_ns: u64, ticks: u64, of_ticks: u64) -> u64 {
    let part_ns = u128::from(length_ns) * u128::from(ticks) / u128::from(of_ticks.max(1));
    u64::try_from(part_ns).unwrap_or(length_ns)
}

fn rounded(ns: u64) -> u64 {
    ns / TICK_NS + u64::from(ns % TICK_NS >= TICK_NS / 2)
}

fn word_of(tick: u64) -> usize {
    (tick / 64) as usize % BIT_WORDS
}
