//! The barriers of a block.

use crate::kernel::Census;
use crate::lanes::LANES;

/// Barriers of a block.
pub(super) const BARRIERS: u64 = 16;

/// A warp, as a barrier knows it.
pub(super) trait Member {
    /// Threads that have not ended.
    fn alive(&self) -> u32;
    /// Its clock.
    fn cycles(&self) -> u64;
    /// Lets threads go on that waited, at a time.
    fn go_on(&mut self, of: u32, cycles: u64);
    /// Stores one value for some threads in a row of registers.
    fn set_row(&mut self, row: usize, of: u32, value: u64);
}

/// Who waits for the result of a barrier: the warp, its threads, and the row of the register.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    warp: usize,
    threads: u32,
    row: usize,
    census: Census,
}

#[derive(Clone, Debug, Default)]
struct Meeting {
    /// Threads that have come, by warp.
    arrived: Vec<u32>,
    /// Those that wait.
    waiting: Vec<u32>,
    /// Threads that it needs; all of the block if not given.
    needed: Option<u32>,
    count: u32,
    all: bool,
    any: bool,
    wanted: Vec<Wanted>,
}

/// An arrival of some threads of a warp.
pub(super) struct Arrival {
    pub(super) number: usize,
    pub(super) warp: usize,
    pub(super) threads: u32,
    pub(super) needed: Option<u32>,
    pub(super) waits: bool,
    /// What is computed, of whose predicates, for which row of registers.
    pub(super) census: Option<(Census, u32, usize)>,
}

/// The barriers of a block.
#[derive(Clone, Debug)]
pub(super) struct Meetings {
    warps: usize,
    open: Vec<(usize, Meeting)>,
    changed: bool,
}

impl Meetings {
    pub(super) fn new(warps: usize) -> Self {
        Self { warps, open: Vec::new(), changed: false }
    }

    /// Threads arrive.
    pub(super) fn arrive(&mut self, arrival: &Arrival) {
        let at = self.open.iter().position(|(number, _)| *number == arrival.number);
        let at = at.unwrap_or_else(|| {
            let empty = vec![0; self.warps];
            let meeting = Meeting { arrived: empty.clone(), waiting: empty, all: true, ..Meeting::default() };
            self.open.push((arrival.number, meeting));
            self.open.len() - 1
        });
        let meeting = &mut self.open[at].1;
        meeting.arrived[arrival.warp] |= arrival.threads;
        if arrival.waits {
            meeting.waiting[arrival.warp] |= arrival.threads;
        }
        meeting.needed = arrival.needed.or(meeting.needed);
        if let Some((census, yes, row)) = arrival.census {
            meeting.count += yes.count_ones();
            meeting.any |= yes != 0;
            meeting.all &= yes == arrival.threads;
            let (warp, threads) = (arrival.warp, arrival.threads);
            meeting.wanted.push(Wanted { warp, threads, row, census });
        }
        self.changed = true;
    }

    /// Threads have ended, for which others may have waited.
    pub(super) fn look_again(&mut self) {
        self.changed = true;
    }

    /// Lets those go on whose barrier is complete.
    pub(super) fn end_complete(&mut self, warps: &mut [impl Member]) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        self.open.retain(|(_, meeting)| {
            let is_complete = meeting.is_complete(warps);
            if is_complete {
                meeting.end(warps);
            }
            !is_complete
        });
    }
}

impl Meeting {
    /// Threads that have ended count as arrived, as on hardware.
    fn is_complete(&self, warps: &[impl Member]) -> bool {
        match self.needed {
            None => warps.iter().zip(&self.arrived).all(|(warp, arrived)| warp.alive() & !arrived == 0),
            Some(needed) => {
                let arrived = warps.iter().zip(&self.arrived).filter(|(_, arrived)| **arrived != 0);
                let count = arrived.map(|(warp, arrived)| match warp.alive() & !arrived {
                    0 => LANES as u32,
                    _ => arrived.count_ones(),
                });
                count.sum::<u32>() >= needed
            }
        }
    }

    fn end(&self, warps: &mut [impl Member]) {
        let latest = warps.iter().zip(&self.arrived).filter(|(_, arrived)| **arrived != 0);
        let latest = latest.map(|(warp, _)| warp.cycles()).max().unwrap_or(0);
        for (warp, waiting) in warps.iter_mut().zip(&self.waiting) {
            if *waiting != 0 {
                warp.go_on(*waiting, latest);
            }
        }
        for wanted in &self.wanted {
            let value = match wanted.census {
                Census::Count => u64::from(self.count),
                Census::And => u64::from(self.all),
                Census::Or => u64::from(self.any),
            };
            warps[wanted.warp].set_row(wanted.row, wanted.threads, value);
        }
    }
}
