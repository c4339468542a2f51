//! Whether one allocation is better than another, from measurements that are not exact.
//!
//! Gains are relative: 0.05 for 5 % more. A candidate is compared with measurements of the incumbent taken just before, so that what changes slowly falls
//! out; each such pair is a *look*. After k looks with mean gain g and a standard error s of it (which falls with √k), the candidate is
//!
//! * **better** once g is at least the smallest gain that counts and g > 2.6 s, after two looks at least;
//! * **not better** once g + 1.3 s is below that gain: worse if g is below its negative, even otherwise;
//! * **even** when the looks are used up.
//!
//! So a false «better» about an allocation that is as good as the incumbent has a chance of one in 200 a look, and one that is worse needs
//! a larger error still; a false «not better» costs a gain and nothing else. With little noise two looks accept and one rejects.

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

/// A comparison under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Comparison {
    sum: f64,
    looks: u32,
}

impl Comparison {
    /// Another look: the candidate's gain over the incumbent.
    pub(super) fn look(&mut self, gain: f64) {
        self.sum += gain;
        self.looks += 1;
    }

    /// The mean gain; 0 before the first look.
    pub(super) fn gain(&self) -> f64 {
        if self.looks == 0 { 0.0 } else { self.sum / f64::from(self.looks) }
    }

    /// What follows, if anything does yet. `counts` is the smallest gain that counts.
    pub(super) fn verdict(&self, noise: &Noise, counts: f64, looks_max: u32) -> Option<Verdict> {
        if self.looks == 0 {
            return None;
        }
        let gain = self.gain();
        // Of a difference of two measurements, in the mean of the looks.
        let squared_error = 2.0 * noise.variance() / f64::from(self.looks);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(gains: &[f64], deviation: f64) -> Option<Verdict> {
        let mut comparison = Comparison::default();
        gains.iter().for_each(|&gain| comparison.look(gain));
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
