//! Blocks that contend for their SM's issue slots: when they end.
//!
//! A block may declare which share of its SM's throughput it takes while it is alone there
//! ([`crate::KernelWork::sm_permille`]). While the blocks of an SM demand more than the SM has, all
//! of them run slower by the same factor, so the SM does as much as it can and never more: two
//! blocks that could each use the whole SM take twice as long together as one alone. On an H200 the
//! matrix product through shared memory behaves so (an SM with eleven of its blocks takes eleven
//! times as long as with one, whether they run in pairs or alone: the law that reproduces
//! `research/bench/results/experiments/model_against_hardware.md`). Blocks without a declared share
//! keep their pace.
//!
//! Each SM has a clock slowed by its factor, which times its blocks. The factor depends only on the
//! SM, so the time of its next end is known until one of its blocks starts or ends; a queue holds
//! these times, and outdated entries are skipped.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Time;
use crate::bandwidth::{Pace, PacedClock};

/// The throughput of an SM.
const WHOLE_PERMILLE: u64 = 1_000;

#[derive(Clone, Debug)]
struct Sm {
    /// Ends of blocks, by `clock`.
    ends: BinaryHeap<Reverse<(Time, u32)>>,
    clock: PacedClock,
    /// The last update of the clock, by the group's clock.
    looked: Time,
    /// The demand of the blocks, in thousandths of the SM.
    demand: u64,
    /// Counts changes: an entry of the queue with another number is outdated.
    version: u32,
}

/// All of a group's SMs.
#[derive(Clone, Debug)]
pub(crate) struct Contended {
    sms: Vec<Sm>,
    /// When the next block of an SM ends, by the group's clock: `(due, SM, version)`.
    next: BinaryHeap<Reverse<(Time, u16, u32)>>,
}

impl Contended {
    pub(crate) fn new(sms: usize) -> Self {
        let sm =
            Sm { ends: BinaryHeap::new(), clock: PacedClock::default(), looked: 0, demand: 0, version: 0 };
        Self { sms: vec![sm; sms], next: BinaryHeap::new() }
    }

    /// Blocks followed, one by one or together.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.sms.iter().map(|sm| sm.ends.len()).sum()
    }

    /// The demand of an SM's blocks, in thousandths.
    #[cfg(test)]
    pub(crate) fn demand(&self, sm: usize) -> u64 {
        self.sms[sm].demand
    }

    /// A block, or several that end together, of this length starts on an SM. [`Self::ask`] has set
    /// its demand before.
    pub(crate) fn push(&mut self, at: usize, length_ns: Time, cohort: u32, now: Time) {
        let sm = &mut self.sms[at];
        sm.catch_up(now);
        sm.ends.push(Reverse((sm.clock.ceil().saturating_add(length_ns), cohort)));
        self.foresee(at);
    }

    /// Changes the demand of an SM's blocks.
    pub(crate) fn ask(&mut self, at: usize, more: u64, less: u64, now: Time) {
        let sm = &mut self.sms[at];
        sm.catch_up(now);
        sm.demand = sm.demand + more - less;
        self.foresee(at);
    }

    /// When the next block ends, by the group's clock; `Time::MAX` for never.
    #[inline]
    pub(crate) fn next_due(&self) -> Time {
        // An outdated entry is never on top: `foresee` and `pop_due` ensure it.
        self.next.peek().map_or(Time::MAX, |&Reverse((due, _, _))| due)
    }

    /// Removes a block that has ended.
    #[inline]
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<u32> {
        let &Reverse((due, at, _)) = self.next.peek()?;
        if due > now {
            return None;
        }
        let sm = &mut self.sms[usize::from(at)];
        sm.catch_up(now);
        let Reverse((_, cohort)) = sm.ends.pop().expect("an SM with an end ahead has a block");
        self.foresee(usize::from(at));
        Some(cohort)
    }

    /// Removes the blocks that fail the predicate.
    pub(crate) fn retain(&mut self, keep: impl Fn(u32) -> bool) {
        for at in 0..self.sms.len() {
            let before = self.sms[at].ends.len();
            self.sms[at].ends.retain(|&Reverse((_, cohort))| keep(cohort));
            if self.sms[at].ends.len() != before {
                self.foresee(at);
            }
        }
    }

    /// Updates the time of an SM's next end.
    fn foresee(&mut self, at: usize) {
        let sm = &mut self.sms[at];
        sm.version = sm.version.wrapping_add(1);
        if let Some(&Reverse((due, _))) = sm.ends.peek() {
            let due = sm.looked.saturating_add(sm.clock.until(due, sm.pace()));
            self.next.push(Reverse((due, at as u16, sm.version)));
        }
        while let Some(&Reverse((_, at, version))) = self.next.peek()
            && self.sms[usize::from(at)].version != version
        {
            self.next.pop();
        }
    }
}

impl Sm {
    fn pace(&self) -> Pace {
        Pace::of(self.demand, WHOLE_PERMILLE)
    }

    /// Advances the clock to now, at its pace since the last update.
    fn catch_up(&mut self, now: Time) {
        self.clock.advance(now - self.looked, self.pace());
        self.looked = now;
    }
}
