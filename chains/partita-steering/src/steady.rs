//! Partita's own search: it starts from the present allocation, and undoes steps that do not prove
//! better.
//!
//! # What it does
//! The *incumbent* is the allocation in force, at first the initial one. A *candidate* differs from
//! it in one component's TPCs, or in a group's. The search applies it, lets one period pass to
//! settle and measures another, compares it with the incumbent ([`compare`](super::compare)), and
//! makes it the incumbent if it is better. In this order:
//!
//! 1. Its whole GPU for each, if that is not the initial allocation: the result is never below
//!    default sharing.
//! 2. Each component gives up a fifth of the TPCs. That shows at once which ones the chain needs
//!    (throughput falls), which do not matter, and which do *better* with less: a kernel with more
//!    blocks than fit at once leaves part of the GPU empty in its last round, and a component that
//!    avoids a few TPCs loses nothing itself and lets the others run there meanwhile. (On the model
//!    most of the possible gain is there, and the published algorithm cannot reach it, because it
//!    gives bottlenecks all TPCs.) A better step is repeated. If one was better, components
//!    compete, and single steps lead to the nearest local optimum: then each component in turn has
//!    all TPCs while the others share as much in equal parts, and if that was better, the steps
//!    start again from there. (Equal parts for all but one are also the start of the published
//!    algorithm.)
//! 3. If two or more matter and have room, they grow together: one alone would not help. Each that
//!    the chain does not clearly need is limited to a twentieth of the TPCs, alone; while that is
//!    better, to half of it. So a quick one sets the pace, and its frames meet the others' at
//!    better times. (A fifth less does not show that: on an H200 the chain SC-1 in the paper's
//!    sizes gained 5 % with its last component on three TPCs, 12 % on two, and nothing on six to
//!    sixty.) If one was better, the others join it, each in turn.
//! 4. Those that mattered try a tenth, and a twentieth, less and more. Each step size repeats until
//!    it gains nothing. Components that lost nothing with a fifth less are not tried again.
//! 5. If the throughput changed without a change of the allocation, the chain may have rhythms, and
//!    all of the above saw one of them. Then the result is compared after disturbances with
//!    allocations that may have no slow rhythm: [`rhythm`].
//!
//! With several GPUs ([`Room`]), parts are those of the component's GPU, and the others that share
//! with a component are those on its GPU: each step moves TPCs among components of one GPU. A chain
//! that waits for two GPUs gains nothing by a step on one of them. So those that grow together (3)
//! may be on several, each by TPCs of its own GPU. And after the single steps of each size, those
//! that nothing showed to be needed give up TPCs together, each on its own GPU.
//!
//! # Why fewer trials
//! Every component is restricted once, slightly, and that one trial is both the search for
//! bottlenecks and a step of the optimization. The published algorithm restricts each to find the
//! bottlenecks, and then searches each of the others through all portions, including those that do
//! not matter.
//!
//! # Why it ends, and where
//! An incumbent is replaced only by a candidate measured better by at least
//! [`SteadyOptions::better_permille`]. The GPU bounds the throughput, so with right verdicts there
//! are at most log(best / first) / log(1 + better) replacements. Between two of them each step size
//! tries each component at most twice, no allocation is tried twice except once more for its
//! rhythms, and the step sizes only fall. So it ends, after [`SteadyOptions::looks_max_in_all`]
//! measurements of candidates at the latest. At the end none of the last steps was better by the
//! smallest gain: a local optimum of the finest steps, in the directions that matter. A better one
//! elsewhere is possible; for the shortfall on the model see `research/bench/results/chains.md`.
//!
//! # Why it never leaves a chain worse off
//! * A candidate that looks worse is in force for [`SteadyOptions::settle_periods`] + 1 periods at
//!   a time, by default two; then the incumbent is back. One that looks even or better stays for a
//!   second look; then the two alternate. A comparison of rhythms has a period before each of these
//!   in which one component has a single TPC.
//! * «Better» needs two looks and a difference beyond the noise, which repeated measurements of the
//!   incumbent estimate throughout.
//! * A throughput that changes by itself meanwhile (the incumbent's own, measured again after every
//!   worse candidate) restarts the present comparison; after three such shifts the search ends. A
//!   return to an earlier throughput of the same incumbent is not a shift: an alternating chain has
//!   not changed, and its amplitude is noise, which the smallest gain must exceed.
//! * At the end the result is compared with the initial allocation once more, in turns. If it is
//!   not clearly better, its predecessor is compared, and so on; if none of them is better, the
//!   initial allocation is restored. A result that is better only in its rhythms has been compared
//!   in turns with the one that it replaces.
//! * If it is stopped or fails, it restores the incumbent, which is the initial allocation or has
//!   proved better.

