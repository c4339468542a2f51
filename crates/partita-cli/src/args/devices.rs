//! The arguments of `partita devices`.

use clap::Args;
use partita_console::GpusOption;

/// Arguments of `devices`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  partita devices
  partita devices --json | jq '.[].uuid'")]
pub struct Devices {
    /// Only these GPUs
    #[command(flatten)]
    pub gpu: GpusOption,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
