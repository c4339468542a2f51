//! The arguments of the command line, and nothing else.
//!
//! Values stay text here; the commands parse them, so that every wrong value is answered in the
//! same way.

mod batch;
mod demo;
mod devices;
mod doctor;
mod limits;
mod mps;
mod prove;
mod run;
mod shell;
mod sim;
mod tenants;
mod topology;

use std::ffi::OsString;

use clap::{Args, Parser, Subcommand};
use partita_console::Internal;

pub use batch::{Batch, BatchScript, DrainArg, FormatArg, SystemArg, TaskEpilog, TaskProlog};
pub use demo::Demo;
pub use devices::Devices;
pub use doctor::Doctor;
pub use limits::{
    IsolationArg, OnMisfitArg, PlaceArg, PriorityArg, RestartArg, SmCountArg, SpillArg, TimePolicyArg, ViaArg,
};
pub use mps::{
    ClientPriorityArg, Mps, MpsLimits, MpsLogs, MpsPartitions, MpsPartitionsAdd, MpsPartitionsRemove,
    MpsShow, MpsStart, MpsStatus, MpsStop, MpsTerminate, PartitionsVerb, PolicyArg,
};
pub use prove::{Prove, RouteArg};
pub use run::Run;
pub use shell::{Completions, Generate, Man};
pub use sim::Sim;
pub use tenants::{Kill, Ps, Set};
pub use topology::Topology;

/// Share one NVIDIA GPU between programs that know nothing of each other.
///
/// Each program runs as a tenant: it gets the compute units and the memory that it was promised,
/// keeps them while its neighbours misbehave, and can be resized while it runs.
#[derive(Debug, Parser)]
#[command(
    name = "partita",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  partita run --name serve --sm 50% --mem 40GiB -- python3 serve.py
  partita run --name train --sm 33tpc --mem 60GiB -- python3 train.py
  partita ps
  partita set train --sm 20%
  partita kill train

Exit codes: that of the program that `run` runs; 125 for Partita's own errors."
)]
#[command(disable_help_subcommand = true, arg_required_else_help = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Cmd,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Cmd {
    /// List the GPUs of this machine
    Devices(Devices),
    /// Show where the units of a GPU lie, who holds them, and how that is known
    Topology(Topology),
    /// Run a program in a partition of a GPU
    Run(Run),
    /// Change the limits of a tenant while it runs
    Set(Set),
    /// List the tenants of this machine
    Ps(Ps),
    /// End a tenant without hurting its neighbours
    Kill(Kill),
    /// Prove what works on this machine
    Doctor(Doctor),
    /// Show two tenants on one GPU, without and with partitions
    Demo(Demo),
    /// Prove that masks hold: random masks, and every block's SM recorded
    Prove(Prove),
    /// Run the experiments on a GPU or on the model, beside what the paper reports
    Bench(Other),
    /// The Multi-Process Service that lets tenants run at the same time
    #[command(subcommand)]
    Mps(Mps),
    /// Chains of components that pass frames in GPU memory on
    Chain(Other),
    /// Jobs of Slurm, Torque and PBS: what their prolog and epilog do
    #[command(subcommand)]
    Batch(Batch),
    /// The simulated GPU
    #[command(subcommand)]
    Sim(Sim),
    /// Print the completions of a shell
    Completions(Completions),
    /// Print a manual page
    Man(Man),
    /// Write all completions and manual pages into a directory
    #[command(hide = true)]
    Generate(Generate),
    /// Answers one request of a user's command, for partitad
    #[command(name = "internal-system", hide = true)]
    InternalSystem,
    /// What every program of Partita runs itself with
    #[command(flatten)]
    Internal(Internal),
}

/// The arguments of a command that is a program of its own.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Other {
    /// The program's arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub words: Vec<OsString>,
}
