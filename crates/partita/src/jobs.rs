//! The jobs that run in child processes, by name.

use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::batch::as_user;
use crate::calibration::{serve, streams};
use crate::child::{Outcome, result_line};
use crate::{audit, calibration, demo, doctor, facts, numerics, prove};

/// Runs the job `name` in this process and returns the line to print as its result.
///
/// # Errors
/// An unknown job or a request that is not the job's: another version's process asked.
pub fn run(name: &str, request: &str) -> Result<String, String> {
    match name {
        as_user::JOB => job(request, |order| as_user::work(&order)),
        audit::JOB => job(request, |()| audit::read_here()),
        facts::JOB => job(request, |()| facts::read()),
        calibration::JOB => job(request, |()| calibration::measure_here()),
        serve::JOB => job(request, |request| serve::keep_here(&request)),
        streams::SEARCH_JOB => job(request, |request| streams::search_here(&request)),
        streams::ASK_JOB => job(request, |request| streams::ask_here(&request)),
        streams::VERIFY_JOB => job(request, |request| streams::verify_here(&request)),
        demo::JOB => job(request, demo::act),
        prove::JOB => job(request, |order| prove::prove_here(&order)),
        doctor::jobs::CENSUS => job(request, doctor::jobs::census),
        doctor::exports::JOB => job(request, |()| doctor::exports::exports()),
        doctor::jobs::QUOTA => job(request, doctor::jobs::quota),
        doctor::jobs::BEATS => job(request, |request| doctor::jobs::beats(&request)),
        numerics::JOB => job(request, |libraries: Vec<PathBuf>| numerics::multiply(&libraries)),
        _ => Err(format!("there is no job {name:?}; the processes of one partita are of different versions")),
    }
}

/// Does the work of one job and returns the line to print as its result: for jobs of programs that
/// this library does not know.
///
/// # Errors
/// A request that is not the job's.
pub fn job<R: DeserializeOwned, T: Serialize>(
    request: &str,
    work: impl FnOnce(R) -> Result<T, String>,
) -> Result<String, String> {
    // Nobody waits for a job whose parent is gone, and nobody would end it.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let request = serde_json::from_str(request).map_err(|error| error.to_string())?;
    let outcome = match work(request) {
        Ok(result) => Outcome::Done(result),
        Err(reason) => Outcome::Failed(reason),
    };
    result_line(&outcome).map_err(|error| error.to_string())
}
