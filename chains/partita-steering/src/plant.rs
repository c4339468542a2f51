//! What an optimizer sees of a running chain: a throughput to be read, and TPCs to be set.

use alloc::string::String;

use thiserror::Error;

use super::Allocation;

/// The throughput of a chain: frames that its last component has finished.
pub trait Objective {
    /// Lets one period pass and returns the throughput in it, in frames per second, finite and not
    /// negative.
    ///
    /// # Errors
    /// Why there will be no more measurements.
    fn throughput(&mut self) -> Result<f64, Stop>;
}

/// What gives the components of a chain their TPCs.
pub trait Actuator {
    /// Launches from now on keep to this. Kernels that run already end where they are.
    ///
    /// # Errors
    /// Why it cannot be applied; then the allocation before it is still in force.
    fn apply(&mut self, allocation: &Allocation) -> Result<(), Stop>;
}

/// A chain that can be optimized: measured and steered. Everything that is an [`Objective`] and an
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
    /// Somebody asked it to.
    #[error("the optimizer was asked to stop")]
    Asked,
    /// The throughput cannot be read any more, or an allocation cannot be applied.
    #[error("the optimizer cannot go on: {reason}")]
    Failed {
        /// Why.
        reason: String,
    },
}
