//! Jobs that share a service.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Jobs that share a service: of one user, on the same GPUs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Group {
    /// The user.
    pub user: u32,
    /// The GPUs in the form of `--gpu`, sorted. A node's batch system names each in one way.
    pub gpus: Vec<String>,
}

impl Group {
    /// The group of a user's jobs on these GPUs.
    pub fn new(user: u32, gpus: &[String]) -> Self {
        let mut gpus = gpus.to_vec();
        // Numbers by their value: 2 before 10.
        gpus.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
        gpus.dedup();
        Self { user, gpus }
    }

    /// In the form of `--gpu`.
    pub fn selectors(&self) -> String {
        self.gpus.join(",")
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the MPS service of user {} on GPU {}", self.user, self.selectors())
    }
}
