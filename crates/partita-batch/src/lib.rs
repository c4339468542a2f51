//! Jobs of batch systems: the work of their prolog and epilog on a node.
//!
//! The batch system calls `partita batch prolog` as root before a job and `partita batch epilog`
//! after it. The prolog reads the job's request, starts the MPS service of the job's user for the
//! job's GPUs, or makes the whole job one tenant, and records the environment of the job's
//! programs. The epilog undoes exactly that.
//!
//! | module | holds | pure |
//! |---|---|---|
//! | [`request`] | what users write | yes |
//! | [`job`] | what batch systems say | yes |
//! | [`plan`] | which jobs share a service, what is undone, and what that means for the node | yes |
//! | [`environment`] | the environment of the job's programs | yes |
//! | [`record`] | the files | |
//! | [`account`] | users | |
//! | [`as_user`] | the work for the job's user, in a child process with a timeout | |
//! | [`strays`] | unfinished work of a killed script | |
//! | [`leftovers`] | processes that outlived their job | |
//! | [`mod@prolog`], [`mod@epilog`] | the two scripts | |
//! | [`task`] | ends a task's GPU work, before Slurm kills the task | |
//! | [`drain`] | draining the node | |
//! | [`spank`] | the version of Slurm in the plugin's file | yes |
//!
//! A service belongs to its user and runs as that user, as with `partita run` inside the job: both
//! find the same one, and root runs no command that a user could have replaced. In system mode the
//! service is root's and serves all users, and `partitad` makes the tenant of a job.

pub mod account;
pub mod as_user;
mod deadline;
pub mod drain;
pub mod environment;
pub mod epilog;
mod group;
pub mod job;
pub mod jobs;
pub mod leftovers;
mod now;
mod options;
pub mod plan;
pub mod prolog;
pub mod record;
pub mod report;
pub mod request;
pub mod spank;
pub mod strays;
pub mod task;
mod trouble;

pub use deadline::{Deadline, LIMIT_DEFAULT};
pub use group::Group;
pub use options::Options;
pub use report::{Report, Step};
pub use trouble::{Blame, Trouble};
