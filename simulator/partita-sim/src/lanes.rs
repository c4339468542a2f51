//! Blocks that touch memory, by GPC: their ends, and their demand.
//!
//! A lane is one GPC's path to memory with its own clock ([`crate::bandwidth`] has the laws).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Time;
use crate::bandwidth::{Pace, PacedClock, time_for};
use crate::layout::Layout;
use crate::spec::DeviceSpec;

/// Largest number of lanes: one bit of a word each.
const LANES_MAX: usize = 64;

/// One GPC's blocks.
#[derive(Clone, Debug)]
struct Lane {
    /// Ends of blocks, by `clock`.
    ends: BinaryHeap<Reverse<(Time, u32)>>,
    /// Stands still while there is nothing to time.
    clock: PacedClock,
    /// The blocks' demand, in bytes per millisecond.
    demand: u64,
    /// What the GPC's SMs can draw together, in bytes per millisecond.
    width: u64,
    /// The pace by the width of the path.
    pace: Pace,
}

/// All of a group's blocks that touch memory.
#[derive(Clone, Debug)]
pub(crate) struct Lanes {
    lanes: Vec<Lane>,
    /// The lanes that have blocks.
    busy: u64,
    /// The demand of DRAM, in bytes per millisecond.
    demand: u64,
}

impl Lanes {
    /// # Panics
    /// A device of more than 64 GPCs.
    pub(crate) fn new(spec: &DeviceSpec, layout: &Layout) -> Self {
        assert!(layout.gpcs.len() <= LANES_MAX, "a device of more than {LANES_MAX} GPCs is not modelled");
        let lane = |sms: u64| Lane {
            ends: BinaryHeap::new(),
            clock: PacedClock::default(),
            demand: 0,
            width: (spec.memory.sm_bytes_per_s / 1_000).saturating_mul(sms),
            pace: Pace::FULL,
        };
        let lanes = layout.gpcs.iter().map(|gpc| lane(gpc.iter().count() as u64)).collect();
        Self { lanes, busy: 0, demand: 0 }
    }

    /// The demand of DRAM, in bytes per millisecond.
    #[inline]
    pub(crate) fn demand(&self) -> u64 {
        self.demand
    }

    /// Blocks followed, one by one or together.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lanes.iter().map(|lane| lane.ends.len()).sum()
    }

    /// A block, or several that end together, of this length starts in a GPC.
    #[inline]
    pub(crate) fn push(&mut self, gpc: usize, length_ns: Time, cohort: u32) {
        let lane = &mut self.lanes[gpc];
        lane.ends.push(Reverse((lane.clock.ceil().saturating_add(length_ns), cohort)));
        self.busy |= 1 << gpc;
    }

    /// Changes the demand of a GPC's blocks.
    #[inline]
    pub(crate) fn ask(&mut self, gpc: usize, more: u64, less: u64) {
        let lane = &mut self.lanes[gpc];
        self.demand -= lane.demand.min(lane.width);
        lane.demand = lane.demand + more - less;
        self.demand += lane.demand.min(lane.width);
        lane.pace = Pace::of(lane.demand, lane.width);
    }

    fn busy(&self) -> impl Iterator<Item = usize> + use<> {
        let mut busy = self.busy;
        std::iter::from_fn(move || {
            let next = busy.trailing_zeros() as usize;
            busy &= busy.wrapping_sub(1);
            (next < LANES_MAX).then_some(next)
        })
    }

    /// How long until a block ends at this pace of DRAM; `Time::MAX` for never.
    #[inline]
    pub(crate) fn until_next(&self, dram: Pace) -> Time {
        let (mut nearest, mut time) = (u128::MAX, Time::MAX);
        for lane in self.busy().map(|at| &self.lanes[at]) {
            let Some(&Reverse((due, _))) = lane.ends.peek() else { continue };
            if lane.pace == Pace::FULL {
                // All have one pace: the one with the shortest rest is the first.
                nearest = nearest.min(lane.clock.missing(due));
            } else {
                time = time.min(lane.clock.until(due, dram.and(lane.pace)));
            }
        }
        if nearest < u128::MAX { time.min(time_for(nearest, dram)) } else { time }
    }

    /// Lets time pass; no end may lie inside.
    #[inline]
    pub(crate) fn run(&mut self, dt: Time, dram: Pace) {
        for at in self.busy() {
            let lane = &mut self.lanes[at];
            lane.clock.advance(dt, dram.and(lane.pace));
        }
    }

    /// Removes a block that ends now.
    #[inline]
    pub(crate) fn pop_due(&mut self) -> Option<u32> {
        for at in self.busy() {
            let lane = &mut self.lanes[at];
            if let Some(&Reverse((due, cohort))) = lane.ends.peek()
                && due <= lane.clock.now()
            {
                lane.ends.pop();
                if lane.ends.is_empty() {
                    self.busy &= !(1 << at);
                }
                return Some(cohort);
            }
        }
        None
    }

    /// Removes the blocks that fail the predicate.
    pub(crate) fn retain(&mut self, keep: impl Fn(u32) -> bool) {
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            lane.ends.retain(|&Reverse((_, cohort))| keep(cohort));
            if lane.ends.is_empty() {
                self.busy &= !(1 << at);
            }
        }
    }
}
