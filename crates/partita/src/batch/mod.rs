//! Jobs of batch systems: what their prolog and epilog do on a node.
//!
//! The batch system calls `partita batch prolog` as root before a job and `partita batch epilog`
//! after it. The prolog reads what the job asked for, starts the MPS service of the job's user for
//! the job's GPUs, or makes the whole job one tenant, and notes what the job's programs are to see.
//! The epilog undoes exactly that.
//!
//! | module | holds | pure |
//! |---|---|---|
//! | [`request`] | what users write | yes |
//! | [`job`] | what batch systems say | yes |
//! | [`plan`] | who shares a service, what is undone, what that says of the node | yes |
//! | [`environment`] | what the job's programs are to see | yes |
//! | [`record`] | the files | |
//! | [`account`] | users | |
//! | [`as_user`] | what is done as the job's user, in a child process with a time limit | |
//! | [`strays`] | what a killed script had begun | |
//! | [`leftovers`] | processes that outlived their job | |
//! | [`mod@prolog`], [`mod@epilog`] | the two scripts | |
//! | [`task`] | what a task leaves, before Slurm kills it | |
//! | [`drain`] | taking the node out of service | |
//!
//! A service is its user's and runs as that user, as `partita run` inside the job would have it:
//! both find the same one, and root commands nothing that a user could have put in its place.

pub mod account;
pub mod as_user;
pub mod drain;
pub mod environment;
pub mod epilog;
pub mod job;
pub mod leftovers;
pub mod plan;
pub mod prolog;
pub mod record;
pub mod report;
pub mod request;
pub mod strays;
pub mod task;

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use plan::Blame;
pub use report::{Report, Step};

/// How long a prolog or an epilog may take unless told otherwise.
pub const LIMIT_DEFAULT: Duration = Duration::from_secs(60);

/// A moment by which something must be over.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    /// In this much time.
    pub fn after(limit: Duration) -> Self {
        Self(Instant::now() + limit)
    }

    /// What is left of it.
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether nothing is left.
    pub fn is_over(self) -> bool {
        self.left().is_zero()
    }

    /// The same or an earlier one: in at most this much time.
    pub fn at_most(self, limit: Duration) -> Self {
        Self(self.0.min(Instant::now() + limit))
    }
}

/// How a prolog or an epilog is to work.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where records are.
    pub dir: PathBuf,
    /// How long it may take in all.
    pub limit: Duration,
    /// Between SIGTERM and SIGKILL of what outlived its job.
    pub grace: Duration,
    /// What jobs get that asked for nothing and have GPUs.
    pub default: request::Request,
    /// Say what would be done, and do nothing.
    pub dry_run: bool,
}

/// Something that did not work, and whose fault that is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// Whose.
    pub blame: Blame,
    /// The thing, the reason and the remedy.
    pub reason: String,
}

impl Trouble {
    fn node(reason: impl ToString) -> Self {
        Self { blame: Blame::Node, reason: reason.to_string() }
    }

    fn job(reason: impl ToString) -> Self {
        Self { blame: Blame::Job, reason: reason.to_string() }
    }
}

impl From<record::StoreError> for Trouble {
    fn from(error: record::StoreError) -> Self {
        Self::node(error)
    }
}

/// Which boot of the machine this is: what ran in another is gone.
///
/// # Errors
/// If `/proc` is not mounted.
fn boot() -> Result<String, Trouble> {
    const FILE: &str = "/proc/sys/kernel/random/boot_id";
    match std::fs::read_to_string(FILE) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) => Err(Trouble::node(format!("{FILE}: {error}; mount /proc"))),
    }
}

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
