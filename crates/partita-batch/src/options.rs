//! How a script is to work.

use std::path::PathBuf;
use std::time::Duration;

use super::request::Request;

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
    pub default: Request,
    /// Say what would be done, and do nothing.
    pub dry_run: bool,
}
