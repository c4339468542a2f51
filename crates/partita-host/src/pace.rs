//! How long a tenant's bursts of work and its steps take, as `ps` shows it.

use partita_core::histogram::{Bounds, Histogram};
use serde::Serialize;

/// Times that a tenant's processes have counted since its start: of the dead ones, too.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct TimesRow {
    /// How many.
    pub count: u64,
    /// Their sum, in seconds.
    pub sum_s: f64,
    /// The time that half of them do not exceed, in microseconds, within a 64th between 2 µs
    /// and 275 s; `None` without times.
    pub p50_us: Option<f64>,
    /// The time that 99 of 100 do not exceed, likewise.
    pub p99_us: Option<f64>,
    /// All of them.
    #[serde(skip)]
    pub histogram: Histogram,
}

impl From<Histogram> for TimesRow {
    fn from(histogram: Histogram) -> Self {
        let us = |bounds: Bounds| bounds.middle_ns() as f64 / 1e3;
        Self {
            count: histogram.count(),
            sum_s: histogram.sum_ns() as f64 / 1e9,
            p50_us: histogram.quantile(500).map(us),
            p99_us: histogram.quantile(990).map(us),
            histogram,
        }
    }
}

/// The part of a time inside bursts, in percent: above 100 where several processes are busy at
/// once. `None` without bursts, or in the first second.
pub(crate) fn duty_percent(bursts: &Histogram, seconds: u64) -> Option<f64> {
    let is_known = bursts.count() > 0 && seconds > 0;
    is_known.then(|| bursts.sum_ns() as f64 / 1e7 / seconds as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_duty_is_a_part_of_the_time() {
        let mut bursts = Histogram::default();
        assert_eq!(duty_percent(&bursts, 10), None);
        bursts.add(2_000_000_000);
        bursts.add(500_000_000);
        assert_eq!(duty_percent(&bursts, 10), Some(25.0));
        assert_eq!(duty_percent(&bursts, 0), None);
    }
}
