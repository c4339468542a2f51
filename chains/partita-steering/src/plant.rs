//! The optimizer's interface to a running chain: a throughput to read, and TPCs to set.

use alloc::string::String;

use thiserror::Error;

use super::Allocation;

/// The throughput of a chain: frames finished by its last component.
pub trait Objective {
    /// Lets one period pass and returns its throughput, in frames per second, finite and not
    /// negative.
    ///
    /// # Errors
    /// Why there will be no more measurements.
    fn throughput(&mut self) -> Result<f64, Stop>;
}

/// The actuator of a chain's TPCs.
pub trait Actuator {
    /// Applies to launches from now on. Running kernels end where they are.
    ///
    /// # Errors
    /// Why it cannot be applied; then the former allocation is still in force.
    fn apply(&mut self, allocation: &Allocation) -> Result<(), Stop>;
}

/// A chain that can be optimized: measured and steered. Every type that is an [`Objective`] and an
/// [`Actuator`] is one; so is a pair of them.
pub trait Plant: Objective + Actuator {}

impl<T: Objective + Actuator + ?Sized> Plant for T {}

impl<O: Objective, A> Objective for (O, A) {
    fn throughput(&mut self) -> Result<f64, Stop> {
        self.0.throughput()
    }
}

impl<O, A: Actuator> Actuator for (O, A) {
    fn apply(&mut self, allocation: &Allocation) -> Result<(), Stop> {
        self.1.apply(allocation)
    }
}

/// Why an optimizer stops.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Stop {
    /// A stop was requested.
    #[error("the optimizer was asked to stop")]
    Asked,
    /// The throughput cannot be read any more, or an allocation cannot be applied.
    #[error("the optimizer cannot go on: {reason}")]
    Failed {
        /// Why.
        reason: String,
    },
}
