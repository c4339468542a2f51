//! What `partita mps` takes.

use clap::{Args, Subcommand};

use super::gpu::GpusOption;

/// Subcommands of `mps`.
#[derive(Debug, Subcommand)]
pub enum Mps {
    /// Start the GPU's service, if it does not run
    Start(MpsGpu),
    /// Stop the GPU's service
    Stop(MpsStop),
    /// Say whether the GPU's service runs, and for whom
    Status(MpsGpu),
}

/// Arguments of `mps start` and `mps status`.
#[derive(Debug, Args)]
pub struct MpsGpu {
    /// The GPUs
    #[command(flatten)]
    pub gpu: GpusOption,
}

/// Arguments of `mps stop`.
#[derive(Debug, Args)]
pub struct MpsStop {
    /// The GPUs
    #[command(flatten)]
    pub gpu: GpusOption,
    /// Stop it even if programs use it; they lose their work on the GPU
    #[arg(long)]
    pub force: bool,
}
