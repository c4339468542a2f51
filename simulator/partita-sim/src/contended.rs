//! Blocks that contend for what their SM can issue: when they end.
//!
//! A block may say which share of its SM's throughput it takes while it is alone there
//! ([`crate::KernelWork::sm_permille`]). While the blocks of an SM ask for more than the SM has,
//! all of them that asked run slower by the same factor, so the SM does as much as it can and never
//! more: two blocks that could each have the whole SM take twice as long together as one alone.
//! That is what the matrix product through shared memory was measured to do on an H200 (an SM with
//! eleven of its blocks takes eleven times as long as with one, whether they run in pairs or alone:
//! the law that reproduces `research/bench/results/experiments/model_against_hardware.md`). Blocks that say
//! nothing keep their pace.
//!
//! Each SM has a clock that runs slower by its factor and times its blocks. The factor is the SM's
//! own affair, so the time of its next end is known until one of its blocks begins or ends; a queue
//! holds these times, and what has become untrue is skipped.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Time;
use crate::bandwidth::{Pace, PacedClock};

/// What an SM has to give.
const WHOLE_PERMILLE: u64 = 1_000;

/// One SM.
#[derive(Clone, Debug)]
struct Sm {
    /// Ends of blocks, by `clock`.
    ends: BinaryHeap<Reverse<(Time, u32)>>,
    clock: PacedClock,
    /// When the clock was last looked at, by the group's clock.
    looked: Time,
    /// What the blocks ask for, in thousandths of the SM.
    demand: u64,
    /// Counts what changed: an entry of the queue with another number is untrue.
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

    /// What the blocks of an SM ask for, in thousandths.
    #[cfg(test)]
    pub(crate) fn demand(&self, sm: usize) -> u64 {
        self.sms[sm].demand
    }

    /// A block, or several that end together, of this length begins on an SM. What it asks for is
    /// told by [`Self::ask`] before.
    pub(crate) fn push(&mut self, at: usize, length_ns: Time, cohort: u32, now: Time) {
        let sm = &mut self.sms[at];
        sm.catch_up(now);
        sm.ends.push(Reverse((sm.clock.ceil().saturating_add(length_ns), cohort)));
        self.foresee(at);
    }

    /// Changes what an SM's blocks ask for.
    pub(crate) fn ask(&mut self, at: usize, more: u64, less: u64, now: Time) {
        let sm = &mut self.sms[at];
        sm.catch_up(now);
        sm.demand = sm.demand + more - less;
        self.foresee(at);
    }

    /// When the next block ends, by the group's clock; `Time::MAX` for never.
    #[inline]
    pub(crate) fn next_due(&self) -> Time {
        // An untrue entry is never on top: `foresee` and `pop_due` see to it.
        self.next.peek().map_or(Time::MAX, |&Reverse((due, _, _))| due)
    }

    /// Takes something out that has ended.
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

    /// Takes out what is not to be kept.
    pub(crate) fn retain(&mut self, keep: impl Fn(u32) -> bool) {
        for at in 0..self.sms.len() {
            let before = self.sms[at].ends.len();
            self.sms[at].ends.retain(|&Reverse((_, cohort))| keep(cohort));
            if self.sms[at].ends.len() != before {
                self.foresee(at);
            }
        }
    }

    /// Writes down anew when an SM's next block ends.
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

    /// Lets the clock run until now, at the pace that it has had since it was looked at.
    fn catch_up(&mut self, now: Time) {
        self.clock.advance(now - self.looked, self.pace());
        self.looked = now;
    }
}
