//! Commands that partita runs itself with.

use std::ffi::OsString;

use clap::Args;

/// Arguments of `internal-job`.
#[derive(Debug, Args)]
pub struct InternalJob {
    /// The job
    pub name: String,
    /// Its parameters as JSON
    pub request: String,
}

/// Arguments of `internal-detach`.
#[derive(Debug, Args)]
pub struct InternalDetach {
    /// The daemon and its arguments
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}
