//! [`Controller`]: watches a chain's throughput, searches when it has changed for good, and undoes
//! changes that turn out badly.
//!
//! # Its rules
//! * **Level.** The undisturbed throughput: the median of the first periods, then a slow average
//!   while the throughput stays within [`ControllerOptions::shift_permille`].
//! * **Hysteresis.** A period outside that range is a *deviation*. Only
//!   [`ControllerOptions::shift_periods`] of them in a row, all to the same side, are a *shift*,
//!   which starts another search. A shorter deviation is recorded and has no effect.
//! * **No oscillation.** After a search it rests for [`ControllerOptions::rest_periods`]. A search
//!   without a change doubles the rest, up to 64 times as long: a chain with an alternating input
//!   is not searched at every change, and not at all if it is back at its level when the rest is
//!   over. A search with a change restores the first length.
//! * **Rollback.** For [`ControllerOptions::probation_periods`] after a change, two periods in a
//!   row that are below the throughput before the search, by more than a quarter of a shift,
//!   restore the former allocation, in the second of them. That guards against effects that no
//!   search sees: a change that is bad only under later load, and an algorithm without a comparison
//!   at its end (the published one).
//! * **A chain that stands still** (no input) is not searched: there is no throughput to compare.

#[cfg(test)]
mod tests;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::{
    Allocation, Found, Plant, PublishedOptions, Room, SteadyOptions, Stop, Trial, published, steady,
};

/// The kind of search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Algorithm {
    /// Partita's own.
    Steady(SteadyOptions),
    /// The paper's.
    Published(PublishedOptions),
}

/// Options for watching a chain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControllerOptions {
    /// The search.
    pub algorithm: Algorithm,
    /// The size of a shift, in thousandths of the level.
    pub shift_permille: u32,
    /// Its length in periods in a row, at least 1.
    pub shift_periods: u32,
    /// Periods after a search without another one.
    pub rest_periods: u32,
    /// Periods after a change in which it is undone if the chain is slower than before.
    pub probation_periods: u32,
    /// The number of records; older ones are dropped.
    pub records_max: usize,
}

impl Default for ControllerOptions {
    /// Partita's search; 10 % for five periods; rests and probations of 20 periods; 256 records.
    fn default() -> Self {
        Self {
            algorithm: Algorithm::Steady(SteadyOptions::default()),
            shift_permille: 100,
            shift_periods: 5,
            rest_periods: 20,
            probation_periods: 20,
            records_max: 256,
        }
    }
}

/// An event or an action of the controller.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The period before it, counted from 1 since the controller began.
    pub period: u64,
    /// The event.
    pub what: Happening,
}

/// A finding or an action of the controller.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Happening {
    /// The throughput left its level for some periods and came back.
    Deviation {
        /// The level, in frames per second.
        level_frames_per_s: f64,
        /// The furthest throughput from it, in frames per second.
        frames_per_s: f64,
        /// Its length in periods.
        periods: u32,
    },
    /// The throughput left its level for good.
    Shift {
        /// The level, in frames per second.
        level_frames_per_s: f64,
        /// The present throughput, in frames per second.
        frames_per_s: f64,
    },
    Search {
        before: Allocation,
        /// The allocation now.
        after: Allocation,
        /// The throughput before, in frames per second.
        before_frames_per_s: f64,
        /// The throughput that the search measured with its result, in frames per second.
        after_frames_per_s: f64,
        /// Every measurement of it.
        trials: Vec<Trial>,
        /// Periods that it took.
        periods: u64,
    },
    /// The result of a search was undone.
    Rollback {
        /// The undone allocation.
        from: Allocation,
        /// The restored allocation.
        to: Allocation,
        /// The throughput that caused it, in frames per second.
        frames_per_s: f64,
        /// The throughput before the search, in frames per second.
        before_frames_per_s: f64,
    },
}

impl Happening {
    /// Its name, in one word.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Deviation { .. } => "deviation",
            Self::Shift { .. } => "shift",
            Self::Search { .. } => "search",
            Self::Rollback { .. } => "rollback",
        }
    }
}

