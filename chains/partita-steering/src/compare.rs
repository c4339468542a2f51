//! Compare two allocations by inexact measurements.
//!
//! Gains are relative: 0.05 for 5 % more. A candidate is compared with recent measurements of the
//! incumbent, which cancels slow drift; each measurement of it is a *look*. After k looks with mean
//! gain g, over r measurements of the incumbent, with a standard error s (by 1 / k + 1 / r), the
//! candidate is
//!
//! * **better** once g is at least the smallest gain that counts and g > 2.6 s, after at least two
//!   looks;
//! * **not better** once g + 1.3 s is below that gain: worse if g is below its negative, otherwise
//!   even;
//! * **even** when all looks are used.
//!
//! So the chance of a false «better» for an allocation as good as the incumbent is one in 200 for
//! each look; a worse one needs a larger error. A false «not better» only loses a gain. With little
//! noise two looks accept and one rejects.
//!
//! If looks differ because of earlier disturbances (rhythms), the error of their means follows from
//! the looks alone: [`Sample`], by the same rules.

/// A normal variable exceeds this with a probability of 0.0047: squared.
const ACCEPT_SQUARED: f64 = 2.6 * 2.6;
/// And this with 0.097: squared.
const REJECT_SQUARED: f64 = 1.3 * 1.3;
/// Looks before a candidate is better: a single one may have met an outlier of the incumbent.
const LOOKS_MIN: u32 = 2;
/// The weight of the initial assumption about the noise, in differences.
const SUPPOSED: f64 = 2.0;

/// The variation of measurements of one allocation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noise {
    /// Sum of estimates of the relative variance.
    sum: f64,
    count: f64,
}

impl Noise {
    /// The initial assumption: a standard deviation, relative.
    pub(super) fn supposed(deviation: f64) -> Self {
        Self { sum: SUPPOSED * deviation * deviation, count: SUPPOSED }
    }

    /// Two measurements of one allocation, one after the other.
    pub(super) fn learn(&mut self, one: f64, other: f64) {
        let mean = (one + other) / 2.0;
        if mean > 0.0 {
            let difference = (one - other) / mean;
            // The difference of two has twice the variance of one.
            self.sum += difference * difference / 2.0;
            self.count += 1.0;
        }
    }

    /// The variance of one measurement, relative.
    pub(super) fn variance(&self) -> f64 {
        self.sum / self.count
    }

    /// Its root, the standard deviation, relative.
    pub(super) fn deviation(&self) -> f64 {
        let variance = self.variance();
        if variance <= 0.0 {
            return 0.0;
        }
        // Newton's method, from above: `core` has no root. From 1 it halves until it is near.
        let mut root = variance.max(1.0);
        for _ in 0..64 {
            root = (root + variance / root) / 2.0;
        }
        root
    }
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Better,
    Even,
    Worse,
}

/// The precision of the median of a few measurements, relative to the mean of as many: 0.74 for
/// three.
const MEDIAN_EFFICIENCY: f64 = 0.74;

/// A running comparison.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Comparison {
    sum: f64,
    looks: u32,
    /// Measurements of the incumbent that the gains use.
    references: u32,
}

impl Comparison {
    /// Against the median of this many measurements of the incumbent.
    pub(super) fn against(references: usize) -> Self {
        Self { references: u32::try_from(references).unwrap_or(u32::MAX), ..Self::default() }
    }

    /// Another look: the candidate's gain over the incumbent.
    pub(super) fn look(&mut self, gain: f64) {
        self.sum += gain;
        self.looks += 1;
    }

    /// The incumbent was measured once more: later gains use that, too.
    pub(super) fn refer(&mut self) {
        self.references = self.references.saturating_add(1);
    }

    /// The mean gain; 0 before the first look.
    pub(super) fn gain(&self) -> f64 {
        if self.looks == 0 { 0.0 } else { self.sum / f64::from(self.looks) }
    }

