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
pub mod strays;
pub mod task;
mod trouble;

pub use deadline::{Deadline, LIMIT_DEFAULT};
pub use group::Group;
pub use options::Options;
pub use report::{Report, Step};
pub use trouble::{Blame, Trouble};
