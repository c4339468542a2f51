//! The arguments of `partita compare`.

use clap::Args;
use partita_console::GpuOption;

/// Arguments of `compare`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  partita compare
  partita compare --gpu 0 --json

A figure is from a committed measurement, which it names. `partita doctor` proves what works here.")]
pub struct Compare {
    /// The GPU
    #[command(flatten)]
    pub gpu: GpuOption,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
