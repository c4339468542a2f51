//! A tenant as the law knows it: what it counts, and what is remembered of it.

mod size;
mod target;

use alloc::vec::Vec;

use super::evidence::{Evidence, Mean};
use super::seen::{Level, Seen, Standing, Wanted};
use crate::histogram::{Bounds, Histogram};

/// Looks after a change whose bursts began before it.
const SETTLE_LOOKS: u32 = 1;
/// Looks after a change in which launches are no load: the hook arms graphs for the other TPCs, and
/// makes them again after 16 launches, and each of their kernels counts.
const ARM_LOOKS: u32 = 4;
/// The most that a look without work adds to a rest, in seconds.
const IDLE_LOOK_S_MAX: f64 = 0.25;
/// How fast the usual load follows a look.
const FOLLOWS: f64 = 0.02;
/// A load that is so many times the usual one has risen steeply, for so many looks.
const STEEP: f64 = 2.5;
const STEEP_LOOKS: u32 = 5;
/// The time to the next trial after a success, and without failures.
const INTERVAL_S: f64 = 2.0;
/// The longest one, in doublings.
const DOUBLINGS_MAX: u32 = 6;
/// How long a trial waits for the end of a burst of others, and the return from a failed one.
const OTHERS_S_MAX: f64 = 15.0;
const OTHERS_BACK_S_MAX: f64 = 1.0;
/// Bursts and seconds after which those on a number of TPCs are counted anew.
const HERE: (u64, f64) = (20_000, 30.0);
/// How long the bursts count that say how long 99 of 100 take now.
const RECENT_S: f64 = 5.0;
/// Numbers of TPCs that are remembered with their bursts.
const LEVELS_MAX: usize = 32;

/// A trial.
#[derive(Debug, Clone, Copy)]
pub(super) enum Trial {
    /// Whether the target holds on fewer.
    Target { from: u32 },
    /// Whether the mean time is within the bound on fewer, or better on more.
    Size { from: u32, to: u32, cap_before: u32, base: Mean, is_up: bool, began_s: f64 },
}

#[derive(Debug, Clone)]
pub(super) struct Calibration {
    /// Work in all, and in this batch of bursts, in seconds.
    worked_s: f64,
    batch_s: f64,
    /// The batches in a row that agree.
    alike: Histogram,
    /// What 99 of 100 took in the best batch.
    best_ns: Option<u64>,
    /// The TPCs before it.
    before: u32,
}

/// A time in which a target is violated on all that its tenant can have, in batches of bursts.
#[derive(Debug, Clone, Copy, Default)]
struct Misses {
    all_s: f64,
    batch_s: f64,
    batch: Histogram,
    /// The mean time of the batch before.
    last_ns: Option<u64>,
}

/// A tenant as the law knows it.
#[derive(Debug, Clone)]
pub(super) struct One {
    pub id: u64,
    pub wanted: Wanted,
    bound_ns: Option<u64>,
    before: Histogram,
    launches: u64,
    pub tpcs: u32,
    settle: u32,
    arms: u32,
    pub evidence: Evidence,
    /// Bursts on this number of TPCs, and since when.
    here: Histogram,
    here_s: f64,
    trial: Option<Trial>,
    /// Others that run what they launched before a trial or the return from one, with their bursts
    /// at its begin, and until when they are waited for.
    others: Vec<(u64, u64)>,
    others_until_s: f64,
    step: u32,
    /// The most TPCs on which a trial has failed since the load or the bound was another.
    hurt: Option<u32>,
    failures: u32,
    next_trial_s: f64,
    /// Where the target held last, or where it began.
    settled: u32,
    /// The fewest TPCs on which the target is known to hold.
    enough: Option<u32>,
    kept_s: Option<f64>,
    violated_s: Option<f64>,
    /// It wants no more than this.
    pub cap: u32,
    /// How many times as long its mean time is as on all that it can have, by the trials of sizes.
    slower: f64,
    /// The next trial of a size is one on more.
    up_next: bool,
    misses: Option<Misses>,
    pub unmet: bool,
    /// The most that it could have then.
    unmet_most: u32,
    idle_s: f64,
    worked_s: f64,
    /// The TPCs before its rest.
    lent: Option<u32>,
    /// Launches in a second with work, usually.
    usual_load: Option<f64>,
    /// For so many looks its load counts as risen steeply.
    steep_looks: u32,
    stuck: u32,
    stuck_s: f64,
    calibration: Option<Calibration>,
    calibrates_from_s: f64,
    recent: [Histogram; 2],
    recent_s: f64,
    levels: Vec<(u32, Histogram)>,
}

