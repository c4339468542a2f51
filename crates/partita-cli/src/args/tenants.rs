//! The arguments for running tenants: `set`, `ps` and `kill`.

use std::path::PathBuf;

use clap::Args;
use partita_console::complete;

use super::limits::SetLimits;

/// Arguments of `set`.
#[derive(Debug, Args)]
#[command(after_help = "\
The new limits apply from the tenant's next launch and next allocation on. Running kernels keep the compute \
units that they started with.

Examples:
  partita set train --sm 20%
  partita set train --sm 10tpc --mem 30GiB
  partita set train --gpu 1 --sm 20%
  partita set --pid 4242 --sm tpc:0-9
  partita set serve --sm gpc:0-1 --compact
  partita set serve --slo p99=2.5ms
  partita set --compact")]
pub struct Set {
    /// The tenant; leave it out with --compact to move all of yours
    #[arg(required_unless_present_any = ["pid", "compact"], conflicts_with = "pid", add = complete::listed())]
    pub name: Option<String>,
    /// The new limits
    #[command(flatten)]
    pub limits: SetLimits,
    /// Move TPCs of your other tenants, as few as possible, to make room; without a tenant, move
    /// all of yours into fewer GPCs
    #[arg(long)]
    pub compact: bool,
    /// The tenant of this process
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// For a tenant on several GPUs: the GPUs to change (0 or 0,1) [default: all]
    #[arg(long, value_name = "GPU[,GPU]…", add = complete::gpus())]
    pub gpu: Option<String>,
    /// Print JSON: the new limits on each GPU
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `ps`.
#[derive(Debug, Args)]
#[command(after_help = "\
A tenant on several GPUs has a line, or an entry in the JSON, for each of them. With a name or --pid, JSON is \
one entry, or an array of several.

MEMORY is what the living processes hold, with +SIZE for host memory beyond the quota. BUSY is the share of \
the GPU's time that the tenant used in about the last second, and the share that it was promised; only \
tenants with --time have it. On a narrow terminal, columns are left out; `partita ps NAME` has them all.

Programs that wait for room (`partita run --wait`) and programs that were started without Partita are listed \
below the tenants. JSON has them with --waiting and --outside.

Examples:
  partita ps
  partita ps serve
  partita ps --outside
  partita ps --json | jq '.[] | {name, sms, memory_used_bytes}'")]
pub struct Ps {
    /// Only this tenant, in full
    #[arg(conflicts_with_all = ["pid", "audit", "outside"], add = complete::listed())]
    pub name: Option<String>,
    /// Only the tenant of this process, in full
    #[arg(long, value_name = "PID", conflicts_with = "outside")]
    pub pid: Option<u32>,
    /// Compare the driver's figures for the tenants' processes with their ledgers, and report
    /// processes that have escaped their limits
    #[arg(long, conflicts_with_all = ["pid", "outside"])]
    pub audit: bool,
    /// Only programs that use a GPU and were started without Partita: nothing limits them
    #[arg(long)]
    pub outside: bool,
    /// Only programs that wait for room (`partita run --wait`), in their order
    #[arg(long, conflicts_with_all = ["name", "pid", "audit", "outside"])]
    pub waiting: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Fit a terminal of so many columns, instead of the one that this is printed to
    #[arg(long, value_name = "COLUMNS", hide = true)]
    pub columns: Option<usize>,
}

/// Arguments of `explain`.
#[derive(Debug, Args)]
#[command(after_help = "\
For a tenant with a target or a goal: what it holds, the last decisions of the process that moves its compute \
units, and what was measured on other numbers of them. For other tenants: what limits them, and the command \
that changes it.

Examples:
  partita explain serve
  partita explain serve --svg serve.svg
  partita explain serve --json | jq '.steps[-1]'")]
pub struct Explain {
    /// The tenant
    #[arg(add = complete::listed())]
    pub name: String,
    /// Draw the measured p99 by TPCs with the target, and the throughput of tenants beside it that
    /// have --goal throughput
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print JSON: one entry, or an array for a tenant on several GPUs
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `kill`.
#[derive(Debug, Args)]
#[command(after_help = "\
Partita first ends the work on the GPU through MPS, so that the other clients of the service lose nothing. \
Then it sends the processes SIGTERM and, after the grace period, SIGKILL.

Examples:
  partita kill train
  partita kill train --grace 30")]
pub struct Kill {
    /// The tenants
    #[arg(required = true, add = complete::listed())]
    pub names: Vec<String>,
    /// Seconds between SIGTERM and SIGKILL
    #[arg(long, allow_negative_numbers = true, value_name = "SECONDS", default_value_t = 5)]
    pub grace: u32,
    /// Print JSON: the ended tenants
    #[arg(long)]
    pub json: bool,
}
