//! A budget of measured GPU time.

use crate::words;

/// The whole, in thousandths.
const WHOLE_PERMILLE: u32 = 1000;

words! {
    /// How a share of time is enforced.
    pub enum Policy: Hard {
        /// The share is a limit, even while no other tenant uses the GPU.
        Hard => "hard",
        /// The tenant may use time that no other tenant of the GPU needs; it gives it back within
        /// 100 ms.
        Soft => "soft",
        /// HAMi's token bucket, for comparison: launches pay for their blocks, and NVML's
        /// utilization refills the bucket. It does not hold the share of programs with few blocks.
        Tokens => "tokens",
    }
}

/// The rules for a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Law {
    /// The share of the time, in thousandths; 1000 and more mean no limit.
    pub share_permille: u32,
    /// The time over which a tenant may save, and over which it pays back what it borrowed, in
    /// nanoseconds.
    pub period_ns: u64,
    /// The balance at which a closed gate opens, in nanoseconds: short slices follow the share
    /// closely, long ones open and close less often.
    pub slice_ns: u64,
    /// How it is enforced.
    pub policy: Policy,
}

impl Law {
    /// A period of 100 ms and slices of 2 ms.
    pub fn new(share_permille: u32, policy: Policy) -> Self {
        Self { share_permille, period_ns: 100_000_000, slice_ns: 2_000_000, policy }
    }

    /// The most that a tenant saves, in nanoseconds, and the most that a soft one owes.
    pub fn period_share_ns(&self) -> u64 {
        self.period_ns / u64::from(WHOLE_PERMILLE) * u64::from(self.share())
    }

    fn share(&self) -> u32 {
        self.share_permille.min(WHOLE_PERMILLE)
    }

    /// Never above the largest savings: the gate would not open again.
    fn opens_at_ns(&self) -> i64 {
        signed(self.slice_ns.min(self.period_share_ns()))
    }
}

/// The findings of a look at a tenant's work, since the look before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Situation {
    /// How long the GPU was busy for the tenant, in nanoseconds.
    pub busy_ns: u64,
    /// Whether the tenant has waiting or running work.
    pub wants: bool,
    /// Whether any other tenant of the GPU has.
    pub others_want: bool,
}

/// The result of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Whether the tenant's work may start.
    pub open: bool,
    /// When the answer may change by itself, in nanoseconds from now; `None` for never.
    pub look_in_ns: Option<u64>,
}

/// A tenant's budget of GPU time. The caller supplies the clock, in nanoseconds; a clock that goes
/// back counts as standing still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    law: Law,
    balance_ns: i64,
    /// Thousandths of a nanosecond, earned and not yet in the balance.
    rest: u64,
    looked_ns: u64,
    open: bool,
}

impl Budget {
    /// A budget that starts now, with one slice in hand.
    pub fn new(law: Law, now_ns: u64) -> Self {
        Self { law, balance_ns: law.opens_at_ns(), rest: 0, looked_ns: now_ns, open: law.share() > 0 }
    }

    /// Applies another law from now on. Savings shrink to what it allows; a debt stays.
    pub fn set_law(&mut self, law: Law) {
        self.law = law;
        self.balance_ns = self.balance_ns.min(signed(law.period_share_ns()));
    }

    /// The law that applies.
    pub fn law(&self) -> Law {
        self.law
    }

    /// The balance, in nanoseconds of GPU time; negative for a debt.
    pub fn balance_ns(&self) -> i64 {
        self.balance_ns
    }

    /// Words that a budget takes.
    pub(super) const WORDS: usize = 4;

    pub(super) fn to_words(self) -> [u64; Self::WORDS] {
        [self.balance_ns.cast_unsigned(), self.rest, self.looked_ns, u64::from(self.open)]
    }

    /// From words that any process may have written, under `law` from now on. A last look in the
    /// future is ignored: the budget would earn nothing until then.
    pub(super) fn from_words(law: Law, now_ns: u64, words: &[u64; Self::WORDS]) -> Self {
        let [balance, rest, looked_ns, open] = *words;
        let mut budget = Self {
            law,
            balance_ns: balance.cast_signed(),
            rest: rest % u64::from(WHOLE_PERMILLE),
            looked_ns: looked_ns.min(now_ns),
            open: open != 0,
        };
        budget.set_law(law);
        budget
    }

    /// Takes back time that an earlier look reported as busy and that was not.
    pub(super) fn give_back(&mut self, idle_ns: u64) {
        self.balance_ns = self.balance_ns.saturating_add(signed(idle_ns));
    }

    /// Adds a look and decides.
    pub fn look(&mut self, now_ns: u64, found: Situation) -> Decision {
        let earned_ns = self.earned_ns(now_ns);
        let balance_ns = self.balance_ns.saturating_add(earned_ns).saturating_sub(signed(found.busy_ns));
        // Saves only the rest: what was spent meanwhile must not count against the savings.
        self.balance_ns = balance_ns.min(signed(self.law.period_share_ns()));
        let share = self.law.share();
        if share >= WHOLE_PERMILLE || self.law.policy == Policy::Tokens {
            // The token bucket delays launches before they come here: the account only measures.
            self.open = true;
            self.balance_ns = self.balance_ns.max(0);
            return Decision { open: true, look_in_ns: None };
        }
        if self.law.policy == Policy::Soft {
            self.balance_ns = self.balance_ns.max(-signed(self.law.period_share_ns()));
        }
        let borrows = self.law.policy == Policy::Soft && !found.others_want;
        let lasts = if self.open { self.balance_ns > 0 } else { self.balance_ns >= self.law.opens_at_ns() };
        // A share of zero never reaches the balance to open at; a limit of 0 is such a share.
        self.open = borrows || (share > 0 && lasts);
        if borrows && !lasts {
            // Only the arrival of another tenant ends it: look often enough to give back within a
            // period.
            let look_in_ns = found.wants.then_some((self.law.period_ns / 8).max(1));
            return Decision { open: true, look_in_ns };
        }
        Decision { open: self.open, look_in_ns: self.look_in_ns(found.wants) }
    }

    fn earned_ns(&mut self, now_ns: u64) -> i64 {
        let passed = now_ns.saturating_sub(self.looked_ns);
        self.looked_ns = self.looked_ns.max(now_ns);
        let earned = u128::from(passed) * u128::from(self.law.share()) + u128::from(self.rest);
        let whole = u128::from(WHOLE_PERMILLE);
        self.rest = u64::try_from(earned % whole).unwrap_or(0);
        i64::try_from(earned / whole).unwrap_or(i64::MAX)
    }

    fn look_in_ns(&self, wants: bool) -> Option<u64> {
        let share = u64::from(self.law.share());
        let whole = u64::from(WHOLE_PERMILLE);
        if !wants {
            return None;
        }
        if self.open {
            // A tenant that is busy all the time loses what it does not earn.
            let left = self.balance_ns.max(0).unsigned_abs();
            return Some((left.saturating_mul(whole) / (whole - share)).max(1));
        }
        if share == 0 {
            return None;
        }
        let missing = self.law.opens_at_ns().saturating_sub(self.balance_ns).max(1).unsigned_abs();
        Some(missing.saturating_mul(whole).div_ceil(share))
    }
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}