mod rhythm;
#[cfg(test)]
mod tests;

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

use super::compare::{Comparison, Noise, Verdict, gain};
use super::trial::{Found, Purpose, Trials};
use super::{Allocation, Plant, Room, Stop};

/// The parameters of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteadyOptions {
    /// The smallest gain worth a change, in thousandths of the throughput. If single measurements
    /// vary more, the smallest gain is two of their standard deviations: distinguishing less would
    /// take more periods than it gains.
    pub better_permille: u32,
    /// Periods without a measurement after a change, for frames on their way.
    pub settle_periods: u32,
    /// Largest number of measurements of one candidate.
    pub looks_max: u32,
    /// Largest number of measurements of all candidates together.
    pub looks_max_in_all: u32,
}

impl Default for SteadyOptions {
    /// 1 %, one period to settle, six looks at a candidate and sixty in all.
    fn default() -> Self {
        Self { better_permille: 10, settle_periods: 1, looks_max: 6, looks_max_in_all: 60 }
    }
}

/// Searches on a chain with the allocation `in_force`, in this room. Its result is in force
/// afterwards, and was measured to be at least as good.
///
/// # Errors
/// Why it was stopped; then the best allocation so far is in force, if it can be applied.
pub fn steady<P: Plant + ?Sized>(
    plant: &mut P,
    in_force: &Allocation,
    room: &Room,
    options: &SteadyOptions,
) -> Result<Found, Stop> {
    let mut search = Search {
        trials: Trials::new(plant, in_force, options.settle_periods),
        options,
        room,
        noise: Noise::supposed(supposed_deviation(options)),
        incumbent: in_force.clone(),
        replaced: Vec::new(),
        measured: Vec::new(),
        tried: BTreeSet::from([in_force.clone()]),
        looks: 0,
        levels: Vec::new(),
        shifts: 0,
    };
    match search.run(in_force) {
        Ok(()) => {
            let frames_per_s = search.reference();
            Ok(search.trials.finish(frames_per_s))
        }
        Err(stop) => {
            // The reason for the stop is the better error.
            let _: Result<(), Stop> = search.trials.apply(&search.incumbent);
            Err(stop)
        }
    }
}

/// Parts of the TPCs by which components grow and shrink, the largest first.
const STEPS: [u32; 3] = [5, 10, 20];
/// The part of the TPCs for a single component that the chain does not clearly need.
const FEW_PART: u32 = 20;
/// A loss is clear from this multiple of the smallest gain.
const CLEARLY: f64 = 3.0;
/// Measurements of the initial allocation, for a first estimate of the noise.
const FIRST_REFERENCES: usize = 3;
/// Measurements of the incumbent for its median.
const REFERENCES: usize = 3;
/// Looks at a candidate in a row, at most: further ones add little to the knowledge of their
/// difference from the incumbent.
const LOOKS_ON_END: u32 = 2;
/// Least number of pairs in the final comparison: a chain may settle into one rhythm or another
/// each time that its allocation changes.
const VERIFICATIONS: usize = 3;
/// Largest number of allocations in the final comparison with the initial one.
const VERIFIED_MAX: usize = 3;
/// Shifts of the throughput after which the earlier findings are void.
const SHIFTS_MAX: u32 = 3;
/// The incumbent has shifted if its throughput differs by this many standard errors, squared.
const SHIFT_SQUARED: f64 = 16.0;

/// The direction in which a component's TPCs change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Fewer,
    More,
}

/// The smallest gain that is worth a change, relative.
fn worth(options: &SteadyOptions) -> f64 {
    f64::from(options.better_permille.max(1)) / 1_000.0
}

/// The initial assumption for the standard deviation of a measurement, relative.
fn supposed_deviation(options: &SteadyOptions) -> f64 {
    worth(options) / 5.0
}

/// A component's need of its TPCs, as far as steps have shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// The chain loses clearly with fewer, or it is unknown.
    All,
    /// It loses little, perhaps by chance, or it gains.
    Most,
    /// Fewer make no difference.
    Few,
}

