//! The arguments of `partita batch`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Subcommands of `batch`.
#[derive(Debug, Subcommand)]
pub enum Batch {
    /// Before a job, as root: start what the job requested
    Prolog(BatchScript),
    /// After a job, as root: undo the prolog's work
    Epilog(BatchScript),
    /// As the job's user: print environment variables and messages for the job's programs
    TaskProlog(TaskProlog),
    /// As the job's user, after a task: end its work on the GPU before the batch system kills it
    TaskEpilog(TaskEpilog),
    /// Write the SPANK plugin for this machine's Slurm: the option --partita of srun and sbatch
    Spank(Spank),
}

/// Arguments of `batch spank`.
#[derive(Debug, Args)]
#[command(after_help = "\
Slurm loads a plugin that has its own version, which this command writes into the file. Run it again after an \
upgrade
of Slurm, on every machine with srun, sbatch or slurmd.

Example:
  partita batch spank /etc/slurm/spank_partita.so")]
pub struct Spank {
    /// The file to write
    pub file: PathBuf,
    /// Slurm's version [default: that of sinfo, srun or slurmd on this machine]
    #[arg(long, value_name = "VERSION")]
    pub slurm_version: Option<String>,
}

/// The batch system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SystemArg {
    /// Slurm: the job is in the environment
    Slurm,
    /// Torque or PBS: the job is in the arguments
    Pbs,
}

/// `--drain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DrainArg {
    /// By the exit code
    Exit,
    /// By `scontrol update`, and by the exit code
    Scontrol,
    /// By `pbsnodes -o`, and by the exit code
    Pbsnodes,
}

/// `--format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    /// Lines of a Slurm TaskProlog
    Slurm,
    /// Lines for a shell's `eval`
    Sh,
}

/// Arguments of `batch prolog` and `batch epilog`.
#[derive(Debug, Args)]
#[command(after_help = "\
A job states its request in its comment (Slurm: --comment), its account (PBS: -A) or its resources (PBS: -l \
partita=…):
  partita:mps                 the MPS service of its GPUs, for `partita run` or any CUDA program
  partita:sm=50%,mem=40GiB    the whole job in one partition; also isolation=, priority=
  partita:off                 nothing, whatever the default
Slurm's --gres=mps:30 is sm=30%. In PBS resources, plus signs stand for commas.

Exit codes: 0 if all is well, or the job requested nothing, or (Slurm) the job's tasks report the problem; \
1 if the node
must not be used (PBS prologue: 2, and 1 to abort the job). docs/batch.md has the scripts.

Examples:
  partita batch prolog
  partita batch epilog --json
  partita batch prolog --system pbs \"$@\"")]
pub struct BatchScript {
    /// The batch system [default: slurm if SLURM_JOB_ID is set, pbs if there are arguments]
    #[arg(long, value_enum)]
    pub system: Option<SystemArg>,
    /// The job's GPUs, if the batch system does not name them: 0 or 0,1. With sim:NAME, numbers of
    /// that simulated machine
    #[arg(long, value_name = "GPU[,GPU]…", env = "PARTITA_GPU", hide_env_values = true)]
    pub gpu: Option<String>,
    /// The request of jobs with GPUs that state none, as mps or sm=50%
    #[arg(long, value_name = "REQUEST", default_value = "off")]
    pub default: String,
    /// Time limit for the whole command, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(2..=3600))]
    pub limit: u32,
    /// Seconds between SIGTERM and SIGKILL for processes that outlived their job
    #[arg(long, allow_negative_numbers = true, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=600))]
    pub grace: u32,
    #[command(flatten)]
    pub records: RecordsOption,
    /// How to take a node out of service [default: exit for slurm, pbsnodes for pbs]
    #[arg(long, value_enum)]
    pub drain: Option<DrainArg>,
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
    /// The arguments of the PBS prologue or epilogue
    #[arg(value_name = "ARG", allow_hyphen_values = true)]
    pub arguments: Vec<String>,
}

/// `--state-dir`.
#[derive(Debug, Args)]
pub struct RecordsOption {
    /// The directory of the job records, writable by root alone
    #[arg(
        long,
        value_name = "DIR",
        env = "PARTITA_BATCH_DIR",
        hide_env_values = true,
        default_value = "/var/lib/partita/batch"
    )]
    pub state_dir: PathBuf,
}

/// Arguments of `batch task-prolog`.
#[derive(Debug, Args)]
#[command(after_help = "\
As Slurm's TaskProlog, or in a PBS job: eval \"$(partita batch task-prolog --format sh)\"")]
pub struct TaskProlog {
    /// The output format
    #[arg(long, value_enum, default_value_t = FormatArg::Slurm)]
    pub format: FormatArg,
    #[command(flatten)]
    pub records: RecordsOption,
}

/// Arguments of `batch task-epilog`.
#[derive(Debug, Args)]
#[command(after_help = "\
As Slurm's TaskEpilog. Killing a program while its kernels run under MPS ends the GPU work of the service's \
other clients too.")]
pub struct TaskEpilog {
    /// Time limit for the whole command, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub limit: u32,
    #[command(flatten)]
    pub records: RecordsOption,
}
