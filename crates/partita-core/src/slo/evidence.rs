//! What counts say about a target and about the mean: sequential tests, which need as many bursts
//! as they need, and no more.

use crate::histogram::{Bounds, Histogram};

/// The most bursts of a look that count. More are a lie, or as good as that many.
const COUNT_MAX: u64 = 1_000_000;

/// Whether 99 of 100 are in time, by three sequential tests on the share of late ones.
///
/// * [`Evidence::alarm`] is a cumulative sum of log-likelihood ratios of 5 % late against 1 %,
///   which never falls below 0: it forgets a good past, and four late bursts close to each other
///   are an alarm.
/// * [`Evidence::drift`] is the same sum of 1.5 % late against 1 %, for what the first one never
///   sees: a share of up to 2.5 %. It takes some 2,000 bursts of which 2 % are late.
/// * [`Evidence::calm`] is the same sum of 0.25 % late against 1 %: some 400 bursts of which none
///   is late are enough, 600 of which one is, and so on.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Evidence {
    pub alarm: f64,
    pub drift: f64,
    pub calm: f64,
    /// Bursts that were counted, and late ones of them.
    pub count: u64,
    pub late: u64,
}

/// From here on the target is violated: but for one in e⁶ runs of bursts that are just in time.
pub(super) const ALARM: f64 = 6.0;
/// From here on it is violated badly: the tenant gets all that there is.
pub(super) const SEVERE: f64 = 2.0 * ALARM;
/// The most that counts: some 360 bursts in time end each alarm.
const ALARM_MAX: f64 = 15.0;
/// As above, for some 200 bursts: what made many late is the other test's.
const DRIFT_MAX: f64 = 7.0;
/// From here on the target holds, but for one in 20 of those that just do not: ln 20.
pub(super) const CALM: f64 = 3.0;
/// A bad past counts for no more than this.
const CALM_MIN: f64 = -3.0;

/// ln(5 % / 1 %) and ln(95 % / 99 %).
const ALARM_OF: (f64, f64) = (1.609, -0.0412);
/// ln(1.5 % / 1 %) and ln(98.5 % / 99 %).
const DRIFT_OF: (f64, f64) = (0.4055, -0.00506);
/// ln(0.25 % / 1 %) and ln(99.75 % / 99 %).
const CALM_OF: (f64, f64) = (-1.386, 0.00755);

impl Evidence {
    /// Whether the target is violated.
    pub fn is_alarm(&self) -> bool {
        self.alarm >= ALARM || self.drift >= ALARM
    }

    /// Adds what a look found.
    pub fn add(&mut self, times: &Histogram, bound_ns: u64) {
        let (count, late) = (times.count().min(COUNT_MAX), late(times, bound_ns).min(COUNT_MAX));
        let (late_f, in_time_f) = (late as f64, count.saturating_sub(late) as f64);
        let sum = |of: (f64, f64)| late_f * of.0 + in_time_f * of.1;
        self.alarm = (self.alarm + sum(ALARM_OF)).clamp(0.0, ALARM_MAX);
        self.drift = (self.drift + sum(DRIFT_OF)).clamp(0.0, DRIFT_MAX);
        self.calm = (self.calm + sum(CALM_OF)).clamp(CALM_MIN, CALM);
        self.count = self.count.saturating_add(count);
        self.late = self.late.saturating_add(late);
    }
}

/// How many times are above a bound. A bucket is above it if its middle is.
pub(super) fn late(times: &Histogram, bound_ns: u64) -> u64 {
    let counts = times.counts().iter().enumerate();
    let late = counts.filter(|(bucket, _)| Bounds::of(*bucket).middle_ns() > bound_ns);
    late.fold(0, |all, (_, count)| all.saturating_add(*count))
}

/// A mean time, and how well it is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Mean {
    pub count: u64,
    /// Nanoseconds. Exact, unlike a median of buckets, which are coarser than 2 %.
    pub ns: f64,
    /// The square of the relative error.
    pub error2: f64,
}

impl Mean {
    /// `None` without times.
    pub fn of(times: &Histogram) -> Option<Self> {
        let count = times.count();
        if count == 0 || times.sum_ns() == 0 {
            return None;
        }
        let ns = times.sum_ns() as f64 / count as f64;
        let counts = times.counts().iter().enumerate().filter(|(_, count)| **count > 0);
        let squares = counts.map(|(bucket, count)| {
            let off = Bounds::of(bucket).middle_ns() as f64 - ns;
            off * off * *count as f64
        });
        let variance = squares.fold(0.0, |all, one| all + one) / count as f64;
        Some(Self { count, ns, error2: variance / (ns * ns) / count as f64 })
    }
}

/// Whether the times on fewer TPCs are within a bound of those on more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Close {
    Yes,
    No,
    /// More bursts are needed.
    Open,
}

/// Whether one mean is at most `bound` times the other, at 1.64 standard errors (one side, 95 %).
pub(super) fn is_close(fewer: &Mean, more: &Mean, bound: f64) -> Close {
    const ERRORS2: f64 = 1.64 * 1.64;
    let beyond = fewer.ns / more.ns - bound;
    if beyond * beyond < ERRORS2 * (fewer.error2 + more.error2) {
        return Close::Open;
    }
    if beyond < 0.0 { Close::Yes } else { Close::No }
}