/// What a look tells a tenant about the others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Around {
    /// The most that it can have.
    pub most: u32,
    /// Whether others could use what it gives.
    pub gain: bool,
    /// Whether a violated target finds nothing to take.
    pub pressed: bool,
    pub time_s: f64,
    pub passed_s: f64,
}

impl One {
    pub fn new(seen: &Seen<'_>, time_s: f64) -> Self {
        Self {
            id: seen.id,
            wanted: seen.wanted,
            bound_ns: match seen.wanted {
                Wanted::Within(ns) => Some(ns),
                _ => None,
            },
            before: *seen.times,
            launches: seen.launches,
            tpcs: seen.held_tpcs,
            settle: 0,
            arms: 0,
            evidence: Evidence::default(),
            here: Histogram::default(),
            here_s: time_s,
            trial: None,
            others: Vec::new(),
            others_until_s: 0.0,
            step: (seen.held_tpcs / 8).max(1),
            hurt: None,
            failures: 0,
            next_trial_s: time_s + INTERVAL_S,
            settled: seen.held_tpcs,
            enough: None,
            kept_s: None,
            violated_s: None,
            cap: u32::MAX,
            slower: 1.0,
            up_next: false,
            misses: None,
            unmet: false,
            unmet_most: 0,
            idle_s: 0.0,
            worked_s: 0.0,
            lent: None,
            usual_load: None,
            steep_looks: 0,
            stuck: 0,
            stuck_s: 0.0,
            calibration: None,
            calibrates_from_s: time_s,
            recent: [Histogram::default(); 2],
            recent_s: time_s,
            levels: Vec::new(),
        }
    }

    /// Begins anew on another number of TPCs.
    pub fn enter(&mut self, tpcs: u32, time_s: f64) {
        self.tpcs = tpcs;
        (self.settle, self.arms) = (SETTLE_LOOKS, ARM_LOOKS);
        self.evidence = Evidence::default();
        self.misses = None;
        self.others.clear();
        self.begin_here(time_s);
    }

    /// In a trial of a target, and on the way back from one that failed: waits for those that hold
    /// other TPCs, too, since now. Each comes with its number of bursts.
    pub fn wait_for_others(&mut self, changed: &[(u64, u64)], is_back: bool, time_s: f64) {
        let longest_s = match (is_back, self.trial) {
            (true, _) => OTHERS_BACK_S_MAX,
            (false, Some(Trial::Target { .. })) => OTHERS_S_MAX,
            _ => return,
        };
        self.others = changed.iter().copied().filter(|(id, _)| *id != self.id).collect();
        self.others_until_s = time_s + longest_s;
    }

    /// Begins to count anew when each of those has ended a burst. `bursts` are of all tenants.
    pub fn see_others(&mut self, bursts: &[(u64, u64)], time_s: f64) {
        if self.others.is_empty() {
            return;
        }
        let is_late = time_s >= self.others_until_s;
        self.others.retain(|other| !is_late && bursts.iter().any(|one| one.0 == other.0 && one.1 <= other.1));
        if self.others.is_empty() {
            self.evidence = Evidence::default();
            self.begin_here(time_s);
        }
    }

    /// Counts the bursts on this number of TPCs anew.
    fn begin_here(&mut self, time_s: f64) {
        self.here = Histogram::default();
        self.here_s = time_s;
    }

