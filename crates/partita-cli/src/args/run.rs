//! The arguments of `partita run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueHint};

use super::limits::RunLimits;
use partita::run::wait_time;
use partita_console::GpusOption;

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("answers").args(["dry_run", "detach"]))]
#[command(after_help = "\
Shares of compute units (--sm):
  30%, 12.5%   of the device, in whole TPCs
  40sm, 20tpc  a number of SMs or TPCs, packed by GPC
  gpc:0-2      every TPC of these GPCs
  tpc:0-9      exactly these TPCs, logical numbers
  all, 100%    the whole device
Programs without --sm divide what these shares leave, evenly, and that changes as tenants come and go.

Examples:
  partita run --sm 50% --mem 40GiB -- python3 serve.py
  partita run --name train --sm 33tpc -- python3 train.py --epochs 3
  partita run --gpu sim:a100 --sm gpc:0-1 -- ./program
  partita run --gpu any --slo p99=2.5ms -- python3 serve.py
  partita run --gpu 0,1 --sm 50% --mem 40GiB -- python3 both.py
  partita run --sm 8tpc --compact --dry-run
  partita run --sm 50% --wait=2h -- python3 train.py
  partita run --name serve --slo p99=2.5ms -- python3 serve.py
  partita run --name train --goal throughput -- python3 train.py

On several GPUs, --sm, --place and --mem apply to each: 50% is half of every GPU, planned there. The \
program sees these GPUs only, in the order given. Partita makes all partitions or none. Tenants that run at \
the same time on a GPU (--isolation shared) must have the same GPUs.

Partita passes standard streams, signals and the exit code through. In a terminal, Ctrl-C and Ctrl-Z work \
as usual: Partita ends the work on the GPU first, so that neighbours lose nothing. It refuses a program \
that it cannot limit (statically linked, set-user-id).")]
pub struct Run {
    /// The GPUs
    #[command(flatten)]
    pub gpu: GpusOption,
    /// The limits
    #[command(flatten)]
    pub limits: RunLimits,
    /// Move TPCs of your other tenants, as few as possible, to make room
    #[arg(long)]
    pub compact: bool,
    /// The tenant's name [default: the program's name and a number]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Run in this static partition of the GPU's MPS service, GPU-…/ID, instead of with a mask:
    /// `partita mps partitions` lists them
    #[arg(long, value_name = "PARTITION", conflicts_with_all = ["sm", "place", "compact", "time", "priority", "via", "isolation", "dry_run"])]
    pub mps_partition: Option<String>,
    /// Run in a free MIG instance of this profile, as 3g or 3g.71gb, instead of in a partition:
    /// `partita mig show` lists them
    #[arg(long, value_name = "PROFILE", conflicts_with_all = ["compact", "name", "mps_partition", "mps_deadline", "dry_run"])]
    pub mig: Option<String>,
    /// Seconds to wait for an MPS server that recovers from a fault, before calls fail with error
    /// 807 [default: 60]
    #[arg(long, value_name = "SECONDS")]
    pub mps_deadline: Option<u64>,
    /// Wait for room, for so long (30s, 10m, 2h) or without a limit; programs that wait for a GPU
    /// start in the order of their arrival
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, value_parser = wait_time, conflicts_with_all = ["dry_run", "mig"])]
    pub wait: Option<Option<Duration>>,
    /// Write the tenant's name and the program's process number, or the reason of a refusal, to
    /// this file or named pipe, as a line of JSON
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["dry_run", "mig"])]
    pub info: Option<PathBuf>,
    /// Print the partition that the program would get, and do not run it
    #[arg(long)]
    pub dry_run: bool,
    /// Run the program in the background, without a terminal, and print the tenant's name when it
    /// runs: `partita logs`, `attach` and `wait` come back to it
    #[arg(long, conflicts_with_all = ["dry_run", "mig", "info"])]
    pub detach: bool,
    /// Print the dry run, or the detached tenant, as JSON
    #[arg(long, requires = "answers")]
    pub json: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required_unless_present = "dry_run", value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}
