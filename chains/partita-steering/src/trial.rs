//! Trials: apply, measure and record allocations.

use alloc::vec::Vec;

use super::{Allocation, Plant, Stop};

/// The purpose of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Purpose {
    /// The chain as it runs, for comparison.
    Reference,
    /// A component was restricted strongly, to find out how much the chain needs it.
    Restriction {
        /// Its number.
        component: usize,
    },
    /// An allocation that may be better.
    Candidate,
    /// Whether the result is still better than the initial allocation.
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
    pub purpose: Purpose,
    pub allocation: Allocation,
    /// The throughput, in frames per second.
    pub frames_per_s: f64,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The allocation in force now.
    pub allocation: Allocation,
    /// The throughput measured with it, in frames per second.
    pub frames_per_s: f64,
    /// All measurements, in order.
    pub trials: Vec<Trial>,
    /// Periods of the search, including those for settling.
    pub periods: u64,
}

impl Found {
    /// How many times an allocation was applied and measured: the trials without those of the
    /// running one.
    #[must_use]
    pub fn candidates(&self) -> usize {
        self.trials.iter().filter(|trial| trial.purpose != Purpose::Reference).count()
    }
}

/// A plant for trying allocations.
pub(super) struct Trials<'a, P: ?Sized> {
    plant: &'a mut P,
    in_force: Allocation,
    /// Periods without a measurement after a change.
    settle_periods: u32,
    /// How many of those remain.
    unsettled: u32,
    periods: u64,
    log: Vec<Trial>,
}

impl<'a, P: Plant + ?Sized> Trials<'a, P> {
    /// A plant with the allocation `in_force`.
    pub(super) fn new(plant: &'a mut P, in_force: &Allocation, settle_periods: u32) -> Self {
        Self { plant, in_force: in_force.clone(), settle_periods, unsettled: 0, periods: 0, log: Vec::new() }
    }

    /// Applies an allocation, unless it is in force.
    pub(super) fn apply(&mut self, allocation: &Allocation) -> Result<(), Stop> {
        if self.in_force != *allocation {
            self.plant.apply(allocation)?;
            self.in_force = allocation.clone();
            self.unsettled = self.settle_periods;
        }
        Ok(())
    }

    /// Applies an allocation, lets the chain settle and measures.
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

    /// Applies an allocation for a period without a measurement.
    pub(super) fn pass(&mut self, allocation: &Allocation) -> Result<(), Stop> {
        self.apply(allocation)?;
        self.period()?;
        self.unsettled = self.unsettled.saturating_sub(1);
        Ok(())
    }

    fn period(&mut self) -> Result<f64, Stop> {
        let frames_per_s = self.plant.throughput()?;
        self.periods += 1;
        // NaN is not a throughput.
        Ok(if frames_per_s.is_finite() { frames_per_s.max(0.0) } else { 0.0 })
    }

    /// Ends the search with the allocation in force, which had this throughput.
    pub(super) fn finish(self, frames_per_s: f64) -> Found {
        Found { allocation: self.in_force, frames_per_s, trials: self.log, periods: self.periods }
    }
}
