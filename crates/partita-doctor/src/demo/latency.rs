//! Percentiles.

use serde::Serialize;

/// The latencies of requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Latency {
    /// The number of requests.
    pub requests: usize,
    /// The median in milliseconds.
    pub p50_ms: f64,
    /// The 99th percentile in milliseconds.
    pub p99_ms: f64,
    /// The longest in milliseconds.
    pub max_ms: f64,
}

impl Latency {
    /// The percentiles of these latencies; `None` without any.
    pub fn of(latencies_ns: &[u64]) -> Option<Self> {
        let mut sorted = latencies_ns.to_vec();
        sorted.sort_unstable();
        let ms = |ns: u64| ns as f64 / 1e6;
        // Nearest rank: the smallest value that at least p percent do not exceed.
        let rank =
            |percent: usize| sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied();
        Some(Self {
            requests: sorted.len(),
            p50_ms: ms(rank(50)?),
            p99_ms: ms(rank(99)?),
            max_ms: ms(*sorted.last()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        assert_eq!(Latency::of(&[]), None);
        let one = Latency::of(&[2_000_000]).unwrap();
        assert_eq!((one.p50_ms, one.p99_ms, one.max_ms), (2.0, 2.0, 2.0));
        let hundred: Vec<u64> = (1..=100).rev().map(|ms| ms * 1_000_000).collect();
        let latency = Latency::of(&hundred).unwrap();
        assert_eq!(
            (latency.p50_ms, latency.p99_ms, latency.max_ms, latency.requests),
            (50.0, 99.0, 100.0, 100)
        );
    }
}
