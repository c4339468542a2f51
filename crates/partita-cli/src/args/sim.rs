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
}

/// Arguments of `sim env`.
#[derive(Debug, Args)]
pub struct SimEnv {
    /// The simulated device: sim:h200, sim:a100 or sim:gtx1060-3gb
    #[arg(long, value_name = "GPU", default_value = "sim:h200")]
    pub gpu: String,
}
