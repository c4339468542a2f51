//! Chains that have rhythms: allocations compared by what they come to after a disturbance.
//!
//! Components that wait for each other fall into a rhythm: whose kernel meets whose, and where the
//! frames queue. One allocation may have several, one of them faster than the others, and may stay
//! for ever in the one that it came into. Two allocations that are alike in one rhythm may differ
//! in the others, or in which they fall into, and no comparison within that rhythm shows it. What a
//! chain has in the long run is the mean over the rhythms that its disturbances lead to.
//!
//! A disturbance is a *pile*: for a period one component has a single TPC, so that the frames
//! gather in front of it and the others run dry. A pile before the first component is how a chain
//! begins, and how it goes on when its input was away; before another one, how it goes on when that
//! one was held up.
//!
//! So where the incumbent's throughput was seen to change by itself, it is measured after a pile
//! before each component. If that makes a difference, the chain has rhythms. What the incumbent has
//! replaced is compared with it, in turns, after the same piles: what it came to before may have
//! been in a rhythm that does not last. Then each component that did not mind a fifth less is held
//! to a twentieth of the TPCs for good, as far out of the others' way as it may stay, and compared
//! with the incumbent, in turns, after the same piles; until there is one that comes to the same
//! after all of them. At the end comes once more the pile after which the incumbent did best: the
//! better rhythm stays.

use alloc::vec;
use alloc::vec::Vec;

use super::{Needs, Plant, Purpose, Search, Stop, VERIFIED_MAX, Verdict, supposed_deviation, worth};
use crate::Allocation;
use crate::compare::Sample;

/// Looks after which a candidate that is mostly like the incumbent's worst is no better.
const LOOKS_ON_RHYTHM: usize = 3;

/// What an allocation came to after a pile before each component, in the chain's order, in frames
/// per second.
struct Rhythms(Vec<f64>);

impl Rhythms {
    /// Before which component the pile was that did it best, and what it came to.
    fn best(&self) -> (usize, f64) {
        let all = self.0.iter().copied().enumerate();
        all.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, 0.0))
    }

    /// The same of the worst.
    fn worst(&self) -> (usize, f64) {
        let all = self.0.iter().copied().enumerate();
        all.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, 0.0))
    }

    /// Whether it makes a difference where the pile was. `counts` is the smallest gain that counts.
    fn differ(&self, counts: f64) -> bool {
        self.differ_by(2.0 * counts)
    }

    fn differ_by(&self, gain: f64) -> bool {
        self.best().1 > self.worst().1 * (1.0 + gain)
    }
}

impl<P: Plant + ?Sized> Search<'_, P> {
    /// Looks whether the incumbent has rhythms, and if it has, for an allocation that falls into
    /// better ones. `needs` says who minded a fifth less.
    pub(super) fn ask_rhythms(&mut self, needs: &[Needs]) -> Result<(), Stop> {
        let mut rhythms = Rhythms(Vec::new());
        for component in 0..needs.len() {
            let incumbent = self.incumbent.clone();
            rhythms.0.push(self.after_pile(&incumbent, component, Purpose::Reference)?);
        }
        // What it came to side by side with the beginning may have been in a rhythm that does not
        // last.
        for former in self.formers() {
            self.compare_rhythms(&former, &mut rhythms)?;
        }
        if !rhythms.differ(self.counts()) {
            return self.trials.apply(&self.incumbent);
        }
        // Of several measurements the highest and the lowest differ anyway. Where it is not by
        // much, what each comes to in the mean of two says it.
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
        let few = self.few();
        for component in (0..needs.len()).filter(|&component| needs[component] == Needs::Few) {
            let has_more = self.incumbent.tpcs()[component] > few;
            if has_more && !self.is_over() && rhythms.differ(self.counts()) {
                let candidate = self.incumbent.with(component, few);
                self.compare_rhythms(&candidate, &mut rhythms)?;
            }
        }
        self.keep_best(&rhythms)
    }

    /// What the incumbent has replaced: the last of it, and the beginning.
    fn formers(&self) -> Vec<Allocation> {
        let last = self.replaced.iter().skip(1).rev().take(VERIFIED_MAX - 1);
        last.chain(self.replaced.first()).filter(|former| **former != self.incumbent).cloned().collect()
    }

    /// Has the frames gather in front of a component, and measures what an allocation comes to
    /// after that.
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
        // How exact it is, it says itself: what is known of the noise has jumps between rhythms in
        // it.
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
            // Nothing is gained by what is worse than the incumbent's worst, and little by what is
            // mostly like it.
            if self.is_over()
                || 2 * slow > looked.len().max(LOOKS_ON_RHYTHM)
                || then < worst * (1.0 - self.counts())
            {
                return Ok(());
            }
            let incumbent = self.incumbent.clone();
            of_incumbent.look(self.after_pile(&incumbent, component, Purpose::Reference)?);
            // A gain must be there after all piles together.
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

    /// Puts the incumbent in force after the pile that did it best, some times if need be.
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
