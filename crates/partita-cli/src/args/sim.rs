//! The arguments of `partita sim`.

use clap::{Args, Subcommand};

/// Subcommands of `sim`.
#[derive(Debug, Subcommand)]
pub enum Sim {
    /// Print shell lines that make CUDA programs use the simulated GPU
    #[command(after_help = "\
Examples:
  eval \"$(partita sim env)\"
  eval \"$(partita sim env --gpu sim:a100)\" && ./program")]
    Env(SimEnv),
    /// A sample program for tenants: print the SMs that its kernels run on
    #[command(after_help = "\
Examples:
  partita run --sm 30% -- partita sim census")]
    Census(SimCensus),
    /// A sample program for tenants: keep SMs busy and hold memory for a while
    #[command(after_help = "\
Examples:
  partita run --name a --sm 30% --mem 4GiB -- partita sim burn --seconds 30 --mem 2GiB")]
    Burn(SimBurn),
}

/// Arguments of `sim census`.
#[derive(Debug, Args)]
pub struct SimCensus {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `sim burn`.
#[derive(Debug, Args)]
pub struct SimBurn {
    /// For how long
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub seconds: u32,
    /// Device memory to hold meanwhile: 2GiB, 512MiB
    #[arg(long, value_name = "SIZE")]
    pub mem: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `sim env`.
#[derive(Debug, Args)]
pub struct SimEnv {
    /// The simulated device: sim:h200, sim:a100 or sim:gtx1060-3gb
    #[arg(long, value_name = "GPU", default_value = "sim:h200")]
    pub gpu: String,
}
