//! What `partita run` takes.

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

On several GPUs, --sm, --place and --mem are for each of them: 50% is half of every GPU, planned there. The program sees these
GPUs alone, in the order given. All partitions are made, or none. Tenants that run at the same time on a GPU (--isolation shared)
must have the same GPUs.

The program's standard streams, signals and exit code are its own. In a terminal, Ctrl-C and Ctrl-Z work on it as on any job: its work on the
GPU is ended first, so that it takes no neighbour along. A program that cannot be held to its limits (statically linked, set-user-id) is refused.")]
pub struct Run {
    /// The GPUs
    #[command(flatten)]
    pub gpu: GpusOption,
    /// Compute units of each GPU: 30%, 40sm, 20tpc, gpc:0-2 or tpc:0-9 [default: all that are free]
    #[arg(long, value_name = "SHARE")]
    pub sm: Option<String>,
    /// How the compute units lie over the GPCs [default: packed]
    #[arg(long, value_enum, value_name = "PLACE")]
    pub place: Option<PlaceArg>,
    /// Have your other tenants make room: the fewest of their TPCs that it takes
    #[arg(long)]
    pub compact: bool,
    /// The share of the device's time that all its processes have together: 30%, 12.5%; of measured
    /// time [default: no limit]
    #[arg(long, value_name = "PERCENT")]
    pub time: Option<String>,
    /// Whether the share of time is a limit when nobody else wants the GPU
    #[arg(long, value_enum, default_value_t = TimePolicyArg::Hard, requires_if("soft", "time"))]
    pub time_policy: TimePolicyArg,
    /// Device memory of all its processes together, on each GPU: 20GiB, 512MiB [default: no quota]
    #[arg(long, value_name = "SIZE")]
    pub mem: Option<String>,
    /// What the driver may take for itself in each process (context, code, variables of modules,
    /// stacks) before it counts against --mem, and four times that in all of them together; 0B: all
    /// of it counts [default: 1GiB]
    #[arg(long, value_name = "SIZE", requires = "mem")]
    pub mem_driver: Option<String>,
    /// While a tenant of high priority has work in flight, those of low priority wait
    #[arg(long, value_enum, default_value_t = PriorityArg::Normal)]
    pub priority: PriorityArg,
    /// The tenant's name [default: the program's name and a number]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// How the partition is enforced; this build offers masks and time
    #[arg(long, value_enum, default_value_t = ViaArg::Auto)]
    pub via: ViaArg,
    /// Run in this static partition of the GPU's MPS service, GPU-…/ID, instead of with a mask:
    /// `partita mps partitions` lists them
    #[arg(long, value_name = "PARTITION", conflicts_with_all = ["sm", "place", "compact", "time", "priority", "via", "isolation", "dry_run"])]
    pub mps_partition: Option<String>,
    /// shared: at the same time as other tenants (MPS); own: in turns, out of reach of their faults
    /// [default: shared; own for the whole GPU by priority, since only turns stop a kernel in its
    /// middle]
    #[arg(long, value_enum)]
    pub isolation: Option<IsolationArg>,
    /// Start the program anew when a neighbour's fault took its work on the GPU, once MPS takes
    /// clients again
    #[arg(long, value_enum, default_value_t = RestartArg::Never)]
    pub restart: RestartArg,
    /// How long to wait for an MPS server that recovers from a fault, instead of failing with error
    /// 807 [default: 60]
    #[arg(long, value_name = "SECONDS")]
    pub mps_deadline: Option<u64>,
    /// What happens to launches that can never fit: clusters larger than a GPC of the partition,
    /// cooperative grids larger than its SMs
    #[arg(long, value_enum, default_value_t = OnMisfitArg::Error)]
    pub on_misfit: OnMisfitArg,
    /// The SM count that the program sees. NVIDIA's libraries always see the device's. Do not use
    /// `partition` with a program that links one of them statically: it could compute wrong results
    #[arg(long, value_enum, default_value_t = SmCountArg::Device)]
    pub sm_count: SmCountArg,
    /// What allocations get that the memory quota has no room for
    #[arg(long, value_enum, default_value_t = SpillArg::None, requires_if("host", "mem"))]
    pub spill: SpillArg,
    /// Print the partition that the program would get, and run nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print the dry run as JSON
    #[arg(long, requires = "dry_run")]
    pub json: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required_unless_present = "dry_run", value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}
