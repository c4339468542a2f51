//! What is done with tenants that run: `set`, `ps` and `kill`.

use clap::Args;

use super::limits::{OnMisfitArg, PlaceArg, PriorityArg, SpillArg, TimePolicyArg};

/// Arguments of `set`.
#[derive(Debug, Args)]
#[command(after_help = "\
The new limits hold from the tenant's next launch and next allocation on. Kernels that run keep the compute units that they began with.

Examples:
  partita set train --sm 20%
  partita set train --sm 10tpc --mem 30GiB
  partita set train --gpu 1 --sm 20%
  partita set --pid 4242 --sm tpc:0-9
  partita set serve --sm gpc:0-1 --compact
  partita set --compact")]
pub struct Set {
    /// The tenant; none beside --compact for all of yours
    #[arg(required_unless_present_any = ["pid", "compact"], conflicts_with = "pid")]
    pub name: Option<String>,
    /// How the compute units lie over the GPCs, from the next change of them on; with --compact at
    /// once
    #[arg(long, value_enum, value_name = "PLACE")]
    pub place: Option<PlaceArg>,
    /// Have your other tenants make room: the fewest of their TPCs that it takes; without a tenant,
    /// bring all of yours into fewer GPCs
    #[arg(long)]
    pub compact: bool,
    /// The tenant that this process is of
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// What happens to launches that can never fit
    #[arg(long, value_enum)]
    pub on_misfit: Option<OnMisfitArg>,
    /// What allocations get from now on that the memory quota has no room for
    #[arg(long, value_enum)]
    pub spill: Option<SpillArg>,
    /// Of a tenant on several GPUs: on which of them (0 or 0,1) [default: all]
    #[arg(long, value_name = "GPU[,GPU]…")]
    pub gpu: Option<String>,
    /// Compute units: 30%, 40sm, 20tpc, gpc:0-2 or tpc:0-9
    #[arg(long, value_name = "SHARE")]
    pub sm: Option<String>,
    /// The share of the device's time: 30%, 12.5%; for tenants started with one
    #[arg(long, value_name = "PERCENT")]
    pub time: Option<String>,
    /// Whether the share of time is a limit when nobody else wants the GPU
    #[arg(long, value_enum)]
    pub time_policy: Option<TimePolicyArg>,
    /// Device memory of all its processes together, on each GPU: 20GiB, 512MiB
    #[arg(long, value_name = "SIZE")]
    pub mem: Option<String>,
    /// What the driver may take for itself in each process before it counts against --mem, and four
    /// times that in all of them together; from its next request on
    #[arg(long, value_name = "SIZE")]
    pub mem_driver: Option<String>,
    /// While a tenant of high priority has work in flight, those of low priority wait; for tenants
    /// started with either
    #[arg(long, value_enum)]
    pub priority: Option<PriorityArg>,
}

/// Arguments of `ps`.
#[derive(Debug, Args)]
#[command(after_help = "\
A tenant on several GPUs has a line, or an entry of the JSON, for each. With --pid, JSON is one entry, or an array of several.

Examples:
  partita ps
  partita ps --json | jq '.[] | {name, sms, memory_used_bytes}'")]
pub struct Ps {
    /// Only the tenant that this process is of, with its TPCs and GPCs in full
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// What the driver says of the tenants' processes beside what their ledgers say, and who has
    /// escaped its limits
    #[arg(long, conflicts_with = "pid")]
    pub audit: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `kill`.
#[derive(Debug, Args)]
#[command(after_help = "\
Work on the GPU is ended through MPS first, so that the other clients of the service go on unhurt. Then the processes get SIGTERM and, after the grace period, SIGKILL.

Examples:
  partita kill train
  partita kill train --grace 30")]
pub struct Kill {
    /// The tenants
    #[arg(required = true)]
    pub names: Vec<String>,
    /// Seconds between SIGTERM and SIGKILL
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub grace: u32,
}
