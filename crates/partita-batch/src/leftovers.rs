//! Processes that outlived their job.
//!
//! Batch systems end a job's processes themselves, with SIGKILL, as far as they know them. The
//! remaining ones have left the job's session, or hang in the driver.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use partita_host::kill::KILL_LIMIT;
use partita_host::process::{ProcessId, pids};
use rustix::process::Signal;

use super::deadline::Deadline;
use super::job::{JobId, System};

const POLL: Duration = Duration::from_millis(10);
/// Slurm sets this for its scripts, including the epilog that searches.
const SCRIPT_CONTEXT: &str = "SLURM_SCRIPT_CONTEXT";
/// The process under which Slurm runs each step.
const STEP_DAEMON: &str = "slurmstepd";

/// Every living process of the job: those of its user that have its id in their environment, or
/// that are in its control group of Slurm. Never the caller or its ancestors, nor a simulated GPU
/// (`board`), which belongs to the machine although the first program on it starts it.
pub fn find(job: &JobId, user: u32, board: Option<&Path>) -> BTreeSet<ProcessId> {
    let callers = callers();
    pids()
        .filter_map(ProcessId::living)
        .filter(|process| process.user() == Some(user) && !callers.contains(process))
        .filter(|process| is_of(*process, job) && !(user == 0 && is_machinery(*process)))
        .filter(|process| board.is_none_or(|board| !runs(*process, board)))
        .collect()
}

fn runs(process: ProcessId, program: &Path) -> bool {
    fs::read_link(format!("/proc/{}/exe", process.pid)).is_ok_and(|path| path == program)
}

/// This process and its ancestors.
fn callers() -> BTreeSet<ProcessId> {
    let own = ProcessId::own().ok();
    std::iter::successors(own, |process| process.parent()).collect()
}

fn is_of(process: ProcessId, job: &JobId) -> bool {
    if process.variable(job.system.id_variable()).is_some_and(|id| id.to_str() == Some(&job.id)) {
        return true;
    }
    job.system == System::Slurm
        && fs::read_to_string(format!("/proc/{}/cgroup", process.pid))
            .is_ok_and(|text| is_in_group_of(&text, &job.id))
}

/// Whether a `/proc/PID/cgroup` names a control group of Slurm for the job: `…/job_4711/step_0/…`.
fn is_in_group_of(text: &str, id: &str) -> bool {
    let component = format!("job_{id}");
    text.lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .any(|path| path.contains("slurm") && path.split('/').any(|part| part == component))
}

/// A job of root has the same user as the batch system itself.
fn is_machinery(process: ProcessId) -> bool {
    let context = process.variable(SCRIPT_CONTEXT).unwrap_or_default();
    let context = context.to_string_lossy();
    let is_script = context.starts_with("prolog_") || context.starts_with("epilog_");
    let name = fs::read_to_string(format!("/proc/{}/comm", process.pid)).unwrap_or_default();
    is_script || name.trim() == STEP_DAEMON
}

/// The result of [`end`].
#[derive(Debug, Default)]
pub struct Ended {
    /// How many processes there were.
    pub processes: usize,
    /// Those that do not die.
    pub left: Vec<ProcessId>,
}

/// Ends the processes that `find` returns, until it returns none: SIGTERM, and SIGKILL after
/// `grace`. `before` is called with new processes, before their first signal.
pub fn end(
    find: impl Fn() -> BTreeSet<ProcessId>,
    mut before: impl FnMut(&BTreeSet<ProcessId>),
    grace: Duration,
    deadline: Deadline,
) -> Ended {
    let mut seen = BTreeSet::new();
    for (signal, patience) in [(Signal::TERM, grace), (Signal::KILL, KILL_LIMIT)] {
        let until = deadline.at_most(patience);
        let mut told = BTreeSet::new();
        loop {
            let found = find();
            if found.is_empty() {
                return Ended { processes: seen.len(), left: Vec::new() };
            }
            let new: BTreeSet<ProcessId> = found.difference(&seen).copied().collect();
            if !new.is_empty() {
                before(&new);
                seen.extend(new);
            }
            for process in found.difference(&told) {
                // A process that this user must not end stays, and is reported.
                let _ = process.signal(signal);
            }
            told.extend(found);
            if until.is_over() {
                break;
            }
            thread::sleep(POLL);
        }
    }
    Ended { processes: seen.len(), left: find().into_iter().collect() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    use super::*;

    #[test]
    fn control_groups_of_slurm() {
        for (text, id, is) in [
            ("0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0\n", "12", true),
            ("11:devices:/slurm/uid_1000/job_12/step_batch\n0::/user.slice\n", "12", true),
            ("0::/system.slice/slurmstepd.scope/job_123/step_0\n", "12", false),
            ("0::/user.slice/job_12\n", "12", false),
            ("", "12", false),
            ("nonsense\n", "12", false),
        ] {
            assert_eq!(is_in_group_of(text, id), is, "{text}");
        }
    }

    fn user() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn start(id: &str, script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("SLURM_JOB_ID", id).env_remove(SCRIPT_CONTEXT).process_group(0);
        command.spawn().unwrap()
    }

    /// Until it has its environment.
    fn wait(job: &JobId) -> BTreeSet<ProcessId> {
        loop {
            let found = find(job, user(), None);
            if !found.is_empty() {
                return found;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_process_that_ignores_sigterm_ends_and_others_live() {
        let id = format!("99{}", std::process::id());
        let job = JobId::new(System::Slurm, &id).unwrap();
        let mut stubborn = start(&id, "trap '' TERM; while :; do sleep 1000; done");
        let mut other = start(&format!("{id}0"), "exec sleep 1000");
        wait(&job);
        let mut announced = BTreeSet::new();
        let ended = end(
            || {
                // A zombie is not found, so there is no need to wait for it.
                find(&job, user(), None)
            },
            |new| announced.extend(new.iter().copied()),
            Duration::from_millis(30),
            Deadline::after(Duration::from_secs(60)),
        );
        assert!(ended.left.is_empty() && ended.processes >= 1, "{ended:?}");
        assert!(announced.iter().any(|process| process.pid == stubborn.id()));
        assert!(!stubborn.wait().unwrap().success());
        assert!(other.try_wait().unwrap().is_none());
        // Processes of the machine itself are spared.
        let other_job = JobId::new(System::Slurm, &format!("{id}0")).unwrap();
        let program = fs::read_link(format!("/proc/{}/exe", other.id())).unwrap();
        assert_eq!(find(&other_job, user(), None).len(), 1);
        assert_eq!(find(&other_job, user(), Some(&program)).len(), 0);
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn scripts_of_the_batch_system_are_no_leftovers() {
        if user() != 0 {
            eprintln!("skipped: only root's jobs have the same user as the batch system");
            return;
        }
        let id = format!("98{}", std::process::id());
        let job = JobId::new(System::Slurm, &id).unwrap();
        let mut script = Command::new("sleep")
            .arg("1000")
            .env("SLURM_JOB_ID", &id)
            .env(SCRIPT_CONTEXT, "epilog_slurmd")
            .spawn()
            .unwrap();
        let mut process = start(&id, "exec sleep 1000");
        assert_eq!(wait(&job).iter().map(|process| process.pid).collect::<Vec<_>>(), [process.id()]);
        for child in [&mut script, &mut process] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
