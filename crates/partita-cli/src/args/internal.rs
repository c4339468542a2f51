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

/// Arguments of `internal-chain`.
#[derive(Debug, Args)]
pub struct InternalChain {
    /// The chain as JSON
    pub order: String,
}

/// Arguments of `internal-detach`.
#[derive(Debug, Args)]
pub struct InternalDetach {
    /// The processors that it is kept to
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
    /// The daemon and its arguments
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}
