//! The jobs of this crate that run in child processes, by name.

use partita_host::jobs::job;

use crate::doctor::{exports, jobs};
use crate::{audit, demo, prove};

/// As [`partita_host::jobs::run`].
///
/// # Errors
/// A request of another job: another version's process sent it.
pub fn run(name: &str, request: &str) -> Option<Result<String, String>> {
    Some(match name {
        audit::JOB => job(request, |()| audit::read_here()),
        demo::JOB => job(request, demo::act),
        prove::JOB => job(request, |order| prove::prove_here(&order)),
        exports::JOB => job(request, |()| exports::exports()),
        jobs::CENSUS => job(request, jobs::census),
        jobs::QUOTA => job(request, jobs::quota),
        jobs::BEATS => job(request, |request| jobs::beats(&request)),
        _ => return None,
    })
}
