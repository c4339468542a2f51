//! What a tenant with a target wants, look by look.

use alloc::vec::Vec;

use super::super::evidence::{self, CALM, Evidence, SEVERE};
use super::super::said::{Event, Reason};
use super::super::seen::{Seen, Wanted};
use super::{Around, Calibration, One, SETTLE_LOOKS, Trial, p99_ns};
use crate::histogram::Histogram;

/// A second violation within this time takes all.
const AGAIN_S: f64 = 1.0;
/// After a steep rise of the load two late bursts, or a look without an end, are a violation.
const ALARM_AT_RISE: f64 = 3.0;
/// The longest time to the first trial after a violation.
const RETURN_S_MAX: f64 = 16.0;
/// A violation within this time after a trial that was kept is the trial's.
const PROBATION_S: f64 = 60.0;
/// Bursts after which an open trial is undone: ten times what a clear one needs.
const TRIAL_BURSTS_MAX: u64 = 4_000;
/// While others still run what they launched before a trial, it has failed if one burst in so many
/// is late.
const PLAIN: u64 = 5;
/// A violation is mild if no more than one burst in so many is late.
const MILD: u64 = 20;
/// Seconds and bursts of a batch that says whether a target can be met without more TPCs.
const UNMET_S: f64 = 5.0;
const UNMET_BURSTS: u64 = 20;
/// A tenant rests after so long without launches.
const REST_S: f64 = 1.0;
/// Work after which a rest is worth a return of 0.2 s: a quarter of one in 100 bursts.
const WORK_S: f64 = 80.0;
/// Looks in a row with launches and without an end of a burst that are a violation.
const STUCK_LOOKS: u32 = 2;
/// After this time they are bursts whose end is not seen.
const UNSEEN_S: f64 = 5.0;
/// Bursts and seconds of a batch of a calibration; the second pair is for slow programs.
const CALIBRATION: [(u64, f64); 2] = [(200, 1.0), (30, 5.0)];
/// Two batches agree if they differ by an eighth at most: a program that starts up, or is
/// disturbed, has some long bursts that are not like those to come.
const AGREE: u64 = 8;
/// Bursts of batches that agree after which the time is learnt, and seconds of work after which
/// those are enough that there are.
const CALIBRATION_BURSTS: u64 = 1_000;
const CALIBRATION_SLOW_S: f64 = 10.0;
/// The longest calibration or start of a program, and the pause after one that came to nothing.
const CALIBRATION_S_MAX: f64 = 20.0;
const CALIBRATION_PAUSE_S: f64 = 60.0;

/// Whether the times of two batches in a row are alike.
fn agree(last_ns: u64, ns: u64) -> bool {
    last_ns.abs_diff(ns) <= ns.min(last_ns) / AGREE
}

impl One {
    /// What a tenant with a target wants, and why if that is something new.
    pub fn target(
        &mut self,
        seen: &Seen<'_>,
        around: &Around,
        events: &mut Vec<(u64, Event)>,
    ) -> (Option<u32>, Option<Reason>) {
        if let Some(wanted) = self.rest(seen, around) {
            return wanted;
        }
        if self.bound_ns.is_none() {
            return self.calibrate(around, events);
        }
        if self.stuck_s >= UNSEEN_S {
            // Such looks are no evidence.
            self.evidence = Evidence::default();
            self.misses = None;
            let wanted = self.settled.max(seen.least_tpcs).min(self.tpcs);
            self.trial = None;
            return (Some(wanted), Some(Reason::Unseen));
        }
        let bound_s = self.bound_ns.unwrap_or(u64::MAX) as f64 / 1e9;
        let is_steep = self.steep_looks > 0;
        let stuck_looks = if is_steep { 1 } else { STUCK_LOOKS };
        let is_stuck = self.stuck >= stuck_looks && 2.0 * bound_s < around.passed_s;
        if is_stuck {
            self.evidence.alarm = self.evidence.alarm.max(SEVERE);
        }
        if self.unmet {
            let is_met = self.evidence.calm >= CALM;
            if !is_met && around.most <= self.unmet_most {
                return self.size_of(around, events);
            }
            // It holds, or there is more to try.
            self.unmet = false;
            self.cap = u32::MAX;
            self.trial = None;
            if is_met {
                events.push((self.id, Event::Met));
            }
        }
        let is_alarm = self.evidence.is_alarm() || is_steep && self.evidence.alarm >= ALARM_AT_RISE;
        if !self.others.is_empty() {
            let Evidence { late, count, .. } = self.evidence;
            let ends_trial = self.trial.is_some() && late.saturating_mul(PLAIN) >= count;
            if !is_alarm || !(ends_trial || is_stuck || is_steep) {
                return (None, None);
            }
        }
        if is_alarm {
            return self.violated(around, is_stuck, events);
        }
        self.misses = None;
        if self.evidence.calm >= CALM {
            return self.calm(seen, around, events);
        }
        if let Some(Trial::Target { from }) = self.trial
            && self.evidence.count >= TRIAL_BURSTS_MAX
        {
            self.trial = None;
            self.fails(around.time_s);
            return (Some(from.min(around.most)), Some(Reason::Open { count: self.evidence.count }));
        }
        (None, None)
    }