/// Watches one chain.
#[derive(Clone, Debug)]
pub struct Controller {
    options: ControllerOptions,
    room: Room,
    in_force: Allocation,
    period: u64,
    phase: Phase,
    /// The usual throughput; `None` until it is known.
    level: Option<f64>,
    /// Periods since the level was invalidated.
    first: Vec<f64>,
    deviation: Option<Deviation>,
    rest: u32,
    /// Searches in a row without a change.
    fruitless: u32,
    wants_search: bool,
    /// The level after the last search, once known; until then the next level.
    searched: Searched,
    records: VecDeque<Record>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Searched {
    Never,
    JustNow,
    At(f64),
}

#[derive(Clone, Debug)]
enum Phase {
    Settled,
    /// A change that may still be undone.
    Probation {
        left: u32,
        before: Allocation,
        before_frames_per_s: f64,
        below: u32,
    },
}

#[derive(Clone, Copy, Debug)]
struct Deviation {
    periods: u32,
    is_above: bool,
    furthest: f64,
}

/// The longest rest, in doublings.
const DOUBLINGS_MAX: u32 = 6;
/// How far the level moves towards a new measurement in a period.
const FOLLOWS: f64 = 0.1;
/// Periods below the former throughput that undo a change.
const BELOW: u32 = 2;

impl Controller {
    /// Watches a chain in this room with the allocation `in_force`. It searches as soon as it
    /// knows the level.
    #[must_use]
    pub fn new(in_force: Allocation, room: Room, options: ControllerOptions) -> Self {
        Self {
            options,
            room,
            in_force,
            period: 0,
            phase: Phase::Settled,
            level: None,
            first: Vec::new(),
            deviation: None,
            rest: 0,
            fruitless: 0,
            wants_search: true,
            searched: Searched::Never,
            records: VecDeque::new(),
        }
    }

    #[must_use]
    pub fn in_force(&self) -> &Allocation {
        &self.in_force
    }

    /// The usual throughput, in frames per second; `None` until it is known.
    #[must_use]
    pub fn level_frames_per_s(&self) -> Option<f64> {
        self.level
    }

    /// Periods that have passed.
    #[must_use]
    pub fn periods(&self) -> u64 {
        self.period
    }

    /// The records, oldest first.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = &Record> + ExactSizeIterator {
        self.records.iter()
    }

    /// Searches at the next step, whatever the throughput is.
    pub fn search_now(&mut self) {
        self.wants_search = true;
        self.rest = 0;
        self.searched = Searched::Never;
    }

    /// Lets a period pass and acts on it, including a search with all its periods. Returns the
    /// period's throughput, in frames per second.
    ///
    /// # Errors
    /// Why the chain cannot be watched or steered any more. The allocation in force is then the
    /// former one or a better one.
    pub fn step<P: Plant + ?Sized>(&mut self, plant: &mut P) -> Result<f64, Stop> {
        let frames_per_s = plant.throughput()?;
        let frames_per_s = if frames_per_s.is_finite() { frames_per_s.max(0.0) } else { 0.0 };
        self.period += 1;
        self.rest = self.rest.saturating_sub(1);
        if self.on_probation(frames_per_s, plant)? {
            return Ok(frames_per_s);
        }
        let Some(level) = self.level else {
            self.find_level(frames_per_s);
            return Ok(frames_per_s);
        };
        self.compare(level, frames_per_s);
        // Not if the level has just been lost.
        if let Some(level) = self.level
            && self.wants_search
            && self.rest == 0
            && frames_per_s > 0.0
        {
            self.wants_search = false;
            if !self.is_searched(level) {
                self.search(level, plant)?;
            }
        }
        Ok(frames_per_s)
    }

