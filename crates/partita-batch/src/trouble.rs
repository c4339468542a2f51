//! Errors of batch jobs, and whose fault they are.

use serde::{Deserialize, Serialize};

use super::record::StoreError;

/// Whose fault an error is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// The job's: it requests something that does not exist. The node is healthy, and the next try
    /// fails too.
    Job,
    /// The node's: the next job of this kind would fail as well.
    Node,
}

/// An error, and whose fault it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// Whose.
    pub blame: Blame,
    /// The thing, the reason and the remedy.
    pub reason: String,
}

impl Trouble {
    pub(super) fn node(reason: impl ToString) -> Self {
        Self { blame: Blame::Node, reason: reason.to_string() }
    }

    pub(super) fn job(reason: impl ToString) -> Self {
        Self { blame: Blame::Job, reason: reason.to_string() }
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::node(error)
    }
}
