//! Chains of components on the model: the optimizer's algorithms on the paper's nine chain sets.
//!
//! A chain's components are clients of one MPS service on a modelled GPU ([`ModelChain`]); it is an
//! [`Objective`](partita_steering::Objective) and an
//! [`Actuator`](partita_steering::Actuator), as a real one is, so the algorithms run on it
//! unchanged. The oracle tries allocations ([`oracle`]).

mod oracle;
mod outcome;
mod regime;
pub mod report;
mod run;
mod sets;

pub use oracle::{Oracle, Rig, oracle};
pub use outcome::{ChainError, Outcome, Row, measure};
pub use regime::{Bound, REGIMES, Regime};
pub use run::{ChainOptions, ModelChain};
pub use sets::{CHAIN_SETS, ChainSet, Grids, IMAGE_CHAIN, Kind, PAPER_SMS, Size, Workload};
