//! The arguments of `partita doctor`.

use clap::Args;

use partita_console::GpuOption;

/// Arguments of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Every check runs in a child process with a time limit: some of them are meant to hang or crash a broken \
driver.

Examples:
  partita doctor
  partita doctor --gpu 1 --json

Exit code: 0 if nothing failed, 1 if a check failed.")]
pub struct Doctor {
    /// The GPU
    #[command(flatten)]
    pub gpu: GpuOption,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
