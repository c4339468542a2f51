//! What `partita mps` takes.

use clap::{Args, Subcommand, ValueEnum};

use partita_console::GpusOption;

/// Subcommands of `mps`.
#[derive(Debug, Subcommand)]
pub enum Mps {
    /// Start the GPUs' service, if it does not run
    Start(MpsStart),
    /// Stop the GPUs' service
    Stop(MpsStop),
    /// Say whether the GPUs' service runs, for whom, and how its servers are
    Status(MpsStatus),
    /// List the programs that use the GPUs' service
    Clients(MpsShow),
    /// Show or set what the service gives to clients that come from now on
    Limits(MpsLimits),
    /// List, make and remove static SM partitions, where the control program has them
    Partitions(MpsPartitions),
    /// End a client's work on the GPU without hurting the others; its process lives on
    Terminate(MpsTerminate),
    /// Print what daemon and servers wrote, and what happened to tenants
    Logs(MpsLogs),
}

/// Arguments of `mps start`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  partita mps start
  partita mps start --gpu 0,1 --cpus 0-3
  sudo partita mps start --multi-user --exclusive

`partita run` starts a service by itself. Programs that are started without Partita are clients of it with the variables that
`partita mps status` shows.")]
pub struct MpsStart {
    /// The GPUs
    #[command(flatten)]
    pub gpu: GpusOption,
    /// One server for every user's programs, which then share its faults and its logs (root)
    #[arg(long)]
    pub multi_user: bool,
    /// Keep daemon and servers to these processors: 0,2-5
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
    /// Give each client SMs of its own by MPS's means: static partitions, of which each client
    /// needs one (CUDA 13.1 and newer)
    #[arg(long)]
    pub static_partitions: bool,
    /// Set the GPUs to EXCLUSIVE_PROCESS until the service stops, so that programs that are no
    /// clients fail (root)
    #[arg(long)]
    pub exclusive: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `mps stop`.
#[derive(Debug, Args)]
pub struct MpsStop {
    /// The GPUs
    #[command(flatten)]
    pub gpu: GpusOption,
    /// Stop it even if programs use it; they lose their work on the GPU
    #[arg(long)]
    pub force: bool,
}

/// Arguments of `mps status`.
#[derive(Debug, Args)]
pub struct MpsStatus {
    /// The GPUs
    #[command(flatten)]
    pub gpu: GpusOption,
    /// Print JSON
    #[arg(long, conflicts_with = "metrics")]
    pub json: bool,
    /// Print metrics in the text format of Prometheus
    #[arg(long)]
    pub metrics: bool,
}

/// Arguments of `mps clients`.
#[derive(Debug, Args)]
pub struct MpsShow {
    /// The GPUs
    #[command(flatten)]
    pub gpu: GpusOption,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `mps limits`.
#[derive(Debug, Args)]
#[command(after_help = "\
Policies:
  uniform   100 % / n for each of --clients n
  half      100 % / (n / 2): twice as much, so that idle SMs are used
  weighted  in the ratio of --loads, as measured
  exact     these --sms, where a percentage gives just them

Examples:
  partita mps limits
  partita mps limits --percent 50 --mem 20GiB
  partita mps limits --policy half --clients 4
  partita mps limits --policy weighted --loads 30,70 --dry-run
  partita mps limits --percent 100

A percentage is a ceiling, not a reservation, and lowers the SM count that libraries are told, with which some compute wrong
products. It is set only where products come out right with it. `partita run` works with masks and wants 100.")]
pub struct MpsLimits {
    /// The GPUs
    #[command(flatten)]
    pub gpu: GpusOption,
    /// Active thread percentage of each client
    #[arg(long, value_name = "PERCENT", conflicts_with = "policy")]
    pub percent: Option<f64>,
    /// Percentages by policy
    #[arg(long, value_enum)]
    pub policy: Option<PolicyArg>,
    /// How many clients, for uniform and half
    #[arg(long, value_name = "N", requires = "policy")]
    pub clients: Option<u32>,
    /// Each client's load, for weighted: 30,70
    #[arg(long, value_name = "LOAD,…", value_delimiter = ',', requires = "policy")]
    pub loads: Vec<f64>,
    /// Each client's SMs, for exact: 24,60
    #[arg(long, value_name = "SMS,…", value_delimiter = ',', requires = "policy")]
    pub sms: Vec<u32>,
    /// The most device memory of each client: 20GiB, 512MiB
    #[arg(long, value_name = "SIZE")]
    pub mem: Option<String>,
    /// The priority of clients, a hint to the driver
    #[arg(long, value_enum)]
    pub priority: Option<ClientPriorityArg>,
    /// Set a percentage although nobody knows whether products come out right with it
    #[arg(long)]
    pub unproved: bool,
    /// Show what would be set, and set nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `--policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PolicyArg {
    /// 100 % / n
    Uniform,
    /// 100 % / (n / 2)
    Half,
    /// In the ratio of loads
    Weighted,
    /// These SM counts
    Exact,
}

/// `--priority` of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ClientPriorityArg {
    /// Level 0
    Normal,
    /// Level 1
    Below,
}

/// Arguments of `mps partitions`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
A service that was started with --static-partitions gives each client SMs of its own; a client that names none is refused (error 915).
Sizes are chunks: 8 SMs from Hopper on. The last partition of a GPU takes what is left over. A client sees its SMs alone, with which some
libraries compute wrong products, so these are proved in each new partition. `partita run --sm` needs none of this.

Examples:
  partita mps start --static-partitions
  partita mps partitions add --chunks 8
  partita mps partitions
  partita run --mps-partition GPU-…/ID -- python3 serve.py
  partita mps partitions remove GPU-…/ID"
)]
pub struct MpsPartitions {
    /// What to do; without it, they are listed
    #[command(subcommand)]
    pub verb: Option<PartitionsVerb>,
    /// The GPU
    #[command(flatten)]
    pub show: MpsShow,
}

