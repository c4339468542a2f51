//! The token bucket of HAMi-core: launches pay for their blocks, and a watcher refills the bucket
//! by the GPU's utilization.
//!
//! Users of HAMi know this law, and it is here to be compared with the [`Budget`](super::Budget) in
//! one run. It does not hold a share for all programs: a long kernel of few blocks costs a few
//! tokens, the bucket holds millions, and the smallest change of the refill is a large part of its
//! range (`docs/design/time.md`).

/// Threads of an SM that make a token each, as HAMi-core's `FACTOR`.
const FACTOR: i64 = 32;
/// The bucket doubles no further: HAMi-core's doubles until its number overflows.
const CAPACITY_MAX: i64 = 1 << 60;
/// The least difference between limit and utilization that counts, in percent.
const DIFFERENCE_MIN: i64 = 5;

/// The time between two refills, in nanoseconds.
pub const REFILL_NS: u64 = 120_000_000;
/// How long a launch sleeps before it looks at the bucket again, in nanoseconds.
pub const SLEEP_NS: u32 = 10_000_000;

/// Whether a limit in percent limits anything: 0 and all from 100 on are no limit.
pub fn is_limit(percent: u32) -> bool {
    (1..100).contains(&percent)
}

/// The balance after a launch of so many blocks. `None` below zero: the launch sleeps and asks
/// again. A launch that finds zero or more overdraws, whatever it costs.
pub fn spend(balance: i64, blocks: u64) -> Option<i64> {
    (balance >= 0).then(|| balance.saturating_sub(i64::try_from(blocks).unwrap_or(i64::MAX)))
}

/// The watcher's part of the law: what the bucket holds, and the next refill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refill {
    sms: i64,
    threads_per_sm: i64,
    capacity: i64,
    share: i64,
}

impl Refill {
    /// For a device with so many SMs, each of so many threads.
    pub fn new(sms: u32, threads_per_sm: u32) -> Self {
        let (sms, threads_per_sm) = (i64::from(sms.max(1)), i64::from(threads_per_sm.max(1)));
        let capacity = (threads_per_sm.saturating_mul(sms)).saturating_mul(FACTOR).min(CAPACITY_MAX);
        Self { sms, threads_per_sm, capacity, share: 0 }
    }

    /// The most that the bucket holds, in tokens.
    pub fn capacity(&self) -> i64 {
        self.capacity
    }

    /// The tokens of one refill.
    pub fn share(&self) -> i64 {
        self.share
    }

    /// Adapts the refill to the tenant's utilization: `limit` and `used` are in percent. If the
    /// largest refill leaves launches waiting, the bucket doubles first. A `used` above 100 is no
    /// utilization, and changes nothing else: the result is false, and nothing is refilled.
    #[must_use = "false means that there is no refill"]
    pub fn adapt(&mut self, limit: u32, used: u32, balance: i64) -> bool {
        if self.share == self.capacity && balance < 0 {
            self.capacity = self.capacity.saturating_mul(2).min(CAPACITY_MAX);
            self.share = self.capacity;
        }
        if used > 100 {
            return false;
        }
        let (limit, used) = (i64::from(limit), i64::from(used));
        let difference = (limit - used).abs().max(DIFFERENCE_MIN);
        let per_percent = self.sms.saturating_mul(self.sms).saturating_mul(self.threads_per_sm);
        let mut step = per_percent.saturating_mul(difference) / 2560;
        if difference > limit / 2 {
            step = step.saturating_mul(difference) * 2 / (limit + 1);
        }
        self.share = match used <= limit {
            true => self.share.saturating_add(step).min(self.capacity),
            false => (self.share - step).max(0),
        };
        true
    }

