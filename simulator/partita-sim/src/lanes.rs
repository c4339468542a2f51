//! Blocks that touch memory, by GPC: their ends, and their demand.
//!
//! Each GPC has one path to memory and two lanes with a clock each: one for the blocks that reach
//! DRAM, and one for those whose traffic L2 serves ([`crate::bandwidth`] has the laws).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Time;
use crate::bandwidth::{Pace, PacedClock, time_for};
use crate::layout::Layout;
use crate::spec::DeviceSpec;

/// Largest number of lanes: one bit of a word each.
const LANES_MAX: usize = 64;

/// What a block asks of memory, in bytes per millisecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    /// What DRAM serves.
    pub(crate) dram: u64,
    /// What L2 serves.
    pub(crate) l2: u64,
}

impl Demand {
    /// The demand of so many blocks.
    #[inline]
    pub(crate) fn times(self, blocks: u64) -> Self {
        Self { dram: self.dram * blocks, l2: self.l2 * blocks }
    }
}

/// Some of one GPC's blocks.
#[derive(Clone, Debug, Default)]
struct Lane {
    /// Ends of blocks, by `clock`.
    ends: BinaryHeap<Reverse<(Time, u32)>>,
    /// Stands still while there is nothing to time.
    clock: PacedClock,
}

/// Width of an SM's port to L2.
const PORT_BYTES_PER_CLOCK: u64 = 64;

/// One GPC's path to memory.
#[derive(Clone, Debug)]
struct Path {
    /// The demand of the GPC's blocks.
    demand: Demand,
    /// What the GPC's SMs can draw from DRAM together, in bytes per millisecond.
    draw: u64,
    /// What their ports pass together, in bytes per millisecond.
    width: u64,
    /// The pace of the blocks that reach DRAM.
    drawing: Pace,
    /// The pace by the width alone.
    passing: Pace,
}

impl Path {
    fn new(spec: &DeviceSpec, sms: u64) -> Self {
        let draw = (spec.memory.sm_bytes_per_s / 1_000).saturating_mul(sms);
        let width = (u64::from(spec.clocks.sm_khz) * PORT_BYTES_PER_CLOCK).saturating_mul(sms).max(draw);
        Self { demand: Demand::default(), draw, width, drawing: Pace::FULL, passing: Pace::FULL }
    }

    fn ask(&mut self, more: Demand, less: Demand) {
        self.demand.dram = self.demand.dram + more.dram - less.dram;
        self.demand.l2 = self.demand.l2 + more.l2 - less.l2;
        self.passing = Pace::of(self.drawn() + self.demand.l2, self.width);
        self.drawing = Pace::of(self.demand.dram, self.draw).and(self.passing);
    }

    /// What its SMs draw from DRAM where the ports are wide enough, in bytes per millisecond.
    fn drawn(&self) -> u64 {
        self.demand.dram.min(self.draw)
    }

    /// What reaches DRAM, in bytes per millisecond.
    fn passes_to_dram(&self) -> u64 {
        self.passing.passes(self.drawn())
    }
}

/// All of a group's blocks that touch memory.
#[derive(Clone, Debug)]
pub(crate) struct Lanes {
    paths: Vec<Path>,
    /// Those of blocks that reach DRAM, one for each path, and then those of the others.
    lanes: Vec<Lane>,
    /// The lanes that have blocks.
    busy: u64,
    /// The demand of DRAM, in bytes per millisecond.
    demand: u64,
}

impl Lanes {
    /// # Panics
    /// A device of more than 32 GPCs.
    pub(crate) fn new(spec: &DeviceSpec, layout: &Layout) -> Self {
        let gpcs = layout.gpcs.len();
        assert!(2 * gpcs <= LANES_MAX, "a device of {gpcs} GPCs is not modelled");
        let paths = layout.gpcs.iter().map(|gpc| Path::new(spec, gpc.iter().count() as u64)).collect();
        Self { paths, lanes: vec![Lane::default(); 2 * gpcs], busy: 0, demand: 0 }
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

    /// A block of this demand, or several that end together, of this length starts in a GPC.
    #[inline]
    pub(crate) fn push(&mut self, gpc: usize, demand: Demand, length_ns: Time, cohort: u32) {
        let at = if demand.dram > 0 { gpc } else { self.paths.len() + gpc };
        let lane = &mut self.lanes[at];
        lane.ends.push(Reverse((lane.clock.ceil().saturating_add(length_ns), cohort)));
        self.busy |= 1 << at;
    }

    /// Changes the demand of a GPC's blocks.
    #[inline]
    pub(crate) fn ask(&mut self, gpc: usize, more: Demand, less: Demand) {
        let path = &mut self.paths[gpc];
        self.demand -= path.passes_to_dram();
        path.ask(more, less);
        self.demand += path.passes_to_dram();
    }

    /// The pace of a lane where DRAM has this pace, and whether it is DRAM's alone.
    #[inline]
    fn pace(&self, at: usize, dram: Pace) -> (Pace, bool) {
        match at.checked_sub(self.paths.len()) {
            None if self.paths[at].drawing == Pace::FULL => (dram, true),
            None => (dram.and(self.paths[at].drawing), false),
            Some(gpc) => (self.paths[gpc].passing, false),
        }
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
        for at in self.busy() {
            let lane = &self.lanes[at];
            let Some(&Reverse((due, _))) = lane.ends.peek() else { continue };
            match self.pace(at, dram) {
                // All have one pace: the one with the shortest rest is the first.
                (_, true) => nearest = nearest.min(lane.clock.missing(due)),
                (pace, false) => time = time.min(lane.clock.until(due, pace)),
            }
        }
        if nearest < u128::MAX { time.min(time_for(nearest, dram)) } else { time }
    }

    /// Lets time pass; no end may lie inside.
    #[inline]
    pub(crate) fn run(&mut self, dt: Time, dram: Pace) {
        for at in self.busy() {
            let (pace, _) = self.pace(at, dram);
            self.lanes[at].clock.advance(dt, pace);
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
