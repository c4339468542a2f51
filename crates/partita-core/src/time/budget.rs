//! A budget of GPU time that was measured.

use core::str::FromStr;

/// The whole, in thousandths.
const WHOLE_PERMILLE: u32 = 1000;

/// What a tenant may do with time that nobody else wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Nothing: its share is a limit.
    #[default]
    Hard,
    /// Use it, and give it back within one period once somebody wants it.
    Soft,
}

impl FromStr for Policy {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "hard" => Ok(Self::Hard),
            "soft" => Ok(Self::Soft),
            _ => Err("a policy for shares of time is `hard` or `soft`"),
        }
    }
}

impl Policy {
    /// Its name, as it is parsed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hard => "hard",
            Self::Soft => "soft",
        }
    }
}

/// What a budget is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Law {
    /// The share of the time, in thousandths; 1000 for no limit, and more is taken as that.
    pub share_permille: u32,
    /// Over how long a tenant may save up, and how long it pays for what it borrowed, in
    /// nanoseconds.
    pub period_ns: u64,
    /// The balance at which a closed gate opens, in nanoseconds: short slices follow the share
    /// closely, long ones open and close less often.
    pub slice_ns: u64,
    /// What becomes of idle time.
    pub policy: Policy,
}

impl Law {
    /// A period of 100 ms and slices of 2 ms.
    pub fn new(share_permille: u32, policy: Policy) -> Self {
        Self { share_permille, period_ns: 100_000_000, slice_ns: 2_000_000, policy }
    }

    /// What a tenant saves up at most, in nanoseconds, and the most that a soft one owes.
    pub fn period_share_ns(&self) -> u64 {
        self.period_ns / u64::from(WHOLE_PERMILLE) * u64::from(self.share())
    }

    fn share(&self) -> u32 {
        self.share_permille.min(WHOLE_PERMILLE)
    }

    /// Never above what can be saved: the gate would not open again.
    fn opens_at_ns(&self) -> i64 {
        signed(self.slice_ns.min(self.period_share_ns()))
    }
}

/// What a look at a tenant's work has found since the look before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Situation {
    /// How long the GPU was busy for the tenant, in nanoseconds.
    pub busy_ns: u64,
    /// Whether the tenant has work that waits or runs.
    pub wants: bool,
    /// Whether any other tenant of the GPU has.
    pub others_want: bool,
}

/// What follows from a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Whether the tenant's work may start.
    pub open: bool,
    /// When the answer may change without anybody's doing, in nanoseconds from now; `None` for
    /// never.
    pub look_in_ns: Option<u64>,
}

/// A tenant's budget of GPU time. Its clock is whatever the caller passes, in nanoseconds; one that
/// goes back is taken to stand still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    law: Law,
    balance_ns: i64,
    /// Thousandths of a nanosecond that are earned and not yet in the balance.
    rest: u64,
    looked_ns: u64,
    open: bool,
}

impl Budget {
    /// A budget that begins now, with one slice in hand.
    pub fn new(law: Law, now_ns: u64) -> Self {
        Self { law, balance_ns: law.opens_at_ns(), rest: 0, looked_ns: now_ns, open: law.share() > 0 }
    }

    /// Holds the tenant to another law from now on. Its savings shrink to what that allows; its
    /// debt stays.
    pub fn set_law(&mut self, law: Law) {
        self.law = law;
        self.balance_ns = self.balance_ns.min(signed(law.period_share_ns()));
    }

    /// The law that it is held to.
    pub fn law(&self) -> Law {
        self.law
    }

    /// What is left, in nanoseconds of GPU time; below 0 it is owed.
    pub fn balance_ns(&self) -> i64 {
        self.balance_ns
    }

    /// Words that a budget takes.
    pub(super) const WORDS: usize = 4;

    pub(super) fn to_words(self) -> [u64; Self::WORDS] {
        [self.balance_ns.cast_unsigned(), self.rest, self.looked_ns, u64::from(self.open)]
    }

    /// From words that anybody may have written, held to `law` from now on. A last look in the
    /// future is none: it would earn nothing until then.
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

    /// Takes back what a look before this one was told to be busy and was not.
    pub(super) fn give_back(&mut self, idle_ns: u64) {
        self.balance_ns = self.balance_ns.saturating_add(signed(idle_ns));
    }

    /// Takes a look into account and decides.
    pub fn look(&mut self, now_ns: u64, found: Situation) -> Decision {
        let earned_ns = self.earned_ns(now_ns);
        let balance_ns = self.balance_ns.saturating_add(earned_ns).saturating_sub(signed(found.busy_ns));
        // Only what is left of it is saved: what was spent on the way must not count against the
        // savings.
        self.balance_ns = balance_ns.min(signed(self.law.period_share_ns()));
        let share = self.law.share();
        if share >= WHOLE_PERMILLE {
            self.open = true;
            self.balance_ns = self.balance_ns.max(0);
            return Decision { open: true, look_in_ns: None };
        }
        if self.law.policy == Policy::Soft {
            self.balance_ns = self.balance_ns.max(-signed(self.law.period_share_ns()));
        }
        let borrows = self.law.policy == Policy::Soft && !found.others_want;
        let lasts = if self.open { self.balance_ns > 0 } else { self.balance_ns >= self.law.opens_at_ns() };
        // A share of nothing never has a balance to open at, and a limit of 0 is one.
        self.open = borrows || (share > 0 && lasts);
        if borrows && !lasts {
            // Nothing but somebody's coming ends it: often enough to give back within a period.
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
            // Busy all the time, it loses what it does not earn.
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