    fn violated(
        &mut self,
        around: &Around,
        is_stuck: bool,
        events: &mut Vec<(u64, Event)>,
    ) -> (Option<u32>, Option<Reason>) {
        let Around { time_s, passed_s, .. } = *around;
        let Evidence { alarm, late, count, .. } = self.evidence;
        let is_again = self.violated_s.is_some_and(|last| time_s - last <= AGAIN_S);
        let is_severe = alarm >= SEVERE || is_again || self.steep_looks > 0;
        self.enough = None;
        let in_trial = self.trial.take();
        if let Some(Trial::Target { from }) = in_trial {
            self.fails(time_s);
            if self.steep_looks == 0 {
                return (Some(from.min(around.most)), Some(Reason::Hurt { late, count }));
            }
        } else if self.kept_s.take().is_some_and(|kept| time_s - kept <= PROBATION_S) {
            self.hurt = Some(self.tpcs);
            self.failed(2, time_s);
        } else {
            // The load is another, or the neighbours are.
            self.hurt = None;
        }
        let most = around.most;
        if most > self.tpcs {
            self.violated_s = Some(time_s);
            // Few late ones do not need twice as much.
            let is_mild = late.saturating_mul(MILD) <= count;
            let wanted = match (is_severe, is_mild) {
                (true, _) => most,
                (false, true) => most - (most - self.tpcs) / 2,
                (false, false) => most.min((2 * self.tpcs).max(2)),
            };
            // Back to where it held last in one step, if this is a passing burst; else half of the
            // way. If it came from there, the step of the failed trial is halved already.
            let before = match in_trial {
                Some(Trial::Target { from }) => from,
                _ => self.settled,
            };
            let back = wanted.saturating_sub(before);
            if back > 0 {
                self.step = if is_severe { back } else { back / 2 }.max(1);
            }
            self.next_trial_s = time_s + self.interval_s().min(RETURN_S_MAX);
            let reason = if is_stuck { Reason::Stuck } else { Reason::Late { late, count } };
            return (Some(wanted), Some(reason));
        }
        let misses = self.misses.get_or_insert_default();
        misses.batch_s += passed_s;
        misses.all_s += passed_s;
        if misses.batch_s < UNMET_S || misses.batch.count() < UNMET_BURSTS {
            return (None, None);
        }
        let batch = core::mem::take(&mut misses.batch);
        misses.batch_s = 0.0;
        let mean_ns = batch.sum_ns() / batch.count();
        let last = misses.last_ns.replace(mean_ns);
        // As long as batches differ, the program may be starting up.
        let agrees = last.is_some_and(|last| agree(last, mean_ns)) || misses.all_s >= CALIBRATION_S_MAX;
        let late = self.bound_ns.map_or(0, |bound| evidence::late(&batch, bound));
        if agrees && late.saturating_mul(100) > batch.count() {
            self.misses = None;
            self.unmet = true;
            self.unmet_most = most;
            let best = self.best();
            let tpcs = best.map_or(self.tpcs, |best| best.0);
            events.push((self.id, Event::Unmet { best_ns: best.map(|best| best.1), tpcs }));
            // From now on means are compared, which the bursts of a start would spoil.
            self.begin_here(time_s);
        }
        (None, None)
    }

    /// Takes note of a trial that has failed. Between those that fail and those that do not the
    /// next one comes soon, since each halves what is unknown; then they become rare.
    fn fails(&mut self, time_s: f64) {
        let settled = self.settled;
        let is_found = self.hurt.is_some_and(|hurt| self.tpcs <= hurt) || self.tpcs + 1 >= settled;
        self.hurt = Some(self.hurt.map_or(self.tpcs, |hurt| hurt.max(self.tpcs)));
        self.failed(u32::from(is_found), time_s);
    }

    /// The TPCs of the next trial: half of the way to those on which one has failed.
    fn fewer(&self) -> u32 {
        match self.hurt {
            Some(hurt) if hurt < self.tpcs => self.tpcs - ((self.tpcs - hurt) / 2).max(1),
            _ => self.tpcs.saturating_sub(self.step),
        }
    }

    /// The level with the best time that 99 of 100 took at most, of those with many bursts; else
    /// what they take now.
    fn best(&self) -> Option<(u32, u64)> {
        let late = |ns: &u64| self.bound_ns.is_none_or(|bound| *ns > bound);
        let many = self.levels.iter().filter(|(_, times)| times.count() >= UNMET_BURSTS);
        let many = many.filter_map(|(tpcs, times)| Some((*tpcs, p99_ns(times).filter(late)?)));
        let now = || Some((self.tpcs, p99_ns(&self.here)?));
        many.min_by_key(|(tpcs, ns)| (*ns, *tpcs)).or_else(now)
    }

