//! Operations on the values of a warp's threads.

use super::access::changed;
use super::warp::{Flow, Together as Group, Warp, threads};
use crate::kernel::{Kernel, Shuffle, Source, Together, Vote};
use crate::lanes::{LANES, Lanes};

impl Warp {
    /// Runs an operation for the threads whose fellow members have all come; the others wait.
    pub(super) fn together(
        &mut self,
        kernel: &Kernel,
        group: Group,
        members: Option<Source>,
        what: &Together,
    ) -> Flow {
        let Some(members) = members else {
            self.perform(kernel, group, what);
            return Flow::Next;
        };
        let members = *self.values(kernel, group.base, members);
        let is_here =
            |lane: &usize| self.next[*lane] == group.step && self.bases[*lane] as usize == group.base;
        let waiting = threads(self.waiting & self.alive).filter(is_here);
        let present = waiting.fold(group.active, |mask, lane| mask | 1 << lane);
        let (mut left, mut ready, mut blocked) = (group.active, 0, 0);
        while left != 0 {
            let mask = members[left.trailing_zeros() as usize] as u32;
            let same = threads(present).filter(|lane| members[*lane] as u32 == mask);
            let same = same.fold(0, |all, lane| all | 1 << lane);
            left &= !same;
            if mask & self.alive & !same == 0 {
                self.perform(kernel, Group { active: same, ..group }, what);
                ready |= same;
            } else {
                blocked |= same;
            }
        }
        if ready == group.active && group.active == group.threads {
            return Flow::Next;
        }
        self.waiting = (self.waiting & !ready) | blocked;
        for lane in threads(group.threads | ready) {
            self.next[lane] = if blocked >> lane & 1 == 1 { group.step } else { group.step + 1 };
        }
        Flow::Apart
    }

    fn perform(&mut self, kernel: &Kernel, group: Group, what: &Together) {
        let same = |value: u64| [value; LANES];
        match *what {
            Together::Meet => {}
            Together::Shuffle { how, to, inside, value, by, limits } => {
                let (values, by, limits) = (
                    self.values(kernel, group.base, value),
                    self.values(kernel, group.base, by),
                    self.values(kernel, group.base, limits),
                );
                let (mut out, mut found) = ([0; LANES], [0; LANES]);
                for lane in 0..LANES {
                    let from = source(how, lane as u32, by[lane] as u32, limits[lane] as u32);
                    found[lane] = u64::from(from.is_some());
                    out[lane] = values[from.unwrap_or(lane as u32) as usize];
                }
                self.set(group, to, &out);
                if let Some(inside) = inside {
                    self.set(group, inside, &found);
                }
            }
            Together::Vote { how, to, value } => {
                let yes = mask(self.values(kernel, group.base, value), group.active);
                let result = match how {
                    Vote::All => u64::from(yes == group.active),
                    Vote::Any => u64::from(yes != 0),
                    Vote::Uniform => u64::from(yes == 0 || yes == group.active),
                    Vote::Ballot => u64::from(yes),
                };
                self.set(group, to, &same(result));
            }
            Together::MatchAny { to, value } => {
                let values = self.values(kernel, group.base, value);
                let mut out = [0; LANES];
                for lane in threads(group.active) {
                    let equal = threads(group.active).filter(|other| values[*other] == values[lane]);
                    out[lane] = u64::from(equal.fold(0u32, |mask, other| mask | 1 << other));
                }
                self.set(group, to, &out);
            }
            Together::MatchAll { to, all, value } => {
                let values = self.values(kernel, group.base, value);
                let first = values[group.active.trailing_zeros() as usize % LANES];
                let are_equal = threads(group.active).all(|lane| values[lane] == first);
                self.set(group, to, &same(if are_equal { u64::from(group.active) } else { 0 }));
                if let Some(all) = all {
                    self.set(group, all, &same(u64::from(are_equal)));
                }
            }
            Together::Reduce { how, ty, to, value } => {
                let values = self.values(kernel, group.base, value);
                let result = threads(group.active).map(|lane| values[lane]);
                let result = result.reduce(|all, value| changed(how, ty, all, value, value)).unwrap_or(0);
                self.set(group, to, &same(result));
            }
            Together::Elect { leader, chosen } => {
                let first = group.active.trailing_zeros();
                self.set(group, leader, &same(u64::from(first)));
                self.set(group, chosen, &std::array::from_fn(|lane| u64::from(lane as u32 == first)));
            }
        }
    }
}

/// The threads whose value is true.
fn mask(values: &Lanes, of: u32) -> u32 {
    threads(of).fold(0, |mask, lane| mask | (values[lane] as u32 & 1) << lane)
}

/// The thread that a shuffle reads from, if it lies within the limits.
fn source(how: Shuffle, lane: u32, by: u32, limits: u32) -> Option<u32> {
    let (by, clamp, segment) = (by & 31, limits & 31, limits >> 8 & 31);
    let most = (lane & segment) | (clamp & !segment);
    let from = match how {
        Shuffle::Up => return lane.checked_sub(by).filter(|from| *from >= most),
        Shuffle::Down => lane + by,
        Shuffle::Butterfly => lane ^ by,
        Shuffle::Index => (lane & segment) | (by & !segment),
    };
    (from <= most).then_some(from)
}