    /// The variance of the mean gain.
    fn squared_error(&self, noise: &Noise) -> f64 {
        let parts = [f64::from(self.looks), MEDIAN_EFFICIENCY * f64::from(self.references)];
        noise.variance() * parts.map(|count| 1.0 / count.max(MEDIAN_EFFICIENCY)).iter().sum::<f64>()
    }

    /// Whether the gain is positive by 1.3 standard errors: the comparison may show only that it is
    /// too small.
    pub(super) fn is_above(&self, noise: &Noise) -> bool {
        let gain = self.gain();
        gain > 0.0 && gain * gain > REJECT_SQUARED * self.squared_error(noise)
    }

    /// The verdict, if there is one yet. `counts` is the smallest gain that counts.
    pub(super) fn verdict(&self, noise: &Noise, counts: f64, looks_max: u32) -> Option<Verdict> {
        if self.looks == 0 {
            return None;
        }
        match judge(self.gain(), self.squared_error(noise), counts) {
            Some(Verdict::Better) if self.looks < LOOKS_MIN => None,
            None if self.looks >= looks_max => Some(Verdict::Even),
            verdict => verdict,
        }
    }
}

/// Measurements of one allocation that vary with the disturbances before them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    sum: f64,
    squares: f64,
    looks: u32,
}

impl Sample {
    /// Another measurement, in frames per second.
    pub(super) fn look(&mut self, frames_per_s: f64) {
        self.sum += frames_per_s;
        self.squares += frames_per_s * frames_per_s;
        self.looks += 1;
    }

    /// The number of measurements.
    fn looks(&self) -> usize {
        self.looks as usize
    }

    /// Their mean; 0 before the first.
    fn mean(&self) -> f64 {
        if self.looks == 0 { 0.0 } else { self.sum / f64::from(self.looks) }
    }

    /// The variance of the mean, relative, if one measurement has at least `variance_min`.
    fn squared_error(&self, variance_min: f64) -> f64 {
        let (count, mean) = (f64::from(self.looks), self.mean());
        let own = (self.squares - mean * mean * count) / (count - 1.0).max(1.0);
        let relative = if mean > 0.0 { own / (mean * mean) } else { 0.0 };
        relative.max(variance_min) / count.max(1.0)
    }

    /// Its gain over the incumbent's measurements, relative.
    pub(super) fn gain(&self, incumbent: &Self) -> f64 {
        gain(self.mean(), incumbent.mean())
    }

    /// As [`Comparison::verdict`], for a candidate with at least this many looks, by the variation
    /// of both samples.
    pub(super) fn verdict(
        &self,
        incumbent: &Self,
        (variance_min, counts): (f64, f64),
        (looks_min, looks_max): (usize, usize),
    ) -> Option<Verdict> {
        if self.looks() < looks_min.max(LOOKS_MIN as usize) || incumbent.looks() < LOOKS_MIN as usize {
            return None;
        }
        let squared_error = self.squared_error(variance_min) + incumbent.squared_error(variance_min);
        judge(self.gain(incumbent), squared_error, counts)
            .or((self.looks() >= looks_max).then_some(Verdict::Even))
    }
}

/// The gain of one throughput over another, relative.
pub(super) fn gain(frames_per_s: f64, over: f64) -> f64 {
    match over > 0.0 {
        true => frames_per_s / over - 1.0,
        // Any number is more than zero.
        false => f64::from(u8::from(frames_per_s > 0.0)),
    }
}

