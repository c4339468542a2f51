//! The rules of the gate: which work waits, for how long, and in which units.

use crate::words;

words! {
    /// Who waits for whom.
    pub enum Priority: Normal {
        /// Makes tenants of low priority wait while it has work in flight.
        High = 2 => "high",
        /// Neither makes others wait nor waits.
        Normal = 0 => "normal",
        /// Waits while a tenant of high priority has work in flight.
        Low = 1 => "low",
    }
}

impl Priority {
    /// The priority with a ledger's number; unknown numbers, of another build's ledger, mean
    /// normal. `as u32` is the way back.
    pub fn from_number(number: u32) -> Self {
        match number {
            1 => Self::Low,
            2 => Self::High,
            _ => Self::Normal,
        }
    }

    /// Whether a tenant of this priority waits while one of `other` has work in flight.
    pub fn is_held_by(self, other: Self) -> bool {
        self == Self::Low && other == Self::High
    }
}

/// How long a closed gate has effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// The longest time that work waits, in nanoseconds.
    pub hold_ns_max: u64,
    /// The time during which it then passes, in nanoseconds.
    pub pass_ns: u64,
}

impl Default for Hold {
    /// 50 ms, then 5 ms: far longer than an interactive request, and 9 % of the time for waiting
    /// work.
    fn default() -> Self {
        Self { hold_ns_max: 50_000_000, pass_ns: 5_000_000 }
    }
}

impl Hold {
    /// Until when waiting work passes, if the gate has been closed for long enough. A gate cannot
    /// close further in the future than the longest wait: such a time is invalid and counts as long
    /// ago.
    pub fn passes_until(&self, closed_ns: u64, now_ns: u64) -> Option<u64> {
        (now_ns.abs_diff(closed_ns) >= self.hold_ns_max).then(|| now_ns.saturating_add(self.pass_ns))
    }
}

/// How many launches may pass between two gates.
///
/// A gate costs the GPU about 2 µs (`docs/hardware.md`), and a closing gate waits for the launches
/// between two gates. So kernels are gated in units of about [`Pacer::unit_ns`]: long kernels one
/// by one, shorter ones several at a time, by a running mean of their measured lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pacer {
    /// The intended length of a unit, in nanoseconds.
    pub unit_ns: u64,
    /// The most launches in a unit: bounds the harm of a wrong guess.
    pub launches_max: u32,
    mean_ns: u64,
}

impl Default for Pacer {
    /// Units of 200 µs, 64 launches at most; the first launches go one by one.
    fn default() -> Self {
        Self::new(200_000, 64)
    }
}

impl Pacer {
    /// For units of this length and of at most this many launches; the first launches go one by
    /// one.
    pub const fn new(unit_ns: u64, launches_max: u32) -> Self {
        Self { unit_ns, launches_max, mean_ns: u64::MAX }
    }

    /// The length of a launch, in nanoseconds; `None` before the first is known.
    pub fn mean_ns(&self) -> Option<u64> {
        (self.mean_ns != u64::MAX).then_some(self.mean_ns)
    }

    /// Adds the length of a launch. A longer one counts at once, because it delays another tenant;
    /// a shorter one counts an eighth.
    pub fn observe(&mut self, launch_ns: u64) {
        let launch_ns = launch_ns.max(1);
        self.mean_ns = if self.mean_ns == u64::MAX || launch_ns > self.mean_ns {
            launch_ns
        } else {
            self.mean_ns - (self.mean_ns - launch_ns).div_ceil(8)
        };
    }

    /// Launches that make a unit now; at least one.
    pub fn launches(&self) -> u32 {
        let launches = self.unit_ns / self.mean_ns.max(1);
        u32::try_from(launches).unwrap_or(u32::MAX).clamp(1, self.launches_max.max(1))
    }
}
