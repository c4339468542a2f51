//! The arguments of the command line, and nothing else.
//!
//! Values stay text here. The commands parse them, so that every wrong value gets the same kind of
//! error.

mod apply;
mod background;
mod batch;
mod cdi;
mod compare;
mod demo;
mod devices;
mod doctor;
mod exec;
mod limits;
mod mig;
mod mps;
mod policy;
mod preload;
mod prove;
mod run;
mod shell;
mod sim;
mod tenants;
mod top;
mod topology;
mod vf;

use std::ffi::OsString;

use clap::{Args, Parser, Subcommand};
use partita_console::Internal;

pub use apply::Apply;
pub use background::{Attach, Logs, Wait};
pub use batch::{Batch, BatchScript, DrainArg, FormatArg, Spank, SystemArg, TaskEpilog, TaskProlog};
pub use cdi::{Cdi, CdiPrepare};
pub use compare::Compare;
pub use demo::Demo;
pub use devices::Devices;
pub use doctor::Doctor;
pub use exec::Exec;
pub use limits::SetLimits;
pub use mig::{Mig, MigApply, MigChangeArgs, MigDestroy, MigShow, MigWanted};
pub use mps::{
    ClientPriorityArg, Mps, MpsLimits, MpsLogs, MpsPartitions, MpsPartitionsAdd, MpsPartitionsRemove,
    MpsRecover, MpsShow, MpsStart, MpsStartServer, MpsStatus, MpsStop, MpsTerminate, PartitionsVerb,
    PolicyArg,
};
pub use policy::PolicyVerb;
pub use preload::{PreloadFile, PreloadVerb};
pub use prove::{Prove, RouteArg};
pub use run::Run;
pub use shell::{Completions, Generate, Help, Man};
pub use sim::{Sim, SimBurn, SimEnv};
pub use tenants::{Explain, Kill, Ps, Set};
pub use top::Top;
pub use topology::Topology;
pub use vf::{Vf, VfOutput, VfWanted};

/// Share one NVIDIA GPU between programs that need no changes.
///
/// Each program runs as a tenant: it gets the compute units and the memory that it was promised,
/// keeps them when its neighbours misbehave, and can be resized while it runs.
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

Exit codes: that of the program that `run` or `exec` runs; 127 if there is no such program and 126 if \
it cannot be executed; 125 for Partita's own errors."
)]
#[command(disable_help_subcommand = true, arg_required_else_help = true)]
pub struct Arguments {
    /// The command.
    #[command(subcommand)]
    pub command: Word,
}

/// The first word.
#[derive(Debug, Subcommand)]
pub enum Word {
    /// A command of users
    #[command(flatten)]
    Cmd(Cmd),
    /// Another one
    #[command(flatten)]
    Hidden(Hidden),
}

/// The commands of users, which help, completions and manual pages show.
#[derive(Debug, Subcommand)]
pub enum Cmd {
    /// List the GPUs of this machine
    Devices(Devices),
    /// Show where the units of a GPU are, which tenant has them, and how that is known
    Topology(Topology),
    /// Run a program in a partition of a GPU
    Run(Run),
    /// Run another program in a tenant that runs
    Exec(Exec),
    /// Print the output of a detached run
    Logs(Logs),
    /// Follow the output of a detached run, and send Ctrl-C to its program
    Attach(Attach),
    /// Wait for the end of a detached run
    Wait(Wait),
    /// Start and change tenants as a file describes them
    Apply(Apply),
    /// Change the limits of a tenant while it runs
    Set(Set),
    /// List the tenants of this machine
    Ps(Ps),
    /// Say what a tenant has, why, and what would change it
    Explain(Explain),
    /// Watch the GPUs and their tenants
    Top(Top),
    /// End a tenant without harming its neighbours
    Kill(Kill),
    /// Test what works on this machine
    Doctor(Doctor),
    /// Show two tenants on one GPU, without and with partitions
    Demo(Demo),
    /// Prove that masks hold: run random masks and record the SM of every block
    Prove(Prove),
    /// Run the paper's experiments on a GPU or on the model, and compare with its figures
    Bench(External),
    /// Control the Multi-Process Service (MPS), with which tenants run at the same time
    #[command(subcommand)]
    Mps(Mps),
    /// Divide a GPU into MIG instances
    #[command(subcommand)]
    Mig(Mig),
    /// Make tenants for containers, as CDI devices
    #[command(subcommand)]
    Cdi(Cdi),
    /// Divide an accelerator into virtual functions or vGPUs for virtual machines
    #[command(subcommand)]
    Vf(Vf),
    /// Compare all ways to divide a GPU: which can be had here, and what each keeps apart
    Compare(Compare),
    /// Check and print the policy of the site
    #[command(subcommand)]
    Policy(PolicyVerb),
    /// Let the policy limit programs that are started without `partita run`
    #[command(subcommand)]
    Preload(PreloadVerb),
    /// Run chains of components that pass on frames in GPU memory
    Chain(External),
    /// Prolog and epilog for jobs of Slurm, Torque and PBS
    #[command(subcommand)]
    Batch(Batch),
    /// The simulated GPU
    #[command(subcommand)]
    Sim(Sim),
    /// Print the completions of a shell
    Completions(Completions),
    /// Print a manual page
    Man(Man),
    /// Show the help of a command
    Help(Help),
    /// Print the version and, if known, the commit
    Version,
}

/// The commands for packages and for Partita's own programs.
#[derive(Debug, Subcommand)]
pub enum Hidden {
    /// Write all completions and manual pages to a directory
    #[command(hide = true)]
    Generate(Generate),
    /// Run a program for `partita run --detach`
    #[command(name = partita::detached::SUBCOMMAND, hide = true)]
    InternalRun(Run),
    /// Answer one request of a user's command, for partitad
    #[command(name = "internal-system", hide = true)]
    InternalSystem,
    /// Internal commands with which Partita's programs run themselves
    #[command(flatten)]
    Internal(Internal),
}

/// The arguments of a command that is a separate program.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct External {
    /// The program's arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub words: Vec<OsString>,
}
