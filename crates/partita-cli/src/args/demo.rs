//! The arguments of `partita demo`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use partita_console::GpuOption;

/// Arguments of `demo`.
#[derive(Debug, Args)]
#[command(after_help = "\
One tenant answers requests, the other fills the GPU. The demo takes under ten seconds.

Examples:
  partita demo
  partita demo --gpu sim:h200 --svg demo.svg")]
pub struct Demo {
    /// The GPU
    #[command(flatten)]
    pub gpu: GpuOption,
    /// Write the picture to this file [default: partita-demo.svg]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