    fn calm(
        &mut self,
        seen: &Seen<'_>,
        around: &Around,
        events: &mut Vec<(u64, Event)>,
    ) -> (Option<u32>, Option<Reason>) {
        let time_s = around.time_s;
        if let Some(Trial::Target { .. }) = self.trial.take() {
            self.failures = self.failures.saturating_sub(1);
            self.kept_s = Some(time_s);
            self.next_trial_s = time_s + self.interval_s();
            self.step = (2 * self.step).min((self.tpcs / 4).max(1));
            self.hurt = self.hurt.filter(|hurt| *hurt < self.tpcs);
            events.push((self.id, Event::Kept { tpcs: self.tpcs }));
        }
        self.settled = self.tpcs;
        self.enough = Some(self.tpcs);
        let is_time = time_s >= self.next_trial_s || around.pressed;
        if !is_time || !around.gain || self.tpcs <= seen.least_tpcs {
            return (None, None);
        }
        self.trial = Some(Trial::Target { from: self.tpcs });
        let wanted = self.fewer().max(seen.least_tpcs).max(1);
        (Some(wanted), Some(Reason::Trial))
    }

    /// What it gives and gets back as it rests and works; `None` while it works.
    fn rest(&mut self, seen: &Seen<'_>, around: &Around) -> Option<(Option<u32>, Option<Reason>)> {
        if let Some(before) = self.lent {
            if self.idle_s > 0.0 {
                return Some((None, None));
            }
            self.lent = None;
            self.worked_s = 0.0;
            return Some((Some(before.min(around.most)), Some(Reason::Back)));
        }
        let gives = self.idle_s >= REST_S && self.worked_s >= WORK_S && around.gain;
        if !gives || self.tpcs <= seen.least_tpcs || self.calibration.is_some() {
            return None;
        }
        if let Some(Trial::Target { from } | Trial::Size { from, .. }) = self.trial.take() {
            self.lent = Some(from);
        }
        self.lent = self.lent.or(Some(self.tpcs));
        Some((Some(seen.least_tpcs.max(1)), Some(Reason::Resting)))
    }

    /// Learns its own time on all that it can have: when two batches of bursts in a row agree, or
    /// the best one after a while.
    fn calibrate(
        &mut self,
        around: &Around,
        events: &mut Vec<(u64, Event)>,
    ) -> (Option<u32>, Option<Reason>) {
        let Wanted::OfAlone(permille) = self.wanted else { return (None, None) };
        if around.time_s < self.calibrates_from_s {
            return (None, None);
        }
        let Some(calibration) = &mut self.calibration else {
            if self.idle_s > 0.0 || self.worked_s == 0.0 {
                return (None, None);
            }
            let before = self.tpcs;
            self.calibration = Some(Calibration {
                worked_s: 0.0,
                batch_s: 0.0,
                alike: Histogram::default(),
                best_ns: None,
                before,
            });
            self.here = Histogram::default();
            self.settle = SETTLE_LOOKS;
            return (Some(around.most.max(self.tpcs)), Some(Reason::Calibrating));
        };
        if self.idle_s == 0.0 {
            calibration.worked_s += around.passed_s;
            calibration.batch_s += around.passed_s;
        }
        let (count, batch_s) = (self.here.count(), calibration.batch_s);
        let is_batch = CALIBRATION.iter().any(|(least, least_s)| count >= *least && batch_s >= *least_s);
        let mut learnt = None;
        if let Some(ns) = p99_ns(&self.here).filter(|_| is_batch) {
            // By their means, since 99 of 100 of a single batch are a guess.
            let mean_ns = |times: &Histogram| times.sum_ns() / times.count().max(1);
            let is_first = calibration.alike.count() == 0;
            if !is_first && !agree(mean_ns(&calibration.alike), mean_ns(&self.here)) {
                calibration.alike = Histogram::default();
            }
            calibration.alike.merge(&self.here);
            let is_alike = calibration.alike.count() > self.here.count();
            let is_much = calibration.alike.count() >= CALIBRATION_BURSTS;
            if is_alike && (is_much || calibration.worked_s >= CALIBRATION_SLOW_S) {
                learnt = p99_ns(&calibration.alike);
            }
            calibration.best_ns = Some(calibration.best_ns.map_or(ns, |best| best.min(ns)));
            calibration.batch_s = 0.0;
            self.here = Histogram::default();
        }
        let is_over = calibration.worked_s >= CALIBRATION_S_MAX;
        let (before, best) = (calibration.before, calibration.best_ns);
        if learnt.is_none() && !is_over {
            return (None, None);
        }
        self.calibration = None;
        let Some(alone_ns) = learnt.or(best) else {
            self.calibrates_from_s = around.time_s + CALIBRATION_PAUSE_S;
            return (Some(before.min(self.tpcs)), Some(Reason::Unseen));
        };
        let bound = u128::from(alone_ns) * u128::from(permille) / 1000;
        self.bound_ns = Some(u64::try_from(bound).unwrap_or(u64::MAX));
        self.evidence = Evidence::default();
        self.settled = before.min(self.tpcs);
        // Half of the way to what it had before: as many bursts are late as a failed trial takes.
        self.step = ((self.tpcs - self.settled) / 2).max(1);
        self.hurt = None;
        self.next_trial_s = around.time_s;
        events.push((self.id, Event::Learnt { alone_ns }));
        (None, None)
    }
}
