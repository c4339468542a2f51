//! The arguments of `partita run`.

use std::ffi::OsString;

use clap::{Args, ValueHint};

use super::limits::{
    IsolationArg, OnMisfitArg, PlaceArg, PriorityArg, RestartArg, SmCountArg, SpillArg, TimePolicyArg, ViaArg,
};
use partita_console::GpusOption;

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Shares of compute units (--sm):
  30%, 12.5%   of the device, in whole TPCs
  40sm, 20tpc  a number of SMs or TPCs, packed by GPC
  gpc:0-2      every TPC of these GPCs
  tpc:0-9      exactly these TPCs, logical numbers

Examples:
  partita run --sm 50% --mem 40GiB -- python3 serve.py
  partita run --name train --sm 33tpc -- python3 train.py --epochs 3
  partita run --gpu sim:a100 --sm gpc:0-1 -- ./program
  partita run --gpu 0,1 --sm 50% --mem 40GiB -- python3 both.py
  partita run --sm 8tpc --compact --dry-run

On several GPUs, --sm, --place and --mem apply to each: 50% is half of every GPU, planned there. The \
program sees these
GPUs only, in the order given. Partita makes all partitions or none. Tenants that run at the same time on a \
GPU (--isolation shared)
must have the same GPUs.

Partita passes standard streams, signals and the exit code through. In a terminal, Ctrl-C and Ctrl-Z work \
as usual: Partita ends the work on the
GPU first, so that neighbours lose nothing. It refuses a program that it cannot limit (statically linked, \
set-user-id).")]
pub struct Run {
    /// The GPUs
    #[command(flatten)]
    pub gpu: GpusOption,
    /// Compute units of each GPU: 30%, 40sm, 20tpc, gpc:0-2 or tpc:0-9 [default: all free ones]
    #[arg(long, value_name = "SHARE")]
    pub sm: Option<String>,
    /// Where the compute units lie in the GPCs [default: packed]
    #[arg(long, value_enum, value_name = "PLACE")]
    pub place: Option<PlaceArg>,
    /// Move TPCs of your other tenants, as few as possible, to make room
    #[arg(long)]
    pub compact: bool,
    /// The share of measured GPU time for all its processes together: 30%, 12.5% [default: no
    /// limit]
    #[arg(long, value_name = "PERCENT")]
    pub time: Option<String>,
    /// Whether the share of time is a limit while no other tenant needs the GPU
    #[arg(long, value_enum, default_value_t = TimePolicyArg::Hard, requires_if("soft", "time"))]
    pub time_policy: TimePolicyArg,
    /// Device memory of all its processes together, on each GPU: 20GiB, 512MiB [default: no quota]
    #[arg(long, value_name = "SIZE")]
    pub mem: Option<String>,
    /// What the driver may allocate for itself in each process (context, code, variables of
    /// modules, stacks) before it counts against --mem, and four times that in all of them
    /// together; 0B counts everything [default: 1GiB]
    #[arg(long, value_name = "SIZE", requires = "mem")]
    pub mem_driver: Option<String>,
    /// Tenants of low priority wait while a tenant of high priority has work in flight
    #[arg(long, value_enum, default_value_t = PriorityArg::Normal)]
    pub priority: PriorityArg,
    /// The tenant's name [default: the program's name and a number]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// How to enforce the partition; this build supports masks and time
    #[arg(long, value_enum, default_value_t = ViaArg::Auto)]
    pub via: ViaArg,
    /// Run in this static partition of the GPU's MPS service, GPU-…/ID, instead of with a mask:
    /// `partita mps partitions` lists them
    #[arg(long, value_name = "PARTITION", conflicts_with_all = ["sm", "place", "compact", "time", "priority", "via", "isolation", "dry_run"])]
    pub mps_partition: Option<String>,
    /// shared: at the same time as other tenants (MPS); own: in turns, protected from their faults
    /// [default: shared; own for the whole GPU by priority, since only turns can interrupt a
    /// running kernel]
    #[arg(long, value_enum)]
    pub isolation: Option<IsolationArg>,
    /// Restart the program when a neighbour's fault destroyed its work on the GPU, once MPS accepts
    /// clients again
    #[arg(long, value_enum, default_value_t = RestartArg::Never)]
    pub restart: RestartArg,
    /// Seconds to wait for an MPS server that recovers from a fault, before calls fail with error
    /// 807 [default: 60]
    #[arg(long, value_name = "SECONDS")]
    pub mps_deadline: Option<u64>,
    /// What happens to launches that can never fit: clusters larger than a GPC of the partition,
    /// cooperative grids larger than its SMs
    #[arg(long, value_enum, default_value_t = OnMisfitArg::Error)]
    pub on_misfit: OnMisfitArg,
    /// The SM count that the program sees. NVIDIA's libraries always see the GPU's. Do not use
    /// `partition` with a program that links one of them statically: it could compute wrong results
    #[arg(long, value_enum, default_value_t = SmCountArg::Device)]
    pub sm_count: SmCountArg,
    /// What happens to allocations that do not fit the memory quota
    #[arg(long, value_enum, default_value_t = SpillArg::None, requires_if("host", "mem"))]
    pub spill: SpillArg,
    /// Print the partition that the program would get, and do not run it
    #[arg(long)]
    pub dry_run: bool,
    /// Print the dry run as JSON
    #[arg(long, requires = "dry_run")]
    pub json: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required_unless_present = "dry_run", value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}
