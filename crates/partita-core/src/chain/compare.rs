//! Whether one allocation is better than another, from measurements that are not exact.
//!
//! Gains are relative: 0.05 for 5 % more. A candidate is compared with measurements of the incumbent taken just before, so that what changes slowly falls
//! out; each measurement of it is a *look*. After k looks with mean gain g over r measurements of the incumbent and a standard error s (by 1 / k + 1 / r), the candidate is
//!
//! * **better** once g is at least the smallest gain that counts and g > 2.6 s, after two looks at least;
//! * **not better** once g + 1.3 s is below that gain: worse if g is below its negative, even otherwise;
//! * **even** when the looks are used up.
//!
//! So a false «better» about an allocation that is as good as the incumbent has a chance of one in 200 a look, and one that is worse needs
//! a larger error still; a false «not better» costs a gain and nothing else. With little noise two looks accept and one rejects.
//!
//! Where gains differ because the looks do (rhythms after different disturbances), how exact their mean is follows from them alone: [`Paired`], by the same rules.

/// A normal variable is beyond this with a chance of 0.0047: squared.
const ACCEPT_SQUARED: f64 = 2.6 * 2.6;
/// And beyond this with 0.097: squared.
const REJECT_SQUARED: f64 = 1.3 * 1.3;
/// Looks that a candidate must stand before it is better: one may have met a hiccup of the incumbent.
const LOOKS_MIN: u32 = 2;
/// How many differences what is supposed of the noise before anything is known counts for.
const SUPPOSED: f64 = 2.0;

/// How much measurements of one allocation differ.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noise {
    /// Sum of estimates of the relative variance.
    sum: f64,
    count: f64,
}

impl Noise {
    /// Before anything is known: a standard deviation, relative.
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

/// What a comparison has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Better,
    Even,
    Worse,
}

/// What the median of a few measurements is worth, in means of as many: 0.74 for three.
const MEDIAN_EFFICIENCY: f64 = 0.74;

/// A comparison under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Comparison {
    sum: f64,
    looks: u32,
    /// Measurements of the incumbent behind the gains.
    references: u32,
}

impl Comparison {
    /// Against the median of so many measurements of the incumbent.
    pub(super) fn against(references: usize) -> Self {
        Self { references: u32::try_from(references).unwrap_or(u32::MAX), ..Self::default() }
    }

    /// Another look: the candidate's gain over the incumbent.
    pub(super) fn look(&mut self, gain: f64) {
        self.sum += gain;
        self.looks += 1;
    }

    /// The incumbent was measured once more: what comes is compared with that, too.
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

    /// Whether the gain is more than nothing, by 1.3 standard errors: that it does not count may be all that the comparison has come to.
    pub(super) fn is_above(&self, noise: &Noise) -> bool {
        let gain = self.gain();
        gain > 0.0 && gain * gain > REJECT_SQUARED * self.squared_error(noise)
    }

    /// What follows, if anything does yet. `counts` is the smallest gain that counts.
    pub(super) fn verdict(&self, noise: &Noise, counts: f64, looks_max: u32) -> Option<Verdict> {
        if self.looks == 0 {
            return None;
        }
        let gain = self.gain();
        let squared_error = self.squared_error(noise);
        if gain >= counts && gain * gain > ACCEPT_SQUARED * squared_error {
            return (self.looks >= LOOKS_MIN).then_some(Verdict::Better);
        }
        let short = counts - gain;
        if short > 0.0 && short * short > REJECT_SQUARED * squared_error {
            return Some(if gain < -counts { Verdict::Worse } else { Verdict::Even });
        }
        (self.looks >= looks_max).then_some(Verdict::Even)
    }
}

/// A comparison of pairs whose own differences say how exact it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paired {
    sum: f64,
    squares: f64,
    looks: u32,
    /// What is known of a difference's variance at least.
    variance_min: f64,
}

impl Paired {
    /// Before the first pair.
    pub(super) fn new(variance_min: f64) -> Self {
        Self { sum: 0.0, squares: 0.0, looks: 0, variance_min }
    }

    /// Another pair: the candidate's gain over the incumbent.
    pub(super) fn look(&mut self, gain: f64) {
        self.sum += gain;
        self.squares += gain * gain;
        self.looks += 1;
    }

    /// The mean gain; 0 before the first pair.
    pub(super) fn gain(&self) -> f64 {
        if self.looks == 0 { 0.0 } else { self.sum / f64::from(self.looks) }
    }

    /// As [`Comparison::verdict`], after so many pairs at least.
    pub(super) fn verdict(&self, counts: f64, looks_min: usize, looks_max: usize) -> Option<Verdict> {
        let looks = self.looks as usize;
        if looks < looks_min.max(LOOKS_MIN as usize) {
            return None;
        }
        let (gain, count) = (self.gain(), f64::from(self.looks));
        let variance = ((self.squares - gain * gain * count) / (count - 1.0)).max(self.variance_min);
        let squared_error = variance / count;
        if gain >= counts && gain * gain > ACCEPT_SQUARED * squared_error {
            return Some(Verdict::Better);
        }
        let short = counts - gain;
        if short > 0.0 && short * short > REJECT_SQUARED * squared_error {
            return Some(if gain < -counts { Verdict::Worse } else { Verdict::Even });
        }
        (looks >= looks_max).then_some(Verdict::Even)
    }
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
        // A gain of 5 % and measurements that differ by 2 %: an error of 2 % after two looks, of 1.4 % after four.
        assert_eq!(compared(&[0.05, 0.05], 0.02), None);
        assert_eq!(compared(&[0.05; 4], 0.02), Some(Verdict::Better));
        assert_eq!(compared(&[-0.01], 0.02), None);
        assert_eq!(compared(&[-0.01; 4], 0.02), Some(Verdict::Even));
        assert_eq!(compared(&[0.01; 6], 0.02), Some(Verdict::Even));
        // One hiccup does not decide.
        assert_eq!(compared(&[0.3], 0.002), None);
        assert_eq!(compared(&[0.3, -0.001, 0.001, 0.0, 0.001, 0.0], 0.05), Some(Verdict::Even));
    }

    #[test]
    fn pairs_that_differ_need_more_of_them() {
        let verdict = |gains: &[f64]| {
            let mut paired = Paired::new(0.0);
            gains.iter().for_each(|&gain| paired.look(gain));
            paired.verdict(0.01, 5, 10)
        };
        assert_eq!(verdict(&[0.05; 4]), None);
        assert_eq!(verdict(&[0.05; 5]), Some(Verdict::Better));
        assert_eq!(verdict(&[0.0; 5]), Some(Verdict::Even));
        assert_eq!(verdict(&[-0.05; 5]), Some(Verdict::Worse));
        // After three of five disturbances 8 % more: a mean of 4.8 % with an error of 2 %, and of 5.3 % with one of 1.7 %.
        let gains = [0.08, 0.0, 0.0, 0.08, 0.08, 0.08];
        assert_eq!(verdict(&gains[..5]), None);
        assert_eq!(verdict(&gains), Some(Verdict::Better));
        // What is lost as often as it is gained comes to nothing.
        assert_eq!(verdict(&[0.08, -0.08].repeat(5)), Some(Verdict::Even));
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
