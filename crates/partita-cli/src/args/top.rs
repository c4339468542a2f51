//! The arguments of `top`.

use clap::Args;

/// Arguments of `top`.
#[derive(Debug, Args)]
#[command(after_help = "\
Keys: up and down select a tenant, s sorts by the next column, r resizes the selected tenant, e ends it, h \
shows help, q quits.

SMS is the part of the GPU's SMs that the tenant has. TIME is the share of the GPU's time that it used in about \
the last second, and the share that it was promised; only tenants with --time have it. LAUNCH/S counts \
kernels, not those inside CUDA graphs. BURSTS, from 100 columns on, is how long half of the tenant's bursts of \
work and 99 of 100 take. `busy` of a GPU is the driver's: the part of its last sample period in which \
any kernel ran, on however few SMs; `bus` is the part in which memory was read or written.

Without a terminal, frames follow each other as text; with TERM=dumb too.

Examples:
  partita top
  partita top --once
  partita top --json | jq -c '.tenants[] | {name, launches}'")]
pub struct Top {
    /// Print one frame and exit
    #[arg(long)]
    pub once: bool,
    /// Seconds between two frames
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub every: u32,
    /// Print JSON: one line for each frame, with the GPUs, the tenants as `partita ps --json`, and
    /// the programs outside of tenants
    #[arg(long)]
    pub json: bool,
}
