//! The arguments of `partita policy`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

/// What to do with the policy of the site.
#[derive(Debug, Subcommand)]
pub enum PolicyVerb {
    /// Check a policy file, without making it hold
    Check(PolicyCheck),
    /// Print the policy that this machine's file sets
    Show,
}

/// Arguments of `policy check`.
#[derive(Debug, Args)]
#[command(after_help = "\
It names the line and the key of the first mistake, and users and groups that this machine does not know.

Examples:
  partita policy check new.toml && sudo cp new.toml /etc/partita/policy.toml")]
pub struct PolicyCheck {
    /// The file [default: /etc/partita/policy.toml]
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
}
