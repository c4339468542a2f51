//! The arguments of `partita bench`.

use std::path::PathBuf;

use clap::{Parser, ValueEnum, ValueHint};
use partita_console::{GpuOption, Internal};

/// Run the paper's experiments on a GPU or on the model, and compare with its figures
#[derive(Debug, Parser)]
#[command(name = "partita-bench", bin_name = "partita bench", version, max_term_width = 100)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(
    disable_help_subcommand = true,
    after_help = "\
Each experiment is a file of configurations in the JSON dialect of cuda_scheduling_examiner, with the \
paper's results; `--list` names them. `--gpu sim` runs each on the model of the paper's device, sim:NAME on \
the model of that device, and a GPU runs it with masks in its launches, compared with the model's \
prediction.

Examples:
  partita bench --list
  partita bench all --gpu sim --out results
  partita bench figure-12 --gpu 0 --json
  partita bench all --replay results --out again
  partita bench all --gpu sim --out research/bench/results/experiments --page docs/experiments.md
  partita bench --config scenario.json --gpu sim:gtx1060-3gb --out logs

Exit code: 0 if every verdict is «reproduced», 1 if one differs, 125 if something could not be run."
)]
pub struct Bench {
    /// The experiment, or all
    #[arg(value_name = "NAME", required_unless_present_any = ["config", "list"], conflicts_with_all = ["config", "list"])]
    pub name: Option<String>,
    /// The GPU
    #[command(flatten)]
    pub gpu: GpuOption,
    /// Run your own configurations: a file, or - for standard input
    #[arg(long, value_name = "FILE", conflicts_with = "list", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Write configurations, results, logs and pictures into this directory
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: Option<PathBuf>,
    /// List the experiments
    #[arg(long)]
    pub list: bool,
    /// Where simulated devices run it: on the model itself, or as kernels launched through the
    /// simulated driver
    #[arg(long, value_enum, default_value_t = OnArg::Model, value_name = "WHAT")]
    pub on: OnArg,
    /// Write a page of the experiments to this file: the paper, the models of its GPU and of an
    /// H200, and the measurements in the directory of --out
    #[arg(long, value_name = "FILE", requires = "out", conflicts_with_all = ["config", "list", "on", "replay", "json"], value_hint = ValueHint::FilePath)]
    pub page: Option<PathBuf>,
    /// Run nothing: read the measurements that --out left in this directory
    #[arg(long, value_name = "DIR", conflicts_with_all = ["config", "list", "on"], value_hint = ValueHint::DirPath)]
    pub replay: Option<PathBuf>,
    /// The seed of the model's random choices: the same seed gives the same result
    #[arg(long, allow_negative_numbers = true, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Internal commands with which Partita's programs run themselves
    #[command(subcommand)]
    pub internal: Option<Internal>,
}

/// `--on`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnArg {
    /// The model
    Model,
    /// The simulated driver
    Driver,
}