/// Subcommands of `mps partitions`.
#[derive(Debug, Subcommand)]
pub enum PartitionsVerb {
    /// Make a partition; no client may be on the GPU
    Add(MpsPartitionsAdd),
    /// Remove a partition that nobody uses
    Remove(MpsPartitionsRemove),
}

/// Arguments of `mps partitions add`.
#[derive(Debug, Args)]
pub struct MpsPartitionsAdd {
    /// The GPU
    #[command(flatten)]
    pub gpu: GpusOption,
    /// Its size
    #[arg(long, value_name = "N")]
    pub chunks: u32,
    /// Make it although nobody knows whether products come out right in it
    #[arg(long)]
    pub unproved: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `mps partitions remove`.
#[derive(Debug, Args)]
pub struct MpsPartitionsRemove {
    /// The GPU
    #[command(flatten)]
    pub gpu: GpusOption,
    /// The partitions: GPU-…/ID
    #[arg(required = true, value_name = "PARTITION")]
    pub names: Vec<String>,
}

/// Arguments of `mps terminate`.
#[derive(Debug, Args)]
pub struct MpsTerminate {
    /// The GPUs
    #[command(flatten)]
    pub gpu: GpusOption,
    /// The clients' processes
    #[arg(required = true, value_name = "PID")]
    pub pids: Vec<u32>,
}

/// Arguments of `mps logs`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  partita mps logs
  partita mps logs --events
  partita mps logs --json --follow | jq -c 'select(.event == \"fault_began\")'")]
pub struct MpsLogs {
    /// The GPUs
    #[command(flatten)]
    pub gpu: GpusOption,
    /// Go on with what is written from now on, through rotations, until ended
    #[arg(long, short)]
    pub follow: bool,
    /// Only lines that are understood as events
    #[arg(long)]
    pub events: bool,
    /// Print a JSON object a line
    #[arg(long)]
    pub json: bool,
}
