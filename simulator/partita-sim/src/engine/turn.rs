//! Time slicing: the group that the compute engine serves.
//!
//! Groups with kernels take turns in order of creation. A group without kernels yields at once; one
//! with kernels is preempted at the end of its slice, the device's or its own, if another waits,
//! with its running blocks frozen. Slices are counted from the group's start, also while no other
//! group waits: a late group waits for the end of the current slice. A launch that can never be
//! dispatched uses its group's turns like any other.

use super::Engine;
use crate::{EventKind, GroupId, Time};

/// The state of the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// No group has it.
    Idle,
    /// A group has it; it may be idle if no other group has work.
    Running {
        group: u64,
        /// The start of its slices.
        since: Time,
        /// When it must yield; `None` while no group waits.
        ends: Option<Time>,
    },
    /// The engine saves one group's state and loads another's.
    Switching { to: u64, until: Time },
}

impl Engine {
    /// The group that runs.
    #[inline]
    pub(crate) fn running(&self) -> Option<u64> {
        match self.turn {
            Turn::Running { group, .. } => Some(group),
            _ => None,
        }
    }

    /// When the turn changes by itself.
    #[inline]
    pub(crate) fn turn_ends(&self) -> Option<Time> {
        match self.turn {
            Turn::Idle => None,
            Turn::Running { ends, .. } => ends,
            Turn::Switching { until, .. } => Some(until),
        }
    }

    /// Passes the turn on if it is due.
    pub(crate) fn take_turns(&mut self) {
        loop {
            let before = self.turn;
            self.turn = match before {
                Turn::Idle => match self.next_runnable(None) {
                    Some(group) => self.begin(group, None),
                    None => Turn::Idle,
                },
                Turn::Running { group, since, ends } => self.go_on(group, since, ends),
                Turn::Switching { to, until } if until <= self.now => {
                    if self.groups.get(to).is_some() {
                        let time = self.now;
                        self.emit(time, EventKind::GroupSwitched { group: GroupId(to) });
                        self.groups.get_mut(to).expect("looked at just now").group.thaw(time);
                        Turn::Running { group: to, since: time, ends: None }
                    } else {
                        Turn::Idle
                    }
                }
                Turn::Switching { .. } => before,
            };
            if self.turn == before {
                return;
            }
        }
    }

    fn go_on(&mut self, group: u64, since: Time, ends: Option<Time>) -> Turn {
        let Some(state) = self.groups.get(group).map(|entry| &entry.group) else { return Turn::Idle };
        let busy = state.is_runnable() || state.arriving > 0;
        let moves = state.can_progress() || state.arriving > 0;
        let Some(next) = self.next_runnable(Some(group)) else {
            return Turn::Running { group, since, ends: None };
        };
        if !busy {
            return self.begin(next, Some(group));
        }
        // If no group could progress in its turn, taking turns is not an event.
        if !moves && !self.groups.iter().any(|(_, entry)| entry.group.can_progress()) {
            return Turn::Running { group, since, ends: None };
        }
        let own = self.groups.get(group).and_then(|entry| entry.slice_ns);
        let slice = own.unwrap_or(self.spec.scheduler.slice_ns).max(1);
        let ends = ends.unwrap_or_else(|| since + ((self.now - since) / slice + 1) * slice);
        if ends <= self.now {
            self.begin(next, Some(group))
        } else {
            Turn::Running { group, since, ends: Some(ends) }
        }
    }

    /// Turns from one group to another.
    fn begin(&mut self, to: u64, from: Option<u64>) -> Turn {
        let now = self.now;
        let Some(from) = from else {
            if let Some(entry) = self.groups.get_mut(to) {
                entry.group.thaw(now);
            }
            return Turn::Running { group: to, since: now, ends: None };
        };
        let mut cost = self.spec.scheduler.switch_ns;
        for group in [from, to] {
            if self.groups.get(group).is_some_and(|entry| entry.group.resident > 0) {
                cost += self.spec.scheduler.preempt_ns;
            }
        }
        if let Some(entry) = self.groups.get_mut(from) {
            entry.group.freeze(now);
        }
        self.stats.switches += 1;
        Turn::Switching { to, until: now + cost }
    }

    /// The first group after `from`, in order of creation and cyclically, that has kernels; not
    /// `from` itself.
    fn next_runnable(&self, from: Option<u64>) -> Option<u64> {
        let start =
            from.and_then(|from| self.order.iter().position(|&group| group == from)).map_or(0, |at| at + 1);
        let count = self.order.len();
        (0..count)
            .map(|offset| self.order[(start + offset) % count])
            .filter(|&group| Some(group) != from)
            .find(|&group| self.groups.get(group).is_some_and(|entry| entry.group.is_runnable()))
    }
}
