//! Times of use: the union of the reports of several processes.

/// Length of a tick, in nanoseconds.
const TICK_NS: u64 = 50_000;
/// Words of the bits.
const BIT_WORDS: usize = 16;
/// Ticks that are remembered one by one, the *range*: the last 51 ms.
const TICKS: u64 = BIT_WORDS as u64 * 64;
/// Ticks of a span. Before the range, what is known of a span is how much of it was charged.
const SPAN_TICKS: u64 = 4096;
/// The amount of a whole span, in a byte.
const SPAN_WHOLE: u64 = 0xff;
/// Words of the amounts, of eight spans each.
const SPAN_WORDS: usize = 8;
/// Spans before the range that are remembered: 13 s.
const SPANS: u64 = SPAN_WORDS as u64 * 8;

/// Words that a [`Timeline`] takes.
pub(super) const WORDS: usize = 2 + BIT_WORDS + SPAN_WORDS;

/// The recent times at which a tenant was busy, as far as reported.
///
/// Kernels of two processes that run at the same time are one use of the GPU and are charged once,
/// to the first report. An interval in the range is charged to the nanosecond, except for those of
/// its ticks that were reported before. A process whose reports come later than that (the machine
/// is overloaded, or the driver keeps its thread waiting) may report seconds, and others the same
/// seconds: of a span no more is charged than has not been charged yet. Times before all spans are
/// not charged: whether they were is forgotten, and a debt of hours would end a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeline {
    /// One past the last tick that has a bit. The bit of a tick is its number modulo their count.
    end: u64,
    bits: [u64; BIT_WORDS],
    /// How many ticks were charged of the span that the range leaves, before the range.
    left: u64,
    /// How much was charged of the spans before that one: a byte for each. The byte of a span is
    /// its number modulo their count.
    spans: [u64; SPAN_WORDS],
}

impl Default for Timeline {
    fn default() -> Self {
        Self { end: 0, bits: [0; BIT_WORDS], left: 0, spans: [0; SPAN_WORDS] }
    }
}

impl Timeline {
    /// Reports a time from `start_ns` to `end_ns`, and returns how much of it is new, in
    /// nanoseconds. Times before all spans do not count as new.
    pub fn report(&mut self, start_ns: u64, end_ns: u64) -> u64 {
        let Some(length_ns) = end_ns.checked_sub(start_ns) else { return 0 };
        // Rounded, so that an interval close behind another starts where that has ended.
        let (first, end) = (rounded(start_ns), rounded(end_ns));
        self.advance(end);
        if first == end {
            return if self.is_set(first) { 0 } else { length_ns };
        }
        let oldest = self.oldest();
        let mut known = 0u64;
        for tick in first.max(oldest)..end {
            known += u64::from(self.is_set(tick));
            self.bits[word_of(tick)] |= 1 << (tick % 64);
        }
        known += self.charge_spans(first, end.min(oldest));
        part_of(length_ns, end - first - known, end - first)
    }

    /// Charges ticks before the range, and returns how many of them were charged before, or are
    /// before all spans.
    fn charge_spans(&mut self, first: u64, end: u64) -> u64 {
        let oldest = self.oldest();
        let leaving = oldest / SPAN_TICKS;
        let mut tick = first.max(leaving.saturating_sub(SPANS) * SPAN_TICKS);
        let mut known = tick.min(end).saturating_sub(first);
        while tick < end {
            let (span, begin) = (tick / SPAN_TICKS, tick);
            tick = end.min((span + 1) * SPAN_TICKS);
            let wanted = tick - begin;
            let (length, charged) = match span == leaving {
                true => (oldest % SPAN_TICKS, self.left),
                false => (SPAN_TICKS, self.charged(span)),
            };
            let new = wanted.min(length.saturating_sub(charged));
            match span == leaving {
                true => self.left = charged + new,
                false => self.set_charged(span, charged + new),
            }
            known += wanted - new;
        }
        known
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
        for tick in first.max(self.oldest())..end.min(self.end) {
            known += u64::from(self.is_set(tick));
            self.bits[word_of(tick)] &= !(1 << (tick % 64));
        }
        part_of(length_ns, known, end - first)
    }

    fn is_set(&self, tick: u64) -> bool {
        tick < self.end && tick >= self.oldest() && self.bits[word_of(tick)] >> (tick % 64) & 1 != 0
    }

    /// The first tick of the range.
    fn oldest(&self) -> u64 {
        self.end.saturating_sub(TICKS)
    }

    /// Makes room for the ticks before `end`.
    fn advance(&mut self, end: u64) {
        let (before, oldest) = (self.oldest(), end.saturating_sub(TICKS));
        // Nothing was reported of those that come and leave at once.
        for tick in before..oldest.min(self.end) {
            self.left += u64::from(self.is_set(tick));
            if (tick + 1) % SPAN_TICKS == 0 {
                self.leave_span(tick / SPAN_TICKS);
            }
        }
        let leaving = before.max(oldest.min(self.end)) / SPAN_TICKS;
        let next = oldest / SPAN_TICKS;
        if leaving < next {
            self.leave_span(leaving);
        }
        for span in (leaving + 1).max(next.saturating_sub(SPANS))..next {
            self.leave_span(span);
        }
        for tick in self.end.max(oldest)..end {
            self.bits[word_of(tick)] &= !(1 << (tick % 64));
        }
        self.end = self.end.max(end);
    }

    /// The range has left a span.
    fn leave_span(&mut self, span: u64) {
        let left = core::mem::take(&mut self.left);
        self.set_charged(span, left);
    }

    /// How many ticks of a span before the range were charged.
    fn charged(&self, span: u64) -> u64 {
        let amount = self.spans[(span / 8) as usize % SPAN_WORDS] >> (span % 8 * 8) & SPAN_WHOLE;
        amount * SPAN_TICKS / SPAN_WHOLE
    }

    fn set_charged(&mut self, span: u64, ticks: u64) {
        let amount = (ticks.min(SPAN_TICKS) * SPAN_WHOLE).div_ceil(SPAN_TICKS);
        let word = &mut self.spans[(span / 8) as usize % SPAN_WORDS];
        *word = *word & !(SPAN_WHOLE << (span % 8 * 8)) | amount << (span % 8 * 8);
    }

    pub(super) fn to_words(self) -> [u64; WORDS] {
        let mut words = [self.end; WORDS];
        let (bits, spans) = words[1..].split_at_mut(BIT_WORDS);
        bits.copy_from_slice(&self.bits);
        spans[0] = self.left;
        spans[1..].copy_from_slice(&self.spans);
        words
    }

    /// From words that any process may have written.
    pub(super) fn from_words(words: &[u64; WORDS]) -> Self {
        let word = |at: usize| words.get(at).copied().unwrap_or(0);
        Self {
            end: word(0),
            bits: core::array::from_fn(|at| word(1 + at)),
            left: word(1 + BIT_WORDS).min(SPAN_TICKS),
            spans: core::array::from_fn(|at| word(2 + BIT_WORDS + at)),
        }
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