    /// Undoes a change that has made the chain slower; returns whether it did.
    fn on_probation<P: Plant + ?Sized>(&mut self, frames_per_s: f64, plant: &mut P) -> Result<bool, Stop> {
        let tolerance = f64::from(self.options.shift_permille) / 4_000.0;
        let Phase::Probation { left, before, before_frames_per_s, below } = &mut self.phase else {
            return Ok(false);
        };
        let is_below = frames_per_s < *before_frames_per_s * (1.0 - tolerance);
        *below = if is_below { *below + 1 } else { 0 };
        if *below >= BELOW {
            let (to, before_frames_per_s) = (before.clone(), *before_frames_per_s);
            plant.apply(&to)?;
            let from = core::mem::replace(&mut self.in_force, to.clone());
            self.phase = Phase::Settled;
            self.fruitless += 1;
            self.rest = self.rest_periods();
            // Either the search was wrong, or the chain has changed since.
            self.wants_search = true;
            self.searched = Searched::Never;
            self.look_again();
            self.record(Happening::Rollback { from, to, frames_per_s, before_frames_per_s });
            return Ok(true);
        }
        *left = left.saturating_sub(1);
        if *left == 0 && *below == 0 {
            self.phase = Phase::Settled;
        }
        Ok(false)
    }

    fn find_level(&mut self, frames_per_s: f64) {
        // A chain that stands still has no level.
        if frames_per_s > 0.0 {
            self.first.push(frames_per_s);
        }
        if self.first.len() >= self.options.shift_periods.max(1) as usize {
            self.first.sort_unstable_by(f64::total_cmp);
            let level = self.first[self.first.len() / 2];
            self.level = Some(level);
            self.first.clear();
            if self.searched == Searched::JustNow {
                self.searched = Searched::At(level);
            }
        }
    }

    /// Compares a period with the level.
    fn compare(&mut self, level: f64, frames_per_s: f64) {
        let band = level * f64::from(self.options.shift_permille) / 1_000.0;
        let off = frames_per_s - level;
        let is_above = off > 0.0;
        let is_over =
            off.abs() <= band || self.deviation.is_some_and(|deviation| deviation.is_above != is_above);
        if is_over && let Some(Deviation { periods, furthest: frames_per_s, .. }) = self.deviation.take() {
            self.record(Happening::Deviation { level_frames_per_s: level, frames_per_s, periods });
        }
        if off.abs() <= band {
            self.level = Some(level + FOLLOWS * off);
            return;
        }
        let deviation =
            self.deviation.get_or_insert(Deviation { periods: 0, is_above, furthest: frames_per_s });
        deviation.periods += 1;
        if (frames_per_s - level).abs() > (deviation.furthest - level).abs() {
            deviation.furthest = frames_per_s;
        }
        if deviation.periods >= self.options.shift_periods.max(1) {
            self.look_again();
            self.wants_search = true;
            self.record(Happening::Shift { level_frames_per_s: level, frames_per_s });
        }
    }

    /// The level has to be found again.
    fn look_again(&mut self) {
        self.level = None;
        self.first.clear();
        self.deviation = None;
    }

    fn search<P: Plant + ?Sized>(&mut self, level: f64, plant: &mut P) -> Result<(), Stop> {
        let before = self.in_force.clone();
        let Found { allocation: after, frames_per_s, trials, periods } = match &self.options.algorithm {
            Algorithm::Steady(options) => steady(plant, &before, &self.room, options)?,
            Algorithm::Published(options) => published(plant, &before, &self.room, options)?.0,
        };
        self.period += periods;
        self.fruitless = if after == before { self.fruitless + 1 } else { 0 };
        self.rest = self.rest_periods();
        self.searched = Searched::JustNow;
        self.in_force = after.clone();
        self.phase = match after == before {
            true => Phase::Settled,
            false => Phase::Probation {
                left: self.options.probation_periods,
                before: before.clone(),
                before_frames_per_s: level,
                below: 0,
            },
        };
        self.look_again();
        self.record(Happening::Search {
            before,
            after,
            before_frames_per_s: level,
            after_frames_per_s: frames_per_s,
            trials,
            periods,
        });
        Ok(())
    }

    /// Whether the chain has the throughput that it had after the last search.
    fn is_searched(&self, level: f64) -> bool {
        let Searched::At(searched) = self.searched else { return false };
        (level - searched).abs() <= searched * f64::from(self.options.shift_permille) / 1_000.0
    }

    fn rest_periods(&self) -> u32 {
        self.options.rest_periods.saturating_mul(1 << self.fruitless.min(DOUBLINGS_MAX))
    }

    fn record(&mut self, what: Happening) {
        while self.records.len() >= self.options.records_max.max(1) {
            self.records.pop_front();
        }
        self.records.push_back(Record { period: self.period, what });
    }
}
