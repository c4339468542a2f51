//! Which GPU a command is about, and the list of them.

use clap::Args;

/// Which GPU.
#[derive(Debug, Args)]
pub struct GpuOption {
    /// The GPU: an index (0), a UUID or a unique beginning of one (GPU-1a2b), or sim:NAME
    ///
    /// Simulated devices are sim:h200, sim:a100 and sim:gtx1060-3gb; sim:h200:1 is the second of a
    /// simulated machine with several (PARTITA_SIM_GPUS). Without this option it is the machine's
    /// first GPU; where there is none, sim:h200 is used and said so.
    #[arg(long, value_name = "GPU", env = "PARTITA_GPU", hide_env_values = true)]
    pub gpu: Option<String>,
}

/// Which GPUs, where a program may have several.
#[derive(Debug, Args)]
pub struct GpusOption {
    /// The GPUs: an index (0), a UUID or a unique beginning of one (GPU-1a2b), sim:NAME, several
    /// with commas (0,1), or all
    ///
    /// Several GPUs are seen by the program in the order given, and each gets a partition of its
    /// own. Simulated devices are sim:h200, sim:a100 and sim:gtx1060-3gb; sim:h200:0,1 are the
    /// first two of a simulated machine with several (PARTITA_SIM_GPUS). Without this option it is
    /// the machine's first GPU; where there is none, sim:h200 is used and said so.
    #[arg(long, value_name = "GPU[,GPU]…", env = "PARTITA_GPU", hide_env_values = true)]
    pub gpu: Option<String>,
}

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
