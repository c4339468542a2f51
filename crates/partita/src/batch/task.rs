//! After a task of a job: what it left on the GPU is ended through MPS while there is time.
//!
//! Slurm ends what a step leaves behind by SIGKILL, long before the epilog. A client that is killed while its kernels run
//! takes the other clients of the service along, so its work is ended first.

use std::path::Path;
use std::time::Duration;

use super::account::Account;
use super::as_user::{Action, Order, ask};
use super::job::{JobId, Owner};
use super::record::Store;
use super::{Deadline, leftovers};
use crate::install::{self, Install};

/// Which task: the variables that Slurm sets for each.
const TASK: [&str; 2] = ["SLURM_STEP_ID", "SLURM_PROCID"];

/// Ends the work on the GPU of every process of the job that has the calling process's step and rank. Returns whose work
/// was ended. For the job's user.
///
/// # Errors
/// Why not, in one line.
pub fn task_epilog(install: &Install, dir: &Path, job: &JobId, limit: Duration) -> Result<Vec<u32>, String> {
    let environment = Store::named(dir).environment(job).map_err(|error| error.to_string())?;
    let Some(environment) = environment.filter(|environment| environment.refused.is_none()) else {
        return Ok(Vec::new());
    };
    let user = rustix::process::geteuid().as_raw();
    let board = install.part(install::SIMGPU).ok();
    let own = TASK.map(std::env::var_os);
    let mut processes = leftovers::find(job, user, board.as_deref());
    processes.retain(|process| TASK.map(|key| process.variable(key)) == own);
    if processes.is_empty() {
        return Ok(Vec::new());
    }
    let account = Account::of(&Owner::Ids { user, group: None }).map_err(|trouble| trouble.reason)?;
    let action = Action::Leave {
        tenant: None,
        service: true,
        pids: processes.iter().map(|process| process.pid).collect(),
        alone: false,
        over: false,
        grace_ms: 0,
    };
    let gpus = environment.gpus.into_iter().map(|(gpu, _)| gpu).collect();
    let outcome = ask(install, &account, job, Order::new(gpus, action), Deadline::after(limit));
    let outcome = outcome.map_err(|trouble| trouble.reason)?;
    match outcome.notices.into_iter().next() {
        Some(notice) => Err(notice),
        None => Ok(outcome.terminated),
    }
}
