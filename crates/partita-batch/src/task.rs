//! Before and after a task of a job, as the job's user.
//!
//! Before it: sets the environment of its programs, after checking that it is usable. After it:
//! ends the task's GPU work through MPS while there is time. Slurm ends the processes of a step by
//! SIGKILL, long before the epilog. A client that is killed while its kernels run takes the other
//! clients of the service with it, so its work is ended first.

use std::path::Path;
use std::time::Duration;

use partita_host::calibration::without_mps;
use partita_host::install::{self, Install};
use partita_host::registry::{LEDGER_VARIABLE, Registry};

use super::account::Account;
use super::as_user::{Action, Order, ask};
use super::deadline::Deadline;
use super::environment::Changes;
use super::job::{JobId, Owner};
use super::leftovers;
use super::record::Store;

/// The task: variables that Slurm sets for each.
const TASK: [&str; 2] = ["SLURM_STEP_ID", "SLURM_PROCID"];
/// The variable with the directory of the service, and the socket in it.
const PIPE: &str = "CUDA_MPS_PIPE_DIRECTORY";
const SOCKET: &str = "control";

/// The changes of the environment of a task that has `current`; `None` if no prolog did anything
/// for the job.
///
/// A program that cannot see the service's socket silently runs outside of MPS, so this is checked
/// in the program's own place: a task may have private directories.
///
/// # Errors
/// Why the task cannot run; for its owner.
pub fn task_prolog(dir: &Path, job: &JobId, current: &[(String, String)]) -> Result<Changes, String> {
    let environment = Store::named(dir).environment(job).map_err(|error| error.to_string())?;
    let Some(environment) = environment else { return Ok(Changes::default()) };
    let changes = environment.changes(current)?;
    for (key, inside) in [(PIPE, Some(SOCKET)), (LEDGER_VARIABLE, None)] {
        let value = changes.set.iter().find(|(name, _)| name == key).map(|(_, value)| Path::new(value));
        let without_mps = without_mps().map(|(_, value)| Path::new(value));
        let Some(path) = value.filter(|path| !without_mps.contains(path)) else { continue };
        let path = inside.map_or(path.to_owned(), |name| path.join(name));
        if !path.exists() {
            return Err(format!(
                "{}, which job {job} shall use, is not here: it has ended, or the job has private \
                 directories (Slurm: job_container/tmpfs); see `partita mps status` and `partita \
                 ps` on the node",
                path.display()
            ));
        }
    }
    Ok(changes)
}

/// Ends the GPU work of every process of the job that has the calling process's step and rank.
/// Returns these processes. For the job's user.
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
    let registry = Registry::open().map_err(|error| error.to_string())?;
    let outcome = ask(install, &registry, &account, job, Order::new(gpus, action), Deadline::after(limit));
    let outcome = outcome.map_err(|trouble| trouble.reason)?;
    match outcome.notices.into_iter().next() {
        Some(notice) => Err(notice),
        None => Ok(outcome.terminated),
    }
}
