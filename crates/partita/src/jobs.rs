//! The jobs that run in child processes, by name.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::child::{Outcome, result_line};
use crate::{calibration, facts};

/// Runs the job `name` in this process and returns the line to print as its result.
///
/// # Errors
/// An unknown job or a request that is not the job's: another version's process asked.
pub fn run(name: &str, request: &str) -> Result<String, String> {
    match name {
        facts::JOB => job(request, |()| facts::read()),
        calibration::JOB => job(request, |()| calibration::measure_here()),
        _ => Err(format!("there is no job {name:?}; the processes of one partita are of different versions")),
    }
}

fn job<R: DeserializeOwned, T: Serialize>(
    request: &str,
    work: impl FnOnce(R) -> Result<T, String>,
) -> Result<String, String> {
    let request = serde_json::from_str(request).map_err(|error| error.to_string())?;
    let outcome = match work(request) {
        Ok(result) => Outcome::Done(result),
        Err(reason) => Outcome::Failed(reason),
    };
    result_line(&outcome).map_err(|error| error.to_string())
}
