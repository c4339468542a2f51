//! Chains with rhythms: allocations are compared after disturbances.
//!
//! Components that wait for each other fall into a rhythm: which kernels coincide, and where the
//! frames queue. One allocation may have several, one faster than the others, and may stay for ever
//! in the first one. Two allocations that are equal in one rhythm may differ in the others, or in
//! which ones they fall into, and no comparison within that rhythm shows it. A chain's long-term
//! throughput is the mean over the rhythms that its disturbances lead to.
//!
//! A disturbance is a *pile*: for a period one component has a single TPC, so that the frames queue
//! before it and the others run dry. A pile before the first component is the state at a chain's
//! start, and after a pause of its input; before another one, the state after a delay of that one.
//!
//! So if the incumbent's throughput changed by itself, the search measures it after a pile before
//! each component. If that makes a difference, the chain has rhythms. The predecessor is then
//! compared with the incumbent, in turns, after the same piles: its earlier measurements may have
//! been in a rhythm that does not last. Then each component that lost nothing with a fifth less is
//! limited to a twentieth of the TPCs permanently, so that it competes least, and compared with the
//! incumbent, in turns, after the same piles; until one has the same throughput after all of them.
//! At the end the search repeats the pile after which the incumbent was best: the better rhythm
//! stays.

use alloc::vec;
use alloc::vec::Vec;

use super::{Needs, Plant, Purpose, Search, Stop, VERIFIED_MAX, Verdict, supposed_deviation, worth};
use crate::Allocation;
use crate::compare::Sample;

/// Looks after which a candidate that mostly resembles the incumbent's worst is not better.
const LOOKS_ON_RHYTHM: usize = 3;

/// The throughput of an allocation after a pile before each component, in the chain's order, in
/// frames per second.
struct Rhythms(Vec<f64>);

impl Rhythms {
    /// The component with the best pile, and its throughput.
    fn best(&self) -> (usize, f64) {
        let all = self.0.iter().copied().enumerate();
        all.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, 0.0))
    }

    /// The same for the worst.
    fn worst(&self) -> (usize, f64) {
        let all = self.0.iter().copied().enumerate();
        all.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, 0.0))
    }

    /// Whether the place of the pile matters. `counts` is the smallest gain that counts.
    fn differ(&self, counts: f64) -> bool {
        self.differ_by(2.0 * counts)
    }

    fn differ_by(&self, gain: f64) -> bool {
        self.best().1 > self.worst().1 * (1.0 + gain)
    }
}

