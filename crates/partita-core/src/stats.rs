//! [`Samples`]: statistics of a series of measurements.

#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use thiserror::Error;

/// Measurements of one quantity, in any unit, sorted.
///
/// Quantiles are exact: they are computed from all samples, not from a sketch or a histogram.
///
/// ```
/// use partita_core::Samples;
///
/// let latency_us = Samples::new((1..=200).map(f64::from).collect::<Vec<_>>()).unwrap();
/// assert_eq!((latency_us.min(), latency_us.max()), (1.0, 200.0));
/// assert_eq!((latency_us.p50(), latency_us.p99()), (100.0, 198.0));
/// assert_eq!((latency_us.median(), latency_us.mean()), (100.5, 100.5));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    /// At least one, all finite, lowest first.
    sorted: Vec<f64>,
}

impl Samples {
    /// Takes measurements in any order.
    ///
    /// # Errors
    /// The list is empty, or a sample is not a finite number.
    pub fn new(samples: impl Into<Vec<f64>>) -> Result<Self, SamplesError> {
        let mut sorted = samples.into();
        if sorted.is_empty() {
            return Err(SamplesError::Empty);
        }
        if let Some(index) = sorted.iter().position(|sample| !sample.is_finite()) {
            return Err(SamplesError::NotFinite { index, value: sorted[index] });
        }
        sorted.sort_unstable_by(f64::total_cmp);
        Ok(Self { sorted })
    }

    /// The ratios of pairs of measurements, taken together: `measured[i] / baseline[i]`. Their
    /// [`median`](Self::median) is the robust answer to "how much slower", since drift of the
    /// machine between pairs falls out.
    ///
    /// # Errors
    /// Series of different lengths, no pairs, or a ratio that is not a finite number.
    pub fn ratios(measured: &[f64], baseline: &[f64]) -> Result<Self, SamplesError> {
        if measured.len() != baseline.len() {
            return Err(SamplesError::Unpaired { measured: measured.len(), baseline: baseline.len() });
        }
        Self::new(
            measured.iter().zip(baseline).map(|(measured, baseline)| measured / baseline).collect::<Vec<_>>(),
        )
    }

    /// How many there are, at least 1.
    #[must_use]
    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    /// All of them, lowest first.
    #[must_use]
    pub fn sorted(&self) -> &[f64] {
        &self.sorted
    }

    /// A 95 % confidence interval of the [`median`](Self::median), from ranks: it assumes nothing
    /// about the distribution.
    ///
    /// Between the samples of rank `(n ∓ 1.96 √n) / 2` (the normal approximation of the sign test).
    /// With fewer than 6 samples these are the lowest and the highest, and the confidence is less.
    #[must_use]
    pub fn median_interval(&self) -> (f64, f64) {
        let count = self.sorted.len();
        // 1.96² = 3.8416; rounded up, so that the interval is never too narrow.
        let spread = ((count as u64 * 38_416).div_ceil(10_000)).isqrt() as usize + 1;
        let low = count.saturating_sub(spread + 1) / 2;
        (self.sorted[low], self.sorted[count - 1 - low])
    }

    /// The lowest.
    #[must_use]
    pub fn min(&self) -> f64 {
        self.sorted[0]
    }

    /// The highest.
    #[must_use]
    pub fn max(&self) -> f64 {
        self.sorted[self.sorted.len() - 1]
    }

    /// The lowest sample that at least `per_mille` thousandths of all samples do not exceed
    /// (nearest rank), so always a measured one. 0 gives the lowest, 1000 and above the highest.
    #[must_use]
    pub fn quantile(&self, per_mille: u32) -> f64 {
        // In whole numbers, because 0.99 · 100 is more than 99 in floating point.
        let count = self.sorted.len() as u128;
        let rank = (count * u128::from(per_mille.min(1000))).div_ceil(1000).max(1);
        self.sorted[rank as usize - 1]
    }

    /// The sample that half of the samples do not exceed.
    #[must_use]
    pub fn p50(&self) -> f64 {
        self.quantile(500)
    }

    /// The sample that 99 of 100 samples do not exceed.
    #[must_use]
    pub fn p99(&self) -> f64 {
        self.quantile(990)
    }

    /// The middle sample, or the mean of the middle two.
    #[must_use]
    pub fn median(&self) -> f64 {
        let middle = self.sorted.len() / 2;
        if self.sorted.len() % 2 == 1 {
            self.sorted[middle]
        } else {
            // Halved first, so that the sum of the largest numbers does not overflow.
            self.sorted[middle - 1] / 2.0 + self.sorted[middle] / 2.0
        }
    }

    /// The arithmetic mean.
    #[must_use]
    pub fn mean(&self) -> f64 {
        // The running form, which does not overflow either.
        let step = |(mean, count): (f64, f64), sample: &f64| {
            let count = count + 1.0;
            (mean + (sample / count - mean / count), count)
        };
        self.sorted.iter().fold((0.0, 0.0), step).0
    }
}

/// Invalid series of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SamplesError {
    /// There are no samples.
    #[error("there are no samples")]
    Empty,
    /// A sample is infinite or not a number.
    #[error("sample {index} is {value}, not a finite number")]
    NotFinite {
        /// Its place in the series.
        index: usize,
        /// Its value.
        value: f64,
    },
    /// Series that should be pairs have different lengths.
    #[error("{measured} measurements and {baseline} of the baseline are not pairs")]
    Unpaired {
        /// The length of the measured series.
        measured: usize,
        /// The length of the baseline.
        baseline: usize,
    },
}