/// The verdict for a mean gain with that squared error; `None` if it needs more looks.
fn judge(gain: f64, squared_error: f64, counts: f64) -> Option<Verdict> {
    if gain >= counts && gain * gain > ACCEPT_SQUARED * squared_error {
        return Some(Verdict::Better);
    }
    let short = counts - gain;
    let is_short = short > 0.0 && short * short > REJECT_SQUARED * squared_error;
    is_short.then_some(if gain < -counts { Verdict::Worse } else { Verdict::Even })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(gains: &[f64], deviation: f64) -> Option<Verdict> {
        let mut comparison = Comparison::default();
        gains.iter().for_each(|&gain| {
            comparison.refer();
            comparison.look(gain);
        });
        comparison.verdict(&Noise::supposed(deviation), 0.01, 6)
    }

    #[test]
    fn without_noise_one_look_rejects_and_two_accept() {
        assert_eq!(compared(&[], 0.0), None);
        assert_eq!(compared(&[0.0], 0.0), Some(Verdict::Even));
        assert_eq!(compared(&[-0.02], 0.0), Some(Verdict::Worse));
        assert_eq!(compared(&[0.009], 0.0), Some(Verdict::Even));
        assert_eq!(compared(&[0.02], 0.0), None);
        assert_eq!(compared(&[0.02, 0.02], 0.0), Some(Verdict::Better));
    }

    #[test]
    fn with_noise_more_looks_are_taken() {
        // A gain of 5 % and measurements that differ by 2 %: an error of 2 % after two looks, of
        // 1.4 % after four.
        assert_eq!(compared(&[0.05, 0.05], 0.02), None);
        assert_eq!(compared(&[0.05; 4], 0.02), Some(Verdict::Better));
        assert_eq!(compared(&[-0.01], 0.02), None);
        assert_eq!(compared(&[-0.01; 4], 0.02), Some(Verdict::Even));
        assert_eq!(compared(&[0.01; 6], 0.02), Some(Verdict::Even));
        // A single outlier does not decide.
        assert_eq!(compared(&[0.3], 0.002), None);
        assert_eq!(compared(&[0.3, -0.001, 0.001, 0.0, 0.001, 0.0], 0.05), Some(Verdict::Even));
    }

    #[test]
    fn samples_that_differ_need_more_looks() {
        let sample = |gains: &[f64]| {
            let mut sample = Sample::default();
            gains.iter().for_each(|&gain| sample.look(100.0 * (1.0 + gain)));
            sample
        };
        let verdict = |candidate: &[f64], incumbent: &[f64]| {
            sample(candidate).verdict(&sample(incumbent), (0.0, 0.01), (5, 10))
        };
        let even = [0.0; 5];
        assert_eq!(verdict(&[0.05; 4], &even), None);
        assert_eq!(verdict(&[0.05; 5], &even), Some(Verdict::Better));
        assert_eq!(verdict(&even, &even), Some(Verdict::Even));
        assert_eq!(verdict(&[-0.05; 5], &even), Some(Verdict::Worse));
        // Always the faster of two rhythms, against half of each: a gain of 4.3 % with an error of
        // 2 %, and after as many again of 1.3 %.
        let both = [0.0, 0.08, 0.0, 0.08];
        assert_eq!(verdict(&[0.08; 5], &both), None);
        assert_eq!(verdict(&[0.08; 5], &both.repeat(3)), Some(Verdict::Better));
        // Two that have both rhythms equally often.
        assert_eq!(verdict(&both.repeat(3), &both.repeat(3)), Some(Verdict::Even));
        // However similar the looks are, the error is not below the known one.
        assert_eq!(sample(&[0.05; 5]).verdict(&sample(&even), (0.002, 0.01), (5, 10)), None);
    }

    #[test]
    fn noise_is_learned() {
        let mut noise = Noise::supposed(0.001);
        for _ in 0..50 {
            noise.learn(97.0, 103.0);
        }
        // Differences of 6 %: a deviation of 6 % / √2.
        assert!((noise.variance() / 0.0018 - 1.0).abs() < 0.05);
        for deviation in [0.0, 1e-9, 0.004, 0.5, 1.0, 30.0] {
            assert!((Noise::supposed(deviation).deviation() - deviation).abs() <= deviation * 1e-12);
        }
        noise.learn(0.0, 0.0);
    }
}
