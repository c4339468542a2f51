//! How a component keeps to the compute units that were suggested to it.

mod affinity;
mod green;
mod masks;

use partita_core::TpcSet;
use partita_driver::{Gpu, StreamRef};

use crate::error::Error;

pub use affinity::AffinityContexts;
pub use green::GreenContexts;
pub use masks::Masks;

/// Keeps a component's launches to some TPCs.
pub trait Steer<'g> {
    /// Has launches from now on keep to the set. Called between two frames.
    ///
    /// # Errors
    /// [`Error::Steer`] if it cannot; what was before holds on.
    fn apply(&mut self, gpu: &'g Gpu<'g>, set: &TpcSet) -> Result<(), Error>;

    /// The stream that work has to go to; `None` for the component's own.
    fn stream(&self) -> Option<StreamRef<'g>>;

    /// Where [`Steer::stream`] is of another context than the GPU's primary one: has `stream`,
    /// which is of that, wait for all that it was given. Whether it is. Events are of the primary
    /// context, and recorded on its streams alone.
    ///
    /// # Errors
    /// The driver's.
    fn join(&self, stream: StreamRef<'_>) -> Result<bool, Error> {
        let _ = stream;
        Ok(false)
    }

    /// What it is called where chains are watched.
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
