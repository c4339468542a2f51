//! The arguments of `partita cdi`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use partita_console::GpusOption;

use super::limits::RunLimits;

/// Subcommands of `cdi`.
#[derive(Debug, Subcommand)]
pub enum Cdi {
    /// Make a tenant for containers, and write its CDI device
    Prepare(Box<CdiPrepare>),
    /// Write the CDI devices of prepared tenants again
    Generate(CdiGenerate),
    /// Remove prepared tenants and their CDI devices
    Remove(CdiRemove),
}

/// Where the files of CDI are.
#[derive(Debug, Args)]
pub struct OutputOption {
    /// The directory of CDI devices [default: /var/run/cdi]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub output: Option<PathBuf>,
}

/// Arguments of `cdi prepare`.
#[derive(Debug, Args)]
#[command(after_help = "\
The tenant lives without a process, until `partita cdi remove` or the next start of the machine. All \
containers with its device share its limits.

Examples:
  partita cdi prepare serve --sm 50% --mem 40GiB
  podman run --device nvidia.com/gpu=0 --device partita.dev/tenant=serve IMAGE")]
pub struct CdiPrepare {
    /// The tenant's name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The GPUs
    #[command(flatten)]
    pub gpu: GpusOption,
    /// The limits
    #[command(flatten)]
    pub limits: RunLimits,
    /// Where the device is written
    #[command(flatten)]
    pub output: OutputOption,
}

/// Arguments of `cdi generate`.
#[derive(Debug, Args)]
pub struct CdiGenerate {
    /// The tenants [default: all that were prepared]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Where the devices are written
    #[command(flatten)]
    pub output: OutputOption,
}

/// Arguments of `cdi remove`.
#[derive(Debug, Args)]
pub struct CdiRemove {
    /// The tenants
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
    /// End the processes of their containers first
    #[arg(long)]
    pub force: bool,
    /// Where the devices are
    #[command(flatten)]
    pub output: OutputOption,
}