struct Search<'a, P: ?Sized> {
    trials: Trials<'a, P>,
    options: &'a SteadyOptions,
    room: &'a Room,
    noise: Noise,
    incumbent: Allocation,
    /// The former incumbents, from the initial allocation on.
    replaced: Vec<Allocation>,
    /// The incumbent's last measurements, oldest first, since it became the incumbent or its
    /// throughput shifted.
    measured: Vec<f64>,
    tried: BTreeSet<Allocation>,
    looks: u32,
    /// The incumbent's throughput before each shift.
    levels: Vec<f64>,
    /// Shifts to a throughput that the incumbent had not had before.
    shifts: u32,
}

impl<P: Plant + ?Sized> Search<'_, P> {
    fn run(&mut self, start: &Allocation) -> Result<(), Stop> {
        for _ in 0..FIRST_REFERENCES {
            self.refresh()?;
        }
        self.challenge(&self.room.whole())?;
        let mut needs = vec![Needs::All; start.components()];
        // Of the first step.
        let mut first = needs.clone();
        let mut last = None;
        for part in STEPS {
            let steps = self.room.each(|component| self.room.tpcs(component) / part);
            if last.as_ref() != Some(&steps) {
                let before = self.incumbent.clone();
                self.ask_all(&mut needs, &steps)?;
                self.give_up_together(&needs, &steps)?;
                let is_first = last.is_none();
                if is_first && self.incumbent != before && self.ask_parts()? {
                    needs.fill(Needs::All);
                    self.ask_all(&mut needs, &steps)?;
                }
                if is_first {
                    first.clone_from(&needs);
                    self.grow_together(&needs, &steps)?;
                    self.ask_alone(&needs)?;
                }
            }
            last = Some(steps);
        }
        self.verify(start)?;
        match self.shifts > 0 && !self.is_over() {
            true => self.ask_rhythms(&first),
            false => Ok(()),
        }
    }

    /// Tries every component that matters, in turns: what one has given up, another may use, as
    /// long as that gains something.
    fn ask_all(&mut self, needs: &mut [Needs], steps: &Allocation) -> Result<(), Stop> {
        loop {
            let before = self.incumbent.clone();
            for (component, needs) in needs.iter_mut().enumerate() {
                if *needs != Needs::Few {
                    *needs = self.ask(component, steps.tpcs()[component])?;
                }
            }
            if self.incumbent == before {
                return Ok(());
            }
        }
    }

    /// All TPCs of a GPU for one component and equal parts for the others there, each in turn: if
    /// components compete, no single step leads there. Returns whether that was better.
    fn ask_parts(&mut self) -> Result<bool, Stop> {
        let before = self.incumbent.clone();
        for group in self.room.groups() {
            let tpcs = self.room.tpcs(group[0]);
            let part = tpcs / (group.len().max(2) - 1) as u32;
            if part > 0 && part < tpcs {
                let now = self.incumbent.clone();
                let equal = group.iter().fold(now, |all, &component| all.with(component, part));
                for &component in &group {
                    self.challenge(&equal.with(component, tpcs))?;
                }
            }
        }
        Ok(self.incumbent != before)
    }

    /// Tries fewer TPCs for a component, and more.
    fn ask(&mut self, component: usize, step: u32) -> Result<Needs, Stop> {
        let mut needs = Needs::Few;
        for way in [Way::Fewer, Way::More] {
            let mut has_moved = false;
            loop {
                let now = self.incumbent.tpcs()[component];
                let then = match way {
                    Way::Fewer => now.saturating_sub(step),
                    Way::More => now.saturating_add(step).min(self.room.tpcs(component)),
                };
                if then == 0 || then == now {
                    break;
                }
                match self.challenge(&self.incumbent.with(component, then))? {
                    Some((Verdict::Better, _)) => has_moved = true,
                    Some((Verdict::Worse, gain)) => {
                        needs = if gain < -CLEARLY * self.counts() { Needs::All } else { Needs::Most };
                        break;
                    }
                    Some((Verdict::Even, _)) if way == Way::Fewer && !has_moved => return Ok(Needs::Few),
                    Some((Verdict::Even, _)) | None => break,
                }
            }
            if has_moved {
                return Ok(Needs::Most);
            }
        }
        // Untried components may need them.
        Ok(if self.incumbent.tpcs()[component] <= step { Needs::All } else { needs })
    }

    /// Limits each component that the chain does not clearly need to few TPCs, alone. A component
    /// that is better alone is better at the next one's turn, too; such a one may have still fewer,
    /// and the others may join it.
    fn ask_alone(&mut self, needs: &[Needs]) -> Result<(), Stop> {
        let before = self.incumbent.clone();
        let spare = || (0..needs.len()).filter(|&component| needs[component] != Needs::All);
        for component in spare() {
            let mut held = self.few(component);
            while held < before.tpcs()[component]
                && self.is_replaced_by(&before.with(component, held))?
                && held > 1
            {
                held = held.div_ceil(2);
            }
        }
        if self.incumbent == before {
            return Ok(());
        }
        for component in spare() {
            let few = self.few(component);
            if self.incumbent.tpcs()[component] > few {
                self.challenge(&self.incumbent.with(component, few))?;
            }
        }
        Ok(())
    }

    /// The number of TPCs for a component that should not compete with the others.
    fn few(&self, component: usize) -> u32 {
        (self.room.tpcs(component) / FEW_PART).max(1)
    }

    /// Tries more for all that matter together: single ones have been tried.
    fn grow_together(&mut self, needs: &[Needs], steps: &Allocation) -> Result<(), Stop> {
        let growing: Vec<usize> =
            (0..needs.len()).filter(|&component| needs[component] != Needs::Few).collect();
        while growing.len() > 1 {
            let grown = growing.iter().fold(self.incumbent.clone(), |all, &component| {
                let more = all.tpcs()[component].saturating_add(steps.tpcs()[component]);
                all.with(component, more.min(self.room.tpcs(component)))
            });
            if !self.is_replaced_by(&grown)? {
                break;
            }
        }
        Ok(())
    }

    /// On several GPUs, tries fewer for all that do not matter together: if each GPU limits the
    /// chain as much as the others, fewer on one of them make no difference.
    fn give_up_together(&mut self, needs: &[Needs], steps: &Allocation) -> Result<(), Stop> {
        if self.room.groups().nth(1).is_none() {
            return Ok(());
        }
        loop {
            let fewer = self.room.each(|component| {
                let now = self.incumbent.tpcs()[component];
                let step = if needs[component] == Needs::Few { steps.tpcs()[component] } else { 0 };
                now.saturating_sub(step)
            });
            if !self.is_replaced_by(&fewer)? {
                return Ok(());
            }
        }
    }

    /// Whether a candidate has become the incumbent.
    fn is_replaced_by(&mut self, candidate: &Allocation) -> Result<bool, Stop> {
        Ok(matches!(self.challenge(candidate)?, Some((Verdict::Better, _))))
    }

    /// Compares a candidate with the incumbent, and makes it the incumbent if it is better; returns
    /// the gain. `None` if there is nothing to compare, or no look left.
    fn challenge(&mut self, candidate: &Allocation) -> Result<Option<(Verdict, f64)>, Stop> {
        if self.is_over() || !self.tried.insert(candidate.clone()) {
            return Ok(None);
        }
        let mut comparison = Comparison::against(self.measured.len());
        let mut of_candidate = Vec::new();
        let mut on_end = 0;
        let verdict = loop {
            let frames_per_s = self.trials.measure(candidate, Purpose::Candidate)?;
            self.looks += 1;
            on_end += 1;
            of_candidate.push(frames_per_s);
            comparison.look(self.gain(frames_per_s));
            if let Some(verdict) = comparison.verdict(&self.noise, self.counts(), self.options.looks_max) {
                break verdict;
            }
            if self.is_over() {
                return Ok(None);
            }
            // A candidate that does not look worse may stay for another period: a change and back
            // takes four.
            if on_end < LOOKS_ON_END && comparison.gain() > -self.counts() {
                continue;
            }
            on_end = 0;
            match self.refresh()? {
                true => {
                    // The earlier comparison was with another throughput.
                    comparison = Comparison::against(self.measured.len());
                    of_candidate.clear();
                }
                false => comparison.refer(),
            }
            if self.is_over() {
                return Ok(None);
            }
        };
        match verdict {
            Verdict::Better => {
                self.replaced.push(core::mem::replace(&mut self.incumbent, candidate.clone()));
                self.levels.clear();
                self.measured = of_candidate;
                let surplus = self.measured.len().saturating_sub(REFERENCES);
                self.measured.drain(..surplus);
            }
            // An equal one may stay until the next candidate.
            Verdict::Even => {}
            Verdict::Worse => _ = self.refresh()?,
        }
        Ok(Some((verdict, comparison.gain())))
    }

    /// The smallest gain that counts.
    fn counts(&self) -> f64 {
        worth(self.options).max(2.0 * self.noise.deviation())
    }

    fn is_over(&self) -> bool {
        self.looks >= self.options.looks_max_in_all || self.shifts >= SHIFTS_MAX
    }

    /// The incumbent's throughput: the median of its last measurements.
    fn reference(&self) -> f64 {
        let mut sorted = self.measured.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        match sorted.len() {
            0 => 0.0,
            count => (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0,
        }
    }

    /// The gain of a throughput over the incumbent's.
    fn gain(&self, frames_per_s: f64) -> f64 {
        gain(frames_per_s, self.reference())
    }

    /// Measures the incumbent again; returns whether its throughput has shifted.
    fn refresh(&mut self) -> Result<bool, Stop> {
        let incumbent = self.incumbent.clone();
        let now = self.trials.measure(&incumbent, Purpose::Reference)?;
        let is_off = |search: &Self, now| {
            let gain = search.gain(now);
            let error = search.noise.variance() * (1.0 + 1.0 / search.measured.len().max(1) as f64);
            gain * gain > SHIFT_SQUARED * error && gain.abs() > 2.0 * search.counts()
        };
        if self.measured.len() >= FIRST_REFERENCES - 1 && is_off(self, now) {
            // An outlier, or another throughput from now on: the next measurement shows it.
            let again = self.trials.measure(&incumbent, Purpose::Reference)?;
            if is_off(self, again) {
                let before = self.reference();
                let is_near = |level: &f64| (again - level).abs() < 2.0 * self.counts() * level;
                let has_been_there = self.levels.iter().any(is_near);
                self.levels.push(before);
                self.measured = vec![now, again];
                self.noise.learn(now, again);
                match has_been_there {
                    true => self.noise.learn(before, again),
                    false => self.shifts += 1,
                }
                return Ok(true);
            }
            self.remember(again);
            return Ok(false);
        }
        self.remember(now);
        Ok(false)
    }

    fn remember(&mut self, frames_per_s: f64) {
        if let Some(&before) = self.measured.last() {
            self.noise.learn(before, frames_per_s);
        }
        if self.measured.len() == REFERENCES {
            self.measured.remove(0);
        }
        self.measured.push(frames_per_s);
    }

    /// Compares the result with the initial allocation; if it is only equal, its predecessor, and
    /// so on; and restores the initial allocation unless one of them is clearly better.
    fn verify(&mut self, start: &Allocation) -> Result<(), Stop> {
        let mut of_start = None;
        for _ in 0..VERIFIED_MAX {
            if self.incumbent == *start {
                break;
            }
            match self.is_above(start)? {
                None => return Ok(()),
                of_it => of_start = of_it,
            }
            self.measured.clear();
            self.incumbent = self.replaced.pop().unwrap_or_else(|| start.clone());
        }
        self.incumbent = start.clone();
        self.replaced.clear();
        if let Some(of_start) = of_start {
            self.measured = of_start;
        }
        self.trials.apply(start)
    }

    /// Compares the incumbent with the initial allocation, in turns; if it is not clearly better,
    /// returns the measurements of the initial one.
    fn is_above(&mut self, start: &Allocation) -> Result<Option<Vec<f64>>, Stop> {
        let found = self.incumbent.clone();
        let mut comparison = Comparison::default();
        let mut of_start = Vec::new();
        loop {
            let before = self.trials.measure(start, Purpose::Verification)?;
            let after = self.trials.measure(&found, Purpose::Verification)?;
            of_start.push(before);
            comparison.refer();
            comparison.look(gain(after, before));
            self.remember(after);
            // The better one must be clear in either case; if it is not, the earlier one is as
            // good.
            if of_start.len() < VERIFICATIONS {
                continue;
            }
            match comparison.verdict(&self.noise, self.counts(), self.options.looks_max) {
                Some(Verdict::Better) => return Ok(None),
                Some(Verdict::Even) if comparison.is_above(&self.noise) => return Ok(None),
                Some(_) => return Ok(Some(of_start)),
                None => {}
            }
        }
    }
}
