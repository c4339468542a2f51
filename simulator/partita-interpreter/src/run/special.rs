//! Special registers.

use super::clock::ns_to_cycles;
use super::warp::{Context, Warp};
use crate::kernel::Special;
use crate::lanes::{LANES, Lanes};

/// The timer's step, in nanoseconds. A thread that would read the same time again waits for the
/// next step, so that a loop which waits for a time has few rounds.
const TICK_NS: u64 = 1_024;

impl Warp {
    /// The values of a special register.
    pub(super) fn special(&mut self, context: &Context<'_>, what: Special) -> Lanes {
        let launch = context.launch;
        let [width, height, _] = launch.block.map(u64::from);
        let thread = |lane: usize| u64::from(self.index) * LANES as u64 + lane as u64;
        let size = |of: [u32; 3], axis: u8| u64::from(of[usize::from(axis)]);
        let same = |value: u64| [value; LANES];
        let masks = |mask: fn(u32) -> u32| std::array::from_fn(|lane| u64::from(mask(1 << lane)));
        match what {
            Special::Thread(0) => std::array::from_fn(|lane| thread(lane) % width),
            Special::Thread(1) => std::array::from_fn(|lane| thread(lane) / width % height),
            Special::Thread(_) => std::array::from_fn(|lane| thread(lane) / width / height),
            Special::Threads(axis) => same(size(launch.block, axis)),
            Special::Block(axis) => {
                let [width, height, _] = launch.grid.map(u64::from);
                let block = context.start.block;
                same([block % width, block / width % height, block / width / height][usize::from(axis)])
            }
            Special::Blocks(axis) => same(size(launch.grid, axis)),
            Special::Lane => std::array::from_fn(|lane| lane as u64),
            Special::Warp => same(u64::from(self.index)),
            Special::Warps => {
                let threads: u64 = launch.block.iter().map(|size| u64::from(*size)).product();
                same(threads.div_ceil(LANES as u64))
            }
            Special::Sm => same(u64::from(context.start.sm)),
            Special::Sms => same(u64::from(launch.sms)),
            Special::Grid => same(launch.number),
            Special::Clock => same(self.cycles),
            Special::ClockHigh => same(self.cycles >> 32),
            Special::Timer => same(self.tick(context)),
            Special::TimerLow => same(self.tick(context) & u64::from(u32::MAX)),
            Special::TimerHigh => same(self.tick(context) >> 32),
            Special::LanesEqual => masks(|bit| bit),
            Special::LanesLess => masks(|bit| bit - 1),
            Special::LanesUpTo => masks(|bit| bit | (bit - 1)),
            Special::LanesGreater => masks(|bit| !(bit | (bit - 1))),
            Special::LanesFrom => masks(|bit| !(bit - 1)),
            Special::DynamicShared => same(u64::from(launch.dynamic_shared)),
            Special::AllShared => same(context.shared.len() as u64),
            Special::Zero => same(0),
            Special::One => same(1),
        }
    }

    fn tick(&mut self, context: &Context<'_>) -> u64 {
        let mut tick = self.now_ns(context) / TICK_NS;
        if self.tick == Some(tick) {
            tick += 1;
            let since_start = tick.saturating_mul(TICK_NS).saturating_sub(context.start.at_ns);
            self.cycles = self.cycles.max(ns_to_cycles(since_start, context.launch.clock_khz));
        }
        self.tick = Some(tick);
        tick.saturating_mul(TICK_NS)
    }
}
