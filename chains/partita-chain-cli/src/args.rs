//! The arguments of `partita chain`: components that pass on frames in GPU memory.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand};
use partita_console::{Internal, complete};

/// Run chains of components that pass on frames in GPU memory
#[derive(Debug, Parser)]
#[command(name = "partita-chain", bin_name = "partita chain", version, max_term_width = 100)]
#[command(disable_help_subcommand = true, arg_required_else_help = true)]
pub struct Arguments {
    /// The command.
    #[command(subcommand)]
    pub command: Chain,
}

/// The commands for chains.
#[derive(Debug, Subcommand)]
pub enum Chain {
    /// Check a chain's definition and store it under its name
    Define(ChainDefine),
    /// Remove a chain's definition; a running chain continues
    Forget(ChainForget),
    /// Run a chain to its end: its components are processes of one tenant
    Start(ChainStart),
    /// End a chain without harming its neighbours
    Stop(ChainStop),
    /// List the chains that are defined or running
    Ps(ChainPs),
    /// Watch a chain: its components, its throughput, and the division of its compute units
    Watch(ChainWatch),
    /// Divide a running chain's compute units by hand, or choose the algorithm that does
    Steer(ChainSteer),
    /// Divide the compute units of chains that are one application, here and on other machines
    Tune(ChainTune),
    /// Draw a chain's log: throughput and compute units over time
    Plot(ChainPlot),
    /// Run the components of a chain in its tenant
    #[command(name = "internal-chain", hide = true)]
    Supervise(InternalChain),
    /// Internal commands with which Partita's programs run themselves
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
    /// Print the stored definition with this name, as JSON
    #[arg(long, value_name = "NAME", conflicts_with_all = ["file", "example"])]
    pub print: Option<String>,
}

/// Arguments of `chain forget`.
#[derive(Debug, Args)]
pub struct ChainForget {
    /// The chain
    #[arg(add = complete::listed())]
    pub name: String,
}

/// Arguments of `chain start`.
#[derive(Debug, Args)]
#[command(after_help = "\
Components attach to the chain through the crate partita-chain or partita_chain.h. The exit code is 0 if \
every component ended without an error.

Examples:
  partita chain start cameras
  partita chain start ./cameras.toml --log cameras.jsonl
  partita chain start cameras --gpu sim:h200")]
pub struct ChainStart {
    /// The chain's name, or a file with its definition (a path with a slash in it, or the name of
    /// an existing file with a dot)
    pub chain: String,
    /// The GPU of components that name none, instead of the definition's
    #[arg(long, value_name = "GPU")]
    pub gpu: Option<String>,
    /// Write a line of JSON for each period to this file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
}

/// Arguments of `chain stop`.
#[derive(Debug, Args)]
pub struct ChainStop {
    /// The chain
    #[arg(add = complete::listed())]
    pub name: String,
    /// Seconds for frames on their way and for the components' exit, and as many again between
    /// SIGTERM and SIGKILL
    #[arg(long, allow_negative_numbers = true, value_name = "SECONDS", default_value_t = 5)]
    pub grace: u16,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
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
    #[arg(add = complete::listed())]
    pub name: String,
    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub interval: f64,
    /// Print once and exit
    #[arg(long)]
    pub once: bool,
    /// Print JSON, a line for each update
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `chain steer`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("division").required(true).args(["tpcs", "algorithm"]))]
#[command(after_help = "\
Components may share TPCs: their numbers may add up to more than the chain has.

Examples:
  partita chain steer cameras --tpcs 4,4,25
  partita chain steer cameras --algorithm steady")]
pub struct ChainSteer {
    /// The chain
    #[arg(add = complete::listed())]
    pub name: String,
    /// TPCs of each component, in the chain's order
    #[arg(long, value_name = "N,N…", value_delimiter = ',')]
    pub tpcs: Option<Vec<u32>>,
    /// The algorithm that divides them from now on
    #[arg(long, value_enum)]
    pub algorithm: Option<AlgorithmArg>,
}

/// `--algorithm`.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum AlgorithmArg {
    /// Partita's own: few trials, and never a worse result than before
    Steady,
    /// The paper's: bottleneck search and Algorithm 1
    Published,
    /// None: all components share all compute units
    None,
}

/// Arguments of `chain tune`.
#[derive(Debug, Args)]
#[command(after_help = "\
It maximizes the frames that leave the last chain. The chains' own searches stop. A chain of another machine
is reached through the partitad there, best through a tunnel (ssh -L 7879:127.0.0.1:7878 HOST).
When the command ends, the last division stays.

Examples:
  partita chain tune decode detect
  partita chain tune decode http://127.0.0.1:7879/detect --token-file ~/.partitad-token")]
pub struct ChainTune {
    /// The chains in the order in which frames pass: NAME on this machine, or
    /// http://HOST:PORT/NAME
    #[arg(required = true, value_name = "CHAIN", add = complete::listed())]
    pub parts: Vec<String>,
    /// A file with the token of the daemons; give it once for all, or for each URL in their order
    #[arg(long, value_name = "FILE")]
    pub token_file: Vec<PathBuf>,
    /// The time over which throughput is measured, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 500)]
    #[arg(value_parser = clap::value_parser!(u32).range(20..=60_000))]
    pub period_ms: u32,
    /// Exit after the first search
    #[arg(long)]
    pub once: bool,
    /// Print JSON, a line for each event
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `chain plot`.
#[derive(Debug, Args)]
pub struct ChainPlot {
    /// The file that `chain start --log` wrote
    pub log: PathBuf,
    /// The picture, SVG or PNG by its ending
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}
