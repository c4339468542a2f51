//! The arguments of `partita devices`.

use clap::Args;
use partita_console::GpuOption;

/// Arguments of `devices`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  partita devices
  partita devices --json | jq '.[].uuid'")]
pub struct Devices {
    /// Only this GPU
    #[command(flatten)]
    pub gpu: GpuOption,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
