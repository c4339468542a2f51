//! The options of a script.

use std::path::PathBuf;
use std::time::Duration;

use super::request::Request;

/// The options of a prolog or an epilog.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory of records.
    pub dir: PathBuf,
    /// The timeout of the whole script.
    pub limit: Duration,
    /// The time between SIGTERM and SIGKILL for processes that outlived their job.
    pub grace: Duration,
    /// The request of jobs that have GPUs and request nothing.
    pub default: Request,
    /// Print the actions without running them.
    pub dry_run: bool,
}
