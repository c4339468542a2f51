//! The passing of time, from event to event.

use std::cmp::Reverse;

use super::Engine;
use crate::bandwidth::Pace;
use crate::group::{Context, Group, Notice};
use crate::{Event, EventKind, Stats, Time};

/// The end of time, after 146 years, so that sums of times stay in range.
const TIME_MAX: Time = 1 << 62;

impl Engine {
    /// Records an event for the next return.
    pub(crate) fn emit(&mut self, time: Time, kind: EventKind) {
        self.events.push(Event { time, kind });
    }

    /// The paces that DRAM leaves to blocks and to copies.
    #[inline]
    fn paces(&self) -> (Pace, Pace) {
        let running = self.running().and_then(|group| self.groups.get(group));
        let demand = self.copies.demand + running.map_or(0, |entry| entry.group.memory.demand());
        (self.dram.blocks(demand), self.dram.copies(demand))
    }

    /// The time of the next change; the present if a change is due.
    pub(crate) fn next_internal(&self) -> Option<Time> {
        let (blocks, copies) = self.paces();
        let running = self.running().and_then(|group| self.groups.get(group));
        let waits =
            [running.and_then(|entry| entry.group.until_next(blocks)), self.copies.until_next(copies)];
        let mut next = self.next_outside_group();
        for wait in waits.into_iter().flatten() {
            next = next.min(self.now.saturating_add(wait));
        }
        (next <= TIME_MAX).then_some(next)
    }

    /// The time of the next change outside the running group and the copy engines; `Time::MAX` for
    /// never.
    fn next_outside_group(&self) -> Time {
        let timer = self.timers.peek().map_or(Time::MAX, |&Reverse((due, _, _))| due);
        timer.min(self.turn_ends().unwrap_or(Time::MAX)).max(self.now)
    }

    /// Moves time to `until`, with all changes that are due.
    pub(crate) fn progress(&mut self, until: Time) {
        let until = until.clamp(self.now, TIME_MAX);
        loop {
            self.settle();
            if self.run_alone(until) {
                continue;
            }
            match self.next_internal() {
                Some(next) if next <= until => self.pass(next - self.now),
                _ => break,
            }
        }
        self.pass(until - self.now);
    }

    /// Lets time pass; no change may lie inside.
    fn pass(&mut self, dt: Time) {
        if dt == 0 {
            return;
        }
        let (blocks, copies) = self.paces();
        let mut rate = copies.passes(self.copies.demand);
        if let Some(group) = self.running()
            && let Some(entry) = self.groups.get_mut(group)
        {
            rate += blocks.passes(entry.group.memory.demand());
            entry.group.run(dt, blocks);
        }
        self.traffic += u128::from(rate) * u128::from(dt);
        self.copies.run(dt, copies);
        self.now += dt;
    }

    /// Makes all changes that are due at the present.
    fn settle(&mut self) {
        loop {
            self.pump();
            let mut acted = false;
            while let Some(&Reverse((due, _, work))) = self.timers.peek() {
                if due > self.now {
                    break;
                }
                self.timers.pop();
                self.fire(work);
                acted = true;
            }
            self.copies.settle(&mut self.notices);
            // Blocks that end with the slice have ended before the turn changes; blocks that could
            // be placed then are not placed.
            self.settle_group(Group::end_due);
            acted |= self.take_notices();
            self.take_turns();
            acted |= self.settle_group(Group::settle);
            acted |= self.take_notices();
            if acted || !self.to_pump.is_empty() {
                continue;
            }
            self.copies.start(&mut self.notices);
            if !self.take_notices() {
                return;
            }
        }
    }

    /// Lets the running group make its due changes; returns whether there were any.
    fn settle_group(&mut self, act: impl Fn(&mut Group, &Context<'_>, &mut Vec<Notice>, &mut Stats)) -> bool {
        let Some(entry) = self.running().and_then(|handle| self.groups.get_mut(handle)) else { return false };
        // At any pace, the time until a due change is 0 only if it is due now.
        let due = entry.group.until_next(Pace::FULL) == Some(0);
        if due {
            let context = Context { spec: &self.spec, layout: &self.layout, seed: self.seed, now: self.now };
            act(&mut entry.group, &context, &mut self.notices, &mut self.stats);
        }
        due
    }

    /// Lets the running group run by itself, from one of its events to the next, until it reports
    /// an event or a change elsewhere is due; returns whether it reported. The common case made
    /// cheap: no state outside the group is read meanwhile.
    fn run_alone(&mut self, until: Time) -> bool {
        if !self.copies.is_idle() {
            return false;
        }
        let other = self.next_outside_group();
        let Some(handle) = self.running() else { return false };
        let Some(entry) = self.groups.get_mut(handle) else { return false };
        let group = &mut entry.group;
        let mut context = Context { spec: &self.spec, layout: &self.layout, seed: self.seed, now: self.now };
        while self.notices.is_empty() {
            let demand = group.memory.demand();
            let pace = self.dram.blocks(demand);
            let Some(wait) = group.until_next(pace) else { break };
            let next = context.now.saturating_add(wait);
            if next > until || next >= other {
                break;
            }
            self.traffic += u128::from(pace.passes(demand)) * u128::from(wait);
            group.run(wait, pace);
            context.now = next;
            group.settle(&context, &mut self.notices, &mut self.stats);
        }
        self.now = context.now;
        self.take_notices()
    }

    /// Handles the reports of groups and copy engines; returns whether there were any.
    pub(crate) fn take_notices(&mut self) -> bool {
        let mut notices = std::mem::take(&mut self.notices);
        let any = !notices.is_empty();
        for notice in notices.drain(..) {
            match notice {
                Notice::Started { work } => self.started(work),
                Notice::Block { work, block, sm, start_ns } => {
                    let (time, work) = (self.now, crate::WorkId(work));
                    self.emit(time, EventKind::BlockStarted { work, block, sm, start_ns });
                }
                Notice::Done { work, records } => {
                    if let Some(records) = records {
                        let stream = self.works.get(work).map(|pending| pending.stream);
                        let group = stream.and_then(|stream| Some(self.streams.get(stream)?.group));
                        self.records.insert(work, (group.expect("a kernel's stream is there"), records));
                    }
                    self.finish(work);
                }
            }
        }
        self.notices = notices;
        any
    }
}