impl<P: Plant + ?Sized> Search<'_, P> {
    /// Checks whether the incumbent has rhythms, and if so, searches for an allocation that falls
    /// into better ones. `needs` says which components lost with a fifth less.
    pub(super) fn ask_rhythms(&mut self, needs: &[Needs]) -> Result<(), Stop> {
        let mut rhythms = Rhythms(Vec::new());
        for component in 0..needs.len() {
            let incumbent = self.incumbent.clone();
            rhythms.0.push(self.after_pile(&incumbent, component, Purpose::Reference)?);
        }
        // Its throughput beside the initial allocation may have been in a rhythm that does not
        // last.
        for former in self.formers() {
            self.compare_rhythms(&former, &mut rhythms)?;
        }
        if !rhythms.differ(self.counts()) {
            return self.trials.apply(&self.incumbent);
        }
        // Of several measurements the highest and the lowest differ in any case. If the difference
        // is small, the means of two measurements decide.
        if !rhythms.differ_by(4.0 * self.counts()) {
            let incumbent = self.incumbent.clone();
            let mut both = [rhythms.best(), rhythms.worst()];
            for (component, frames_per_s) in &mut both {
                let again = self.after_pile(&incumbent, *component, Purpose::Reference)?;
                *frames_per_s = (*frames_per_s + again) / 2.0;
            }
            if !Rhythms(both.map(|(_, frames_per_s)| frames_per_s).into()).differ(self.counts()) {
                return self.trials.apply(&self.incumbent);
            }
        }
        for component in (0..needs.len()).filter(|&component| needs[component] == Needs::Few) {
            let few = self.few(component);
            let has_more = self.incumbent.tpcs()[component] > few;
            if has_more && !self.is_over() && rhythms.differ(self.counts()) {
                let candidate = self.incumbent.with(component, few);
                self.compare_rhythms(&candidate, &mut rhythms)?;
            }
        }
        self.keep_best(&rhythms)
    }

    /// The incumbent's predecessors: the last one, and the initial allocation.
    fn formers(&self) -> Vec<Allocation> {
        let last = self.replaced.iter().skip(1).rev().take(VERIFIED_MAX - 1);
        last.chain(self.replaced.first()).filter(|former| **former != self.incumbent).cloned().collect()
    }

    /// Makes the frames queue before a component, and then measures an allocation.
    fn after_pile(
        &mut self,
        allocation: &Allocation,
        component: usize,
        purpose: Purpose,
    ) -> Result<f64, Stop> {
        self.trials.pass(&allocation.with(component, 1))?;
        self.trials.measure(allocation, purpose)
    }

    /// Compares a candidate with the incumbent after the same piles; makes it the incumbent if it
    /// is better. `rhythms` are the incumbent's.
    fn compare_rhythms(&mut self, candidate: &Allocation, rhythms: &mut Rhythms) -> Result<(), Stop> {
        let components = candidate.components();
        let looks_max = 2 * components;
        // The error follows from its own looks: the known noise includes jumps between rhythms.
        let counts = worth(self.options);
        let deviation_min = supposed_deviation(self.options);
        let variance_min = deviation_min * deviation_min;
        let [mut of_candidate, mut of_incumbent] = [Sample::default(); 2];
        rhythms.0.iter().for_each(|&frames_per_s| of_incumbent.look(frames_per_s));
        let mut looked = Vec::new();
        let mut slow = 0;
        for look in 0..looks_max {
            let component = look % components;
            let then = self.after_pile(candidate, component, Purpose::Candidate)?;
            // With its piles and the incumbent's turn it takes as long as two others.
            self.looks += 2;
            of_candidate.look(then);
            looked.push(then);
            let worst = rhythms.worst().1;
            slow += usize::from(then < worst * (1.0 + counts));
            // A candidate worse than the incumbent's worst gains nothing, and one that mostly
            // resembles it gains little.
            if self.is_over()
                || 2 * slow > looked.len().max(LOOKS_ON_RHYTHM)
                || then < worst * (1.0 - self.counts())
            {
                return Ok(());
            }
            let incumbent = self.incumbent.clone();
            of_incumbent.look(self.after_pile(&incumbent, component, Purpose::Reference)?);
            // The gain must exist over all piles together.
            let is_above = of_candidate.gain(&of_incumbent) > 0.0;
            let looks_min = if is_above { components } else { components.div_ceil(2) };
            match of_candidate.verdict(&of_incumbent, (variance_min, counts), (looks_min, looks_max)) {
                Some(Verdict::Better) => {
                    looked.truncate(components);
                    self.measured.clone_from(&looked);
                    *rhythms = Rhythms(looked);
                    self.incumbent = candidate.clone();
                    return Ok(());
                }
                Some(_) => return Ok(()),
                None => {}
            }
        }
        Ok(())
    }

    /// Applies the incumbent after its best pile, several times if necessary.
    fn keep_best(&mut self, rhythms: &Rhythms) -> Result<(), Stop> {
        let incumbent = self.incumbent.clone();
        let (component, best) = rhythms.best();
        for _ in 0..incumbent.components() {
            let now = self.after_pile(&incumbent, component, Purpose::Reference)?;
            self.measured = vec![now];
            if now >= best * (1.0 - self.counts()) {
                break;
            }
        }
        Ok(())
    }
}