    /// The balance after a refill.
    pub fn refilled(&self, balance: i64) -> i64 {
        balance.saturating_add(self.share).min(self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::vec::Vec;

    use super::*;

    const H200: (u32, u32) = (132, 2048);

    #[test]
    fn figures_of_an_h200() {
        let mut refill = Refill::new(H200.0, H200.1);
        assert_eq!((refill.capacity(), refill.share()), (8_650_752, 0));
        // The least step, of 5 percent, is 69 696 tokens.
        assert!(refill.adapt(50, 50, 0));
        assert_eq!(refill.share(), 69_696);
        assert!(refill.adapt(50, 51, 0));
        assert_eq!(refill.share(), 0);
        // Beyond half the limit the step grows with the difference: 50 · 13 939.2 · 100 / 51.
        assert!(refill.adapt(50, 0, 0));
        assert_eq!(refill.share(), 696_960 * 100 / 51);
        assert!(!refill.adapt(50, 101, 0), "a utilization above 100 percent counts for nothing");
    }

    #[test]
    fn no_limit_at_0_and_from_100_on() {
        assert_eq!([0, 1, 99, 100, 101].map(is_limit), [false, true, true, false, false]);
    }

    #[test]
    fn a_bucket_that_is_always_empty_doubles_without_overflow() {
        let mut refill = Refill::new(H200.0, H200.1);
        let before = refill.capacity();
        for _ in 0..1000 {
            assert!(refill.adapt(50, 0, -1));
        }
        assert!(refill.capacity() > before && refill.share() <= refill.capacity());
        assert!(refill.refilled(i64::MAX - 1) <= CAPACITY_MAX);
    }

    /// A program that launches kernels of so many blocks and nanoseconds without a pause. Returns
    /// the share of the time in which the GPU ran them in the second half of `for_ns`, in percent.
    /// The utilization is that of the last refill period, as NVML's is of a recent one.
    fn saturate(limit: u32, blocks: u64, length_ns: u64, for_ns: u64) -> f64 {
        let (mut refill, mut balance) = (Refill::new(H200.0, H200.1), 0);
        let (mut now, mut free_at, mut busy_until) = (0u64, 0u64, 0u64);
        let (mut next_refill, mut in_period, mut in_half) = (REFILL_NS, 0u64, 0u64);
        while now < for_ns {
            // The program has one kernel waiting behind the one that runs.
            let launches = match spend(balance, blocks).filter(|_| is_limit(limit)) {
                Some(left) => {
                    balance = left;
                    true
                }
                None => !is_limit(limit),
            };
            if launches {
                free_at = now.max(busy_until);
                busy_until = free_at + length_ns;
                now = free_at;
            } else {
                now += u64::from(SLEEP_NS);
            }
            let from = free_at.max(for_ns / 2);
            if launches && busy_until > from {
                in_half += busy_until.min(for_ns).saturating_sub(from);
            }
            if launches {
                in_period += length_ns;
            }
            while now >= next_refill {
                let used = (in_period.min(REFILL_NS) * 100 / REFILL_NS) as u32;
                in_period = in_period.saturating_sub(REFILL_NS);
                if refill.adapt(limit, used, balance) {
                    balance = refill.refilled(balance);
                }
                next_refill += REFILL_NS;
            }
        }
        in_half as f64 * 100.0 / (for_ns - for_ns / 2) as f64
    }

    #[test]
    fn long_kernels_of_few_blocks_escape() {
        // One block a millisecond: the bucket's capacity lasts for hours.
        assert!(saturate(25, 1, 1_000_000, 20_000_000_000) > 95.0);
        // The same time in launches of 2112 blocks of 50 µs is limited, though not to the share.
        let many = saturate(25, 2112, 50_000, 20_000_000_000);
        assert!(many < 60.0, "{many}");
    }

    proptest! {
        #[test]
        fn a_launch_passes_exactly_from_zero_on(balance in any::<i64>(), blocks in any::<u64>()) {
            let after = spend(balance, blocks);
            prop_assert_eq!(after.is_some(), balance >= 0);
            prop_assert!(after.is_none_or(|after| after <= balance));
        }

        /// Whatever the utilization was, refills stay between nothing and the capacity, never lower
        /// a balance within it, and follow the sign of the difference. A step of less than a
        /// token changes nothing.
        #[test]
        fn refills_stay_within_the_bucket(
            sms in 1u32..=256,
            threads in 1u32..=4096,
            limit in 1u32..100,
            looks in prop::collection::vec((0u32..=110, any::<i32>()), 1..200),
        ) {
            let mut refill = Refill::new(sms, threads);
            let mut balances = Vec::new();
            for (used, balance) in looks {
                let (before, balance) = (refill, i64::from(balance));
                let is_known = refill.adapt(limit, used, balance);
                prop_assert_eq!(is_known, used <= 100);
                prop_assert!((0..=refill.capacity()).contains(&refill.share()));
                prop_assert!(refill.capacity() == before.capacity() || balance < 0);
                if is_known && refill.capacity() == before.capacity() {
                    let has_steps = sms * sms * threads * DIFFERENCE_MIN as u32 >= 2560;
                    let (before, share) = (before.share(), refill.share());
                    let follows = match used <= limit {
                        true => share >= before,
                        false => share < before || share == 0 || !has_steps && share == before,
                    };
                    prop_assert!(follows);
                }
                let after = refill.refilled(balance);
                prop_assert!(after <= refill.capacity());
                prop_assert!(after >= balance.min(refill.capacity()));
                balances.push(after);
            }
        }
    }
}
