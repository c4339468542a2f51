//! The arguments of `partita apply`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

/// Arguments of `apply`.
#[derive(Debug, Args)]
#[command(after_help = "\
The file has tenants with the options of `partita run`, and profiles of options that tenants share:

  [profile.half]
  sm = \"50%\"
  mem = \"40GiB\"

  [[tenant]]
  name = \"serve\"
  profile = \"half\"
  priority = \"high\"
  command = [\"python3\", \"serve.py\"]

Partita starts missing tenants in the background, in the directory of the file, and changes limits of \
running ones as `partita set` does. A second call changes nothing. Tenants that were not started from this \
file stay as they are.

Examples:
  partita apply tenants.toml --dry-run
  partita apply tenants.toml --restart --prune")]
pub struct Apply {
    /// The file
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Print the commands that would do it, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// End and start again tenants whose changes cannot be made while they run
    #[arg(long)]
    pub restart: bool,
    /// End tenants that this file started and no longer names
    #[arg(long)]
    pub prune: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
