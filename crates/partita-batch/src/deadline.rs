//! Until when a script may work.

use std::time::{Duration, Instant};

/// How long a prolog or an epilog may take unless told otherwise.
pub const LIMIT_DEFAULT: Duration = Duration::from_secs(60);

/// A moment by which something must be over.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    /// In this much time.
    pub fn after(limit: Duration) -> Self {
        Self(Instant::now() + limit)
    }

    /// What is left of it.
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether nothing is left.
    pub fn is_over(self) -> bool {
        self.left().is_zero()
    }

    /// The same or an earlier one: in at most this much time.
    pub fn at_most(self, limit: Duration) -> Self {
        Self(self.0.min(Instant::now() + limit))
    }
}
