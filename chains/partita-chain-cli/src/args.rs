//! What `partita chain` takes: components through which frames in GPU memory go.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use partita_console::Internal;

/// Chains of components that pass frames in GPU memory on
#[derive(Debug, Parser)]
#[command(name = "partita-chain", bin_name = "partita chain", version, max_term_width = 100)]
#[command(disable_help_subcommand = true, arg_required_else_help = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Chain,
}

/// What to do with chains.
#[derive(Debug, Subcommand)]
pub enum Chain {
    /// Check a chain's definition and keep it under its name
    Define(ChainDefine),
    /// Forget a chain's definition; a chain that runs goes on
    Forget(ChainForget),
    /// Run a chain to its end: its components are processes of one tenant
    Start(ChainStart),
    /// End a chain without hurting its neighbours
    Stop(ChainStop),
    /// List the chains that are defined or run
    Ps(ChainPs),
    /// Watch a chain: its components, throughput, and who divides the compute units how
    Watch(ChainWatch),
    /// Divide a running chain's compute units by hand, or have them divided
    Steer(ChainSteer),
    /// Draw what a chain's log says: throughput and compute units over time
    Plot(ChainPlot),
    /// Runs the components of a chain in its tenant
    #[command(name = "internal-chain", hide = true)]
    Supervise(InternalChain),
    /// What every program of Partita runs itself with
    #[command(flatten)]
    Internal(Internal),
}

/// Arguments of `internal-chain`.
#[derive(Debug, Args)]
pub struct InternalChain {
    /// The chain as JSON
    pub order: String,
}

/// Arguments of `chain define`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  partita chain define --example > cameras.toml
  partita chain define cameras.toml
  partita chain define --print cameras")]
pub struct ChainDefine {
    /// The definition, in TOML
    #[arg(required_unless_present_any = ["example", "print"])]
    pub file: Option<PathBuf>,
    /// Print a definition to start from
    #[arg(long, conflicts_with = "file")]
    pub example: bool,
    /// Print what is kept under a name, as JSON
    #[arg(long, value_name = "NAME", conflicts_with_all = ["file", "example"])]
    pub print: Option<String>,
}

/// Arguments of `chain forget`.
#[derive(Debug, Args)]
pub struct ChainForget {
    /// The chain
    pub name: String,
}

/// Arguments of `chain start`.
#[derive(Debug, Args)]
#[command(after_help = "\
Components find the chain by themselves (crate partita-chain, partita_chain.h). The exit code is 0 if every component ended well.

Examples:
  partita chain start cameras
  partita chain start ./cameras.toml --log cameras.jsonl
  partita chain start cameras --gpu sim:h200")]
pub struct ChainStart {
    /// The chain's name, or a file with its definition (a path with a slash in it, or a name with a
    /// dot of a file that is there)
    pub chain: String,
    /// The GPU, in place of the definition's
    #[arg(long, value_name = "GPU")]
    pub gpu: Option<String>,
    /// Write a line of JSON for each period to a file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
}

/// Arguments of `chain stop`.
#[derive(Debug, Args)]
pub struct ChainStop {
    /// The chain
    pub name: String,
    /// Seconds to finish what is on its way and to leave, and as many again between SIGTERM and
    /// SIGKILL for what has not left
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub grace: u16,
}

/// Arguments of `chain ps`.
#[derive(Debug, Args)]
pub struct ChainPs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `chain watch`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  partita chain watch cameras
  partita chain watch cameras --once
  partita chain watch cameras --once --json | jq .throughput_fps")]
pub struct ChainWatch {
    /// The chain
    pub name: String,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub interval: f64,
    /// Look once
    #[arg(long)]
    pub once: bool,
    /// Print JSON, a line for each look
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `chain steer`.
#[derive(Debug, Args)]
#[command(after_help = "\
Components may share TPCs: their numbers may add up to more than the chain has.

Examples:
  partita chain steer cameras --tpcs 4,4,25
  partita chain steer cameras --algorithm steady")]
pub struct ChainSteer {
    /// The chain
    pub name: String,
    /// TPCs of each component, in the chain's order
    #[arg(
        long,
        value_name = "N,N…",
        value_delimiter = ',',
        required_unless_present = "algorithm",
        conflicts_with = "algorithm"
    )]
    pub tpcs: Option<Vec<u32>>,
    /// Who divides them from now on
    #[arg(long, value_enum)]
    pub algorithm: Option<AlgorithmArg>,
}

/// `--algorithm`.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum AlgorithmArg {
    /// Partita's own: few trials, never left worse than it was
    Steady,
    /// The paper's: bottleneck search and Algorithm 1
    Published,
    /// Nobody: all components share all compute units
    None,
}

/// Arguments of `chain plot`.
#[derive(Debug, Args)]
pub struct ChainPlot {
    /// What `chain start --log` wrote
    pub log: PathBuf,
    /// The picture, by its ending SVG or PNG
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}
