//! The arguments of `partita prove`.

use clap::{Args, ValueEnum};

use partita_console::GpuOption;

/// Arguments of `prove`.
#[derive(Debug, Args)]
#[command(after_help = "\
Kernels are launched on streams of several priorities, in graphs, in clusters and cooperatively, several \
masks at a time; each block records the SM that it runs on. The proof runs in a child process, without MPS.

Examples:
  partita prove
  partita prove --blocks 1000000000 --masks 10000
  partita prove --gpu sim:a100 --seed 7 --json

Exit code: 0 if every block ran inside its set, 1 if one did not, 125 if nothing could be proved.")]
pub struct Prove {
    /// The GPU
    #[command(flatten)]
    pub gpu: GpuOption,
    /// Least number of blocks [default: 100 million; 1 million on a simulated GPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub blocks: Option<u64>,
    /// Least number of masks [default: 2000; 400 on a simulated GPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub masks: Option<u32>,
    /// The seed of masks and launches: the same seed gives the same proof [default: a new one each
    /// time]
    #[arg(long, allow_negative_numbers = true, value_name = "S")]
    pub seed: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Only these routes [default: all that the GPU supports]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ROUTES")]
    pub routes: Vec<RouteArg>,
    /// Number of masks whose launches are in flight together; 1 waits for each
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=32))]
    pub in_flight: Option<u32>,
    /// To test the proof: enable one TPC too many in one mask of this many
    #[arg(long, value_name = "N", default_value_t = 0, hide = true)]
    pub fault_every: u32,
}

/// `--routes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RouteArg {
    /// Streams of the lowest priority
    Low,
    /// Streams of the default priority
    Stream,
    /// Streams of the highest priority
    High,
    /// Blocks of 64 to 1024 threads
    Large,
    /// Graphs that are set up again for each mask
    Graph,
    /// Clusters
    Cluster,
    /// Cooperative launches
    Cooperative,
}
