//! The job of this crate that runs in a child process.

use partita_host::jobs::job;

use crate::as_user;

/// As [`partita_host::jobs::run`].
///
/// # Errors
/// A request of another job: another version's process sent it.
pub fn run(name: &str, request: &str) -> Option<Result<String, String>> {
    (name == as_user::JOB).then(|| job(request, |order| as_user::work(&order)))
}
