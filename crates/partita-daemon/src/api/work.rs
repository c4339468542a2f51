//! The blocking work of users' requests: a few of a user at a time, in their order.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// Blocking work at once of a user other than root and the daemon's own. All such work needs the
/// registry's lock, and those who wait for it poll, so users with many requests would keep it from
/// others and from the daemon.
const WORK_OF_USER_MAX: usize = 4;

tokio::task_local! {
    /// Permits for the blocking work of the user whose request this task answers.
    pub(super) static WORK_OF_USER: Arc<Semaphore>;
}

/// What a user's requests have in common.
#[derive(Debug)]
pub(super) struct OfUser {
    /// Requests that are being answered.
    pub running: usize,
    /// Permits for their blocking work.
    pub work: Arc<Semaphore>,
}

impl Default for OfUser {
    fn default() -> Self {
        Self { running: 0, work: Arc::new(Semaphore::new(WORK_OF_USER_MAX)) }
    }
}

impl OfUser {
    /// Whether neither requests nor work are left: the work of a request outlives its time limit.
    pub fn is_idle(&self) -> bool {
        self.running == 0 && self.work.available_permits() == WORK_OF_USER_MAX
    }
}
