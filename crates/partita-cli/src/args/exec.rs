//! The arguments of `partita exec`.

use std::ffi::OsString;

use clap::{Args, ValueHint};
use partita_console::complete;

/// Arguments of `exec`.
#[derive(Debug, Args)]
#[command(after_help = "\
The program has the tenant's GPUs and limits, and shares its compute units and its memory quota with the \
tenant's other processes. Streams, signals, the terminal and the exit code pass as with `partita run`. \
When the tenant's first program ends, Partita ends this one too: SIGTERM, and SIGKILL 5 s later. For a \
tenant of another user, root's program runs as that user.

Examples:
  partita exec train -- nvidia-smi
  partita exec serve -- bash")]
pub struct Exec {
    /// The tenant
    #[arg(add = complete::listed())]
    pub name: String,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}
