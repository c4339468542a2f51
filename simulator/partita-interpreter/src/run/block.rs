//! A block: its warps, its shared memory and its barriers.

use super::clock::{cycles_to_ns, ns_to_cycles};
use super::meeting::Meetings;
use super::warp::{Context, Warp};
use super::{Failure, Fault, Launch, Memory, Progress, Start};
use crate::lanes::LANES;
use partita_ptx::Position;

/// Steps of a warp before the next one has its turn.
const TURN_STEPS: u64 = 1_000;
/// Instructions that an SM issues in a cycle.
const ISSUED_PER_CYCLE: u64 = 4;

/// A block that runs.
#[derive(Clone, Debug)]
pub struct Block {
    start: Start,
    warps: Vec<Warp>,
    shared: Vec<u8>,
    meetings: Meetings,
    /// Instructions of all warps.
    issued: u64,
    /// The warp whose turn it is.
    turn: usize,
}

impl Block {
    /// A block before its first instruction.
    #[must_use]
    pub fn new(launch: &Launch, start: Start) -> Self {
        let threads = launch.block.iter().fold(1u32, |product, size| product.saturating_mul(*size));
        let kernel = &launch.kernel;
        let count = threads.div_ceil(LANES as u32);
        let warps =
            (0..count).map(|index| Warp::new(kernel, index, threads - index * LANES as u32)).collect();
        let shared = kernel.shared_bytes as usize + launch.dynamic_shared as usize;
        Self {
            start,
            warps,
            shared: vec![0; shared],
            meetings: Meetings::new(count as usize),
            issued: 0,
            turn: 0,
        }
    }

    /// Where and when it started.
    #[must_use]
    pub fn start(&self) -> Start {
        self.start
    }

    /// Instructions that its warps have issued.
    #[must_use]
    pub fn issued(&self) -> u64 {
        self.issued
    }

    /// The time that it has taken, in nanoseconds: that of its longest warp, and at least that of
    /// issuing all instructions.
    #[must_use]
    pub fn elapsed_ns(&self, launch: &Launch) -> u64 {
        let longest = self.warps.iter().map(|warp| warp.cycles).max().unwrap_or(0);
        cycles_to_ns(longest.max(self.issued / ISSUED_PER_CYCLE), launch.clock_khz)
    }

    /// Moves the clocks of its warps to a time, unless they are later.
    pub fn catch_up(&mut self, launch: &Launch, now_ns: u64) {
        let cycles = ns_to_cycles(now_ns.saturating_sub(self.start.at_ns), launch.clock_khz);
        for warp in &mut self.warps {
            warp.cycles = warp.cycles.max(cycles);
        }
    }

    /// Runs about so many steps.
    ///
    /// # Errors
    /// The fault that ends the kernel.
    pub fn run(
        &mut self,
        launch: &Launch,
        memory: &mut dyn Memory,
        steps: u64,
    ) -> Result<Progress, Box<Failure>> {
        let mut left = steps;
        let mut idle = 0;
        loop {
            if self.warps.iter().all(Warp::has_ended) {
                return Ok(Progress::Done);
            }
            if left == 0 {
                return Ok(Progress::Running);
            }
            if idle == self.warps.len() {
                return Err(self.deadlock(launch));
            }
            let index = self.turn % self.warps.len();
            self.turn = index + 1;
            let warp = &mut self.warps[index];
            if !warp.can_run() {
                idle += 1;
                continue;
            }
            idle = 0;
            let mut context = Context {
                launch,
                start: &self.start,
                shared: &mut self.shared,
                meetings: &mut self.meetings,
                memory: &mut *memory,
                issued: &mut self.issued,
            };
            let turn = left.min(TURN_STEPS);
            let (spent, outcome) = warp.run(&mut context, turn);
            left = left.saturating_sub(spent.max(1));
            if let Err(fault) = outcome {
                let step = self.warps[index].step;
                return Err(self.failure(launch, step, fault));
            }
            self.meetings.end_complete(&mut self.warps);
        }
    }

    fn failure(&self, launch: &Launch, step: u32, fault: Fault) -> Box<Failure> {
        let at = launch.kernel.places.get(step as usize).copied().unwrap_or_default();
        Box::new(Failure { fault, kernel: launch.kernel.name.clone(), at, block: self.start.block })
    }

    fn deadlock(&self, launch: &Launch) -> Box<Failure> {
        let count = |mask: fn(&Warp) -> u32| self.warps.iter().map(|warp| mask(warp).count_ones()).sum();
        let fault = Fault::Deadlock {
            at_barriers: count(|warp| warp.at_barrier),
            in_warps: count(|warp| warp.waiting),
        };
        let step = self.warps.iter().find(|warp| !warp.has_ended()).map_or(0, |warp| warp.step);
        let mut failure = self.failure(launch, step, fault);
        if failure.at == Position::default() {
            failure.at = launch.kernel.places.first().copied().unwrap_or_default();
        }
        failure
    }
}
