//! The report of a prolog or an epilog.

use std::fmt;

use partita_core::Count;
use serde::Serialize;

use super::deadline::Deadline;
use super::job::{Job, JobId};
use super::options::Options;
use super::plan::{Blame, Stage, Verdict, verdict};
use super::trouble::Trouble;

/// An action, done or planned in a dry run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// The job requested nothing.
    NothingAsked,
    /// There was nothing to undo.
    NothingToUndo {
        /// Why not.
        reason: String,
    },
    /// The job will be refused, with the reason in its output.
    JobRefused,
    /// A service was started, or ran already.
    ServiceUp {
        /// The daemon; `None` in a dry run.
        daemon: Option<u32>,
        /// Whether this call started it.
        started: bool,
    },
    /// Every process of the job will be in this tenant.
    TenantUp {
        /// Its name.
        tenant: String,
    },
    /// The tenant and its processes were ended.
    TenantEnded {
        /// Its name.
        tenant: String,
        /// Its processes.
        processes: usize,
    },
    /// GPU work of clients was ended through MPS.
    ClientsTerminated {
        /// Their processes, as MPS lists them.
        pids: Vec<u32>,
        /// Those of them that had ended already.
        zombies: Vec<u32>,
    },
    /// Processes outlived their job.
    ProcessesEnded {
        /// How many.
        processes: usize,
    },
    /// Other jobs use the service.
    ServiceKept {
        /// Which.
        jobs: Vec<JobId>,
    },
    /// The service is the machine's.
    ServiceOfMachine,
    /// The service was stopped, and its directories removed.
    ServiceStopped {
        /// Whether a daemon ran.
        ran: bool,
    },
    /// The node takes no more jobs.
    NodeDrained {
        /// The command that drained it.
        command: String,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingAsked => f.write_str("it requested nothing"),
            Self::NothingToUndo { reason } => write!(f, "nothing to undo: {reason}"),
            Self::JobRefused => f.write_str("its tasks are refused"),
            Self::ServiceUp { daemon: Some(daemon), started: true } => {
                write!(f, "MPS started (daemon {daemon})")
            }
            Self::ServiceUp { daemon: Some(daemon), .. } => write!(f, "MPS runs already (daemon {daemon})"),
            Self::ServiceUp { daemon: None, .. } => f.write_str("MPS runs"),
            Self::TenantUp { tenant } => write!(f, "tenant {tenant} is ready"),
            Self::TenantEnded { tenant, processes } => {
                write!(f, "tenant {tenant} ended ({})", Count(*processes, "process"))
            }
            Self::ClientsTerminated { pids, zombies } => {
                write!(f, "{} terminated, {} of them zombies", Count(pids.len(), "MPS client"), zombies.len())
            }
            Self::ProcessesEnded { processes } => {
                write!(f, "{} ended", Count(*processes, "left-over process"))
            }
            Self::ServiceKept { jobs } if jobs.is_empty() => {
                f.write_str("MPS continues: damaged records may belong to jobs that use it")
            }
            Self::ServiceKept { jobs } => {
                let jobs: Vec<String> = jobs.iter().map(JobId::to_string).collect();
                write!(f, "MPS continues for {}", jobs.join(", "))
            }
            Self::ServiceOfMachine => f.write_str("MPS continues: it serves all users of this machine"),
            Self::ServiceStopped { ran: true } => f.write_str("MPS stopped"),
            Self::ServiceStopped { ran: false } => f.write_str("MPS did not run"),
            Self::NodeDrained { command } => write!(f, "the node was drained by `{command}`"),
        }
    }
}

/// A problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Whose fault it is; `None` if it has no consequences.
    pub blame: Option<Blame>,
    /// The thing, the reason and the remedy.
    pub reason: String,
}

/// The report of a prolog or an epilog.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Which script.
    pub stage: Stage,
    /// The job.
    pub job: JobId,
    /// Its GPUs, as the batch system names them.
    pub gpus: Vec<String>,
    /// Its request, or the default.
    pub request: Option<String>,
    /// Whether this is a dry run.
    pub dry_run: bool,
    /// The actions, in order.
    pub steps: Vec<Step>,
    /// The problems.
    pub problems: Vec<Problem>,
}

impl Report {
    /// The report of `attempt`, with the options' timeout, including its error.
    pub(super) fn of(
        stage: Stage,
        options: &Options,
        job: &Job,
        attempt: impl FnOnce(Deadline, &mut Self) -> Result<(), Trouble>,
    ) -> Self {
        let mut report = Self {
            stage,
            job: job.id.clone(),
            gpus: job.gpus.clone(),
            request: None,
            dry_run: options.dry_run,
            steps: Vec::new(),
            problems: Vec::new(),
        };
        if let Err(trouble) = attempt(Deadline::after(options.limit), &mut report) {
            report.trouble(trouble);
        }
        report
    }

    pub(super) fn step(&mut self, step: Step) {
        self.steps.push(step);
    }

    pub(super) fn trouble(&mut self, trouble: Trouble) {
        self.problem(Some(trouble.blame), trouble.reason);
    }

    pub(super) fn notice(&mut self, reason: impl ToString) {
        self.problem(None, reason.to_string());
    }

    /// Adds a problem. If several actions fail for the same reason, the report has it once.
    fn problem(&mut self, blame: Option<Blame>, reason: String) {
        match self.problems.iter_mut().find(|problem| problem.reason == reason) {
            Some(known) => known.blame = known.blame.max(blame),
            None => self.problems.push(Problem { blame, reason }),
        }
    }

    /// The result for the batch system.
    pub fn verdict(&self) -> Verdict {
        let blames = || self.problems.iter().filter_map(|problem| problem.blame);
        let worst = blames().find(|blame| *blame == Blame::Node).or_else(|| blames().next());
        verdict(self.job.system, self.stage, worst)
    }

    /// Why the node shall take no more jobs, in one line.
    pub fn drain_reason(&self) -> String {
        let node = self.problems.iter().find(|problem| problem.blame == Some(Blame::Node));
        format!("partita: job {}: {}", self.job, node.map_or("", |problem| &problem.reason))
    }
}