    /// Counts what has come since the last look.
    pub fn count(&mut self, seen: &Seen<'_>, passed_s: f64, time_s: f64) {
        let new = seen.times.since(&self.before);
        let has_fallen = seen.times.count() < self.before.count();
        let is_active = new.count() > 0 || seen.launches != self.launches;
        let launches = new.count().max(seen.launches.saturating_sub(self.launches)) as f64;
        (self.before, self.launches) = (*seen.times, seen.launches);
        if self.arms > 0 {
            self.arms -= 1;
            self.steep_looks = self.steep_looks.saturating_sub(1);
        } else if is_active && passed_s > 0.0 {
            // What is more than six standard deviations above the usual number is no chance.
            let usual = self.usual_load.map_or(f64::INFINITY, |usual| usual * passed_s);
            let beyond = launches - usual;
            let is_steep = launches >= STEEP * usual && beyond * beyond >= 36.0 * usual;
            self.steep_looks = if is_steep { STEEP_LOOKS } else { self.steep_looks.saturating_sub(1) };
            let load = launches / passed_s;
            self.usual_load = Some(self.usual_load.map_or(load, |usual| usual + FOLLOWS * (load - usual)));
        }
        if seen.held_tpcs != self.tpcs {
            // A command has changed it: a trial or a calibration is over.
            if let Some(Trial::Size { cap_before, .. }) = self.trial.take() {
                self.cap = cap_before;
            }
            self.lent = None;
            self.calibration = None;
            self.settled = seen.held_tpcs;
            self.enough = None;
            self.hurt = None;
            self.enter(seen.held_tpcs, time_s);
        }
        if is_active {
            self.idle_s = 0.0;
            self.worked_s += passed_s;
        } else {
            // A look that comes late, or a clock that jumps, is no rest.
            self.idle_s += passed_s.min(IDLE_LOOK_S_MAX);
        }
        let is_stuck = is_active && new.count() == 0;
        self.stuck = if is_stuck { self.stuck.saturating_add(1) } else { 0 };
        self.stuck_s = if is_stuck { self.stuck_s + passed_s } else { 0.0 };
        if self.settle > 0 {
            self.settle -= 1;
            return;
        }
        if has_fallen || new.count() == 0 {
            return;
        }
        if let Some(bound_ns) = self.bound_ns {
            self.evidence.add(&new, bound_ns);
        }
        if let Some(misses) = &mut self.misses {
            misses.batch.merge(&new);
        }
        if self.here.count() >= HERE.0 && time_s - self.here_s >= HERE.1 && self.trial.is_none() {
            self.begin_here(time_s);
        }
        self.here.merge(&new);
        if time_s - self.recent_s >= RECENT_S {
            self.recent = [self.recent[1], Histogram::default()];
            self.recent_s = time_s;
        }
        self.recent[1].merge(&new);
        self.remember(&new);
    }

    fn remember(&mut self, new: &Histogram) {
        match self.levels.binary_search_by_key(&self.tpcs, |(tpcs, _)| *tpcs) {
            Ok(at) => {
                let level = &mut self.levels[at].1;
                level.merge(new);
                if level.count() > HERE.0 {
                    // What was long ago counts less and less.
                    *level = Histogram::new(level.counts().map(|count| count / 2), level.sum_ns() / 2);
                }
            }
            Err(at) => {
                self.levels.insert(at, (self.tpcs, *new));
                if self.levels.len() > LEVELS_MAX {
                    let tpcs = self.tpcs;
                    let fewest = self.levels.iter().enumerate().filter(|(_, level)| level.0 != tpcs);
                    if let Some((at, _)) = fewest.min_by_key(|(_, level)| level.1.count()) {
                        self.levels.remove(at);
                    }
                }
            }
        }
    }

    fn interval_s(&self) -> f64 {
        INTERVAL_S * f64::from(1u32 << self.failures.min(DOUBLINGS_MAX))
    }

    fn failed(&mut self, doublings: u32, time_s: f64) {
        self.failures = (self.failures + doublings).min(DOUBLINGS_MAX);
        self.step = (self.step / 2).max(1);
        self.next_trial_s = time_s + self.interval_s();
    }

    pub fn is_learning(&self) -> bool {
        self.calibration.is_some()
    }

    pub fn standing(&self, time_s: f64) -> Standing {
        let mut recent = self.recent[0];
        recent.merge(&self.recent[1]);
        let level = |(tpcs, times): &(u32, Histogram)| {
            let mean_ns = times.sum_ns() as f64 / times.count().max(1) as f64;
            Some(Level { tpcs: *tpcs, count: times.count(), mean_ns, p99_ns: p99_ns(times)? })
        };
        let is_known = self.bound_ns.is_some() && recent.count() > 0;
        Standing {
            bound_ns: self.bound_ns,
            p99_ns: p99_ns(&recent),
            holds: is_known.then_some(!self.evidence.is_alarm() && !self.unmet),
            unmet: self.unmet,
            enough_tpcs: self.enough,
            next_trial_s: self.trial.is_none().then_some((self.next_trial_s - time_s).max(0.0)),
            levels: self.levels.iter().filter_map(level).collect(),
        }
    }
}

fn p99_ns(times: &Histogram) -> Option<u64> {
    times.quantile(990).map(|bounds: Bounds| bounds.middle_ns())
}
