//! The jobs of this crate that run in child processes, by name.

use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::calibration::{self, counted, serve, streams};
use crate::child::{Outcome, result_line};
use crate::mig;
use crate::mps::{canary, vacancy};
use crate::{facts, numerics, vf};

/// Runs the job `name` in this process and returns the line to print as its result. None if it is
/// no job of this crate.
///
/// # Errors
/// A request that is not the job's: another version's process asked.
pub fn run(name: &str, request: &str) -> Option<Result<String, String>> {
    Some(match name {
        facts::JOB => job(request, |()| facts::read()),
        calibration::JOB => job(request, |()| calibration::measure_here()),
        counted::JOB => job(request, |()| counted::count_here()),
        serve::JOB => job(request, |request| serve::keep_here(&request)),
        streams::SEARCH_JOB => job(request, |request| streams::search_here(&request)),
        streams::ASK_JOB => job(request, |request| streams::ask_here(&request)),
        streams::VERIFY_JOB => job(request, |request| streams::verify_here(&request)),
        mig::JOB => job(request, |request| mig::work_here(&request)),
        vf::JOB => job(request, |request| vf::work_here(&request)),
        vacancy::JOB => job(request, |request| vacancy::look_here(&request)),
        canary::JOB => job(request, |()| canary::launch_here()),
        numerics::JOB => job(request, |libraries: Vec<PathBuf>| numerics::multiply(&libraries)),
        _ => return None,
    })
}

/// Does the work of one job and returns the line to print as its result.
///
/// # Errors
/// A request that is not the job's.
pub fn job<R: DeserializeOwned, T: Serialize>(
    request: &str,
    work: impl FnOnce(R) -> Result<T, String>,
) -> Result<String, String> {
    // A job without its parent has no reader, and nothing would end it.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let request = serde_json::from_str(request).map_err(|error| error.to_string())?;
    let outcome = match work(request) {
        Ok(result) => Outcome::Done(result),
        Err(reason) => Outcome::Failed(reason),
    };
    result_line(&outcome).map_err(|error| error.to_string())
}
