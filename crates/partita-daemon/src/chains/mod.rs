//! The chains that run on this machine, as the daemon sees them ([`Chains`]).
//!
//! The daemon stores definitions. Chains run without it and outlive it, so each request queries the
//! process that runs the chain.

mod facade;
mod running;

use std::time::Duration;

use partita_chain_host::{Definition, Steering};

pub use facade::{Facade, START_SUBCOMMAND};
pub use running::{Running, RunningComponent, Step};

use crate::problem::Problem;

/// The chains that run on this machine. Calls may block for as long as a look at files of chains
/// takes.
pub trait Chains: std::fmt::Debug + Send + Sync + 'static {
    /// Every chain that runs, by name.
    ///
    /// # Errors
    /// Why that cannot be told.
    fn running(&self) -> Result<Vec<Running>, Problem>;

    /// The chain of this name; none if it does not run.
    ///
    /// # Errors
    /// Why that cannot be told.
    fn look(&self, name: &str) -> Result<Option<Running>, Problem> {
        Ok(self.running()?.into_iter().find(|chain| chain.name == name))
    }

    /// Has the units of a running chain divided so from now on, because `user` asks.
    ///
    /// # Errors
    /// [`Kind::Conflict`](crate::Kind::Conflict) if it does not run;
    /// [`Kind::Forbidden`](crate::Kind::Forbidden); what it cannot have.
    fn steer(&self, name: &str, steering: &Steering, user: u32) -> Result<(), Problem>;

    /// Starts a chain, which then runs without the daemon, and waits until it runs.
    ///
    /// # Errors
    /// Why it does not start; [`Kind::TimedOut`](crate::Kind::TimedOut) if that takes longer than
    /// `patience`.
    fn start(&self, definition: &Definition, patience: Duration) -> Result<Running, Problem>;
}
