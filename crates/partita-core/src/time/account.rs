//! A tenant's account of GPU time, as its processes share it.

use super::budget::{Budget, Decision, Law, Situation};
use super::timeline::{self, Timeline};

/// The length of the window for the reported share of use, in nanoseconds.
const WINDOW_NS: u64 = 1_000_000_000;

/// Words that a [`TimeAccount`] takes.
pub const ACCOUNT_WORDS: usize = Budget::WORDS + timeline::WORDS + 4;

/// What the tenant's processes know of its use of the GPU: the budget, and the reported times and
/// amounts.
///
/// It consists of words in shared memory. Any words are a valid account: a tenant that writes
/// others there changes its own share and harms no other tenant's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeAccount {
    budget: Budget,
    timeline: Timeline,
    used_ns: u64,
    /// The start of the present window, and the use until then.
    window: (u64, u64),
    /// Share of use in the last window, in thousandths.
    used_permille: u64,
}

impl TimeAccount {
    /// A new one.
    pub fn new(law: Law, now_ns: u64) -> Self {
        Self {
            budget: Budget::new(law, now_ns),
            timeline: Timeline::default(),
            used_ns: 0,
            window: (now_ns, 0),
            used_permille: 0,
        }
    }

    /// Adds a process's findings and decides. `busy` is when the GPU was busy for the process since
    /// its last report, from and to, by the clock of `now_ns`. `idle` is when it was not, although
    /// reported as busy before because that work might still have been running.
    pub fn look(
        &mut self,
        now_ns: u64,
        busy: impl IntoIterator<Item = (u64, u64)>,
        idle: impl IntoIterator<Item = (u64, u64)>,
        wants: bool,
        others_want: bool,
    ) -> Decision {
        // First: later work may lie in the time that this takes back.
        let idle_ns =
            idle.into_iter().map(|(from, to)| self.timeline.retract(from.min(now_ns), to.min(now_ns)));
        let idle_ns = idle_ns.fold(0, u64::saturating_add);
        let busy = busy.into_iter().map(|(from, to)| self.timeline.report(from.min(now_ns), to.min(now_ns)));
        let busy_ns = busy.fold(0, u64::saturating_add);
        self.budget.give_back(idle_ns);
        self.used_ns = self.used_ns.wrapping_add(busy_ns).saturating_sub(idle_ns);
        let (since_ns, before_ns) = self.window;
        let passed_ns = now_ns.saturating_sub(since_ns);
        if passed_ns >= WINDOW_NS {
            self.used_permille = permille(self.used_ns.wrapping_sub(before_ns), passed_ns);
            self.window = (now_ns, self.used_ns);
        }
        self.budget.look(now_ns, Situation { busy_ns, wants, others_want })
    }

    /// GPU time used so far, in nanoseconds.
    pub fn used_ns(&self) -> u64 {
        self.used_ns
    }

    /// The budget.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The recent share of the time, in thousandths: in the last whole observed second, or since
    /// then if that is long ago.
    pub fn used_permille(&self, now_ns: u64) -> u32 {
        let (since_ns, before_ns) = self.window;
        let passed_ns = now_ns.saturating_sub(since_ns);
        let used = match passed_ns < WINDOW_NS {
            true => self.used_permille,
            false => permille(self.used_ns.wrapping_sub(before_ns), passed_ns),
        };
        u32::try_from(used.min(1000)).unwrap_or(1000)
    }

    /// As words.
    pub fn to_words(&self) -> [u64; ACCOUNT_WORDS] {
        let mut words = [0; ACCOUNT_WORDS];
        let (budget, rest) = words.split_at_mut(Budget::WORDS);
        let (timeline, rest) = rest.split_at_mut(timeline::WORDS);
        budget.copy_from_slice(&self.budget.to_words());
        timeline.copy_from_slice(&self.timeline.to_words());
        rest.copy_from_slice(&[self.used_ns, self.window.0, self.window.1, self.used_permille]);
        words
    }

    /// From words, under `law` from now on; zero words are a new account.
    pub fn from_words(law: Law, now_ns: u64, words: &[u64; ACCOUNT_WORDS]) -> Self {
        if *words == [0; ACCOUNT_WORDS] {
            return Self::new(law, now_ns);
        }
        let (budget, rest) = words.split_at(Budget::WORDS);
        let (bits, rest) = rest.split_at(timeline::WORDS);
        let first = |words: &[u64], at: usize| words.get(at).copied().unwrap_or(0);
        Self {
            budget: Budget::from_words(law, now_ns, &core::array::from_fn(|at| first(budget, at))),
            timeline: Timeline::from_words(&core::array::from_fn(|at| first(bits, at))),
            used_ns: first(rest, 0),
            window: (first(rest, 1), first(rest, 2)),
            used_permille: first(rest, 3),
        }
    }
}

fn permille(used_ns: u64, passed_ns: u64) -> u64 {
    u64::try_from(u128::from(used_ns) * 1000 / u128::from(passed_ns.max(1))).unwrap_or(1000)
}
