//! Trials: what is applied, measured and written down.

use alloc::vec::Vec;

use super::{Allocation, Plant, Stop};

/// Why something was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Purpose {
    /// The chain as it runs, to compare with.
    Reference,
    /// A component was restricted strongly, to see how much the chain needs it.
    Restriction {
        /// Which one.
        component: usize,
    },
    /// An allocation that may be better.
    Candidate,
    /// Whether what was found is still better than what there was at the beginning.
    Verification,
}

impl Purpose {
    /// Its name, in one word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Restriction { .. } => "restriction",
            Self::Candidate => "candidate",
            Self::Verification => "verification",
        }
    }
}

/// One measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// The period in which it was measured, counted from 1 at the beginning of the search.
    pub period: u64,
    /// Why.
    pub purpose: Purpose,
    /// What was in force.
    pub allocation: Allocation,
    /// What was measured, in frames per second.
    pub frames_per_s: f64,
}

/// What a search has come to.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// What is in force now.
    pub allocation: Allocation,
    /// The throughput measured with it, in frames per second.
    pub frames_per_s: f64,
    /// Every measurement, in order.
    pub trials: Vec<Trial>,
    /// Periods that the search took, those in which the chain settled included.
    pub periods: u64,
}

impl Found {
    /// How often an allocation was put in force and measured: the trials but those of what ran
    /// anyway.
    #[must_use]
    pub fn candidates(&self) -> usize {
        self.trials.iter().filter(|trial| trial.purpose != Purpose::Reference).count()
    }
}

/// A plant on which allocations are tried.
pub(super) struct Trials<'a, P: ?Sized> {
    plant: &'a mut P,
    in_force: Allocation,
    /// Periods that pass unmeasured after a change.
    settle_periods: u32,
    /// Of those, how many are still to pass.
    unsettled: u32,
    periods: u64,
    log: Vec<Trial>,
}

impl<'a, P: Plant + ?Sized> Trials<'a, P> {
    /// A plant on which `in_force` is in force.
    pub(super) fn new(plant: &'a mut P, in_force: &Allocation, settle_periods: u32) -> Self {
        Self { plant, in_force: in_force.clone(), settle_periods, unsettled: 0, periods: 0, log: Vec::new() }
    }

    /// Puts an allocation in force, if it is not.
    pub(super) fn apply(&mut self, allocation: &Allocation) -> Result<(), Stop> {
        if self.in_force != *allocation {
            self.plant.apply(allocation)?;
            self.in_force = allocation.clone();
            self.unsettled = self.settle_periods;
        }
        Ok(())
    }

    /// Puts an allocation in force, lets the chain settle and measures.
    pub(super) fn measure(&mut self, allocation: &Allocation, purpose: Purpose) -> Result<f64, Stop> {
        self.apply(allocation)?;
        while self.unsettled > 0 {
            self.period()?;
            self.unsettled -= 1;
        }
        let frames_per_s = self.period()?;
        let allocation = allocation.clone();
        self.log.push(Trial { period: self.periods, purpose, allocation, frames_per_s });
        Ok(frames_per_s)
    }

    /// Puts an allocation in force for a period that nobody measures.
    pub(super) fn pass(&mut self, allocation: &Allocation) -> Result<(), Stop> {
        self.apply(allocation)?;
        self.period()?;
        self.unsettled = self.unsettled.saturating_sub(1);
        Ok(())
    }

    fn period(&mut self) -> Result<f64, Stop> {
        let frames_per_s = self.plant.throughput()?;
        self.periods += 1;
        // What is no number is no throughput.
        Ok(if frames_per_s.is_finite() { frames_per_s.max(0.0) } else { 0.0 })
    }

    /// Ends the search with what is in force, for which that was measured.
    pub(super) fn finish(self, frames_per_s: f64) -> Found {
        Found { allocation: self.in_force, frames_per_s, trials: self.log, periods: self.periods }
    }
}
