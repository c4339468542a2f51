//! Methods by which a component applies suggested compute units.

mod affinity;
mod green;
mod masks;

use partita_core::TpcSet;
use partita_driver::{Gpu, StreamRef};

use crate::error::Error;

pub use affinity::AffinityContexts;
pub use green::GreenContexts;
pub use masks::Masks;

/// Restricts a component's launches to some TPCs.
pub trait Steer<'g> {
    /// Makes what [`Steer::apply`] would otherwise make at its first call. Called once, before the
    /// first frame.
    ///
    /// # Errors
    /// [`Error::Steer`] if it cannot; then the component does not attach.
    fn prepare(&mut self, gpu: &'g Gpu<'g>) -> Result<(), Error> {
        let _ = gpu;
        Ok(())
    }

    /// Restricts launches from now on to the set. Called between two frames.
    ///
    /// # Errors
    /// [`Error::Steer`] if it cannot; the former units stay in force.
    fn apply(&mut self, gpu: &'g Gpu<'g>, set: &TpcSet) -> Result<(), Error>;

    /// The stream for work; `None` for the component's own.
    fn stream(&self) -> Option<StreamRef<'g>>;

    /// If [`Steer::stream`] belongs to another context than the GPU's primary one: makes `stream`,
    /// which belongs to the primary one, wait for all work given to it. Returns whether it does.
    /// Events belong to the primary context, and are recorded on its streams only.
    ///
    /// # Errors
    /// The driver's.
    fn join(&self, stream: StreamRef<'_>) -> Result<bool, Error> {
        let _ = stream;
        Ok(false)
    }

    /// Its name in displays of chains.
    fn name(&self) -> &'static str;

    /// Its number in the chain's file: 1 for masks, 2 for green contexts, 3 for contexts of MPS; 0
    /// for others.
    fn code(&self) -> u64;
}

/// SMs of a TPC: two from Volta on and on a P100, one before.
pub(crate) fn sms_per_tpc(gpu: &Gpu<'_>) -> u32 {
    if matches!(gpu.facts().compute_capability, 60 | 70..) { 2 } else { 1 }
}

pub(crate) fn refused(reason: impl ToString) -> Error {
    Error::Steer { reason: reason.to_string() }
}
