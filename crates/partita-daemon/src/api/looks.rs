//! The results of the last health check.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use utoipa::ToSchema;

use crate::problem::Problem;

/// How long a check is valid.
const FRESH: Duration = Duration::from_secs(5);

/// A part that the daemon needs.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Part {
    /// `store`, `registry`, `gpus` or `keepers`.
    pub name: &'static str,
    /// Whether it works.
    pub works: bool,
    /// What was found, or what is wrong and what to do about it.
    pub detail: String,
}

impl Part {
    pub fn of(name: &'static str, found: Result<String, Problem>) -> Self {
        match found {
            Ok(detail) => Self { name, works: true, detail },
            Err(problem) => Self { name, works: false, detail: problem.detail },
        }
    }
}

/// The results of checks.
#[derive(Debug, Default)]
pub(super) struct Looks {
    is_looking: AtomicBool,
    last: Mutex<Option<(Instant, Arc<Vec<Part>>)>>,
}

impl Looks {
    /// Whether the caller shall check now: no check runs or has just ended.
    pub fn begin(&self) -> bool {
        let is_fresh = self.last().is_some_and(|(at, _)| at.elapsed() < FRESH);
        !is_fresh && !self.is_looking.swap(true, Ordering::Relaxed)
    }

    /// The end of a check.
    pub fn end(&self, parts: Vec<Part>) {
        let found = Some((Instant::now(), Arc::new(parts)));
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = found;
        self.is_looking.store(false, Ordering::Relaxed);
    }

    pub fn last(&self) -> Option<(Instant, Arc<Vec<Part>>)> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
