//! The arguments of `partita preload`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

/// What to do with the library in every program of the machine.
#[derive(Debug, Subcommand)]
pub enum PreloadVerb {
    /// Make every program load the library, so that the policy can limit it
    Enable(PreloadFile),
    /// Make no program load it
    Disable(PreloadFile),
    /// Say whether programs load it, and whether the policy limits them
    Status(PreloadStatus),
}

/// Arguments of `preload enable` and `preload disable`.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs root. With `programs = \"limit\"` in the policy of the site, a program that was started without \
`partita run` becomes a tenant when it first uses the GPU, if it has loaded the library. Other programs do \
nothing with it. Programs that run keep what they have.

Examples:
  sudo partita preload enable
  sudo partita preload disable")]
pub struct PreloadFile {
    /// Another file than /etc/ld.so.preload, as in the root of an image
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
}

/// Arguments of `preload status`.
#[derive(Debug, Args)]
pub struct PreloadStatus {
    /// Which file
    #[command(flatten)]
    pub file: PreloadFile,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
