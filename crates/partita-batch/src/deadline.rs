//! The deadline of a script.

use std::time::{Duration, Instant};

/// Default timeout of a prolog or an epilog.
pub const LIMIT_DEFAULT: Duration = Duration::from_secs(60);

/// A deadline.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    /// In this much time.
    pub fn after(limit: Duration) -> Self {
        Self(Instant::now() + limit)
    }

    /// The remaining time.
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether it has passed.
    pub fn is_over(self) -> bool {
        self.left().is_zero()
    }

    /// The same or an earlier deadline: in at most this much time.
    pub fn at_most(self, limit: Duration) -> Self {
        Self(self.0.min(Instant::now() + limit))
    }
}
