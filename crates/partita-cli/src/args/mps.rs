//! The arguments of `partita mps`.

use clap::{Args, Subcommand, ValueEnum};

use partita_console::GpusOption;

/// Subcommands of `mps`.
#[derive(Debug, Subcommand)]
pub enum Mps {
    /// Start the MPS service of the GPUs, if it does not run
    Start(MpsStart),
    /// Start a user's server before their first client connects, which then need not wait for it
    StartServer(MpsStartServer),
    /// Stop the MPS service of the GPUs
    Stop(MpsStop),
    /// Report whether the service runs, for which users, and the state of its servers
    Status(MpsStatus),
    /// List the clients of the service
    Clients(MpsShow),
    /// Show or set the limits of clients that connect from now on
    Limits(MpsLimits),
    /// List, make and remove static SM partitions, if the control program supports them
    Partitions(MpsPartitions),
    /// End a client's work on the GPU without harming the others; its process lives on
    Terminate(MpsTerminate),
    /// Restart a server that runs no kernels any more; the work of all its clients ends
    Recover(MpsRecover),
    /// Print the logs of daemon and servers, and what happened to tenants
    Logs(MpsLogs),
}

/// Arguments of `mps recover`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  partita mps recover
  partita mps recover --force

Sends a test kernel first, and restarts the server only if neither that kernel nor a second one runs within
4 s. Tenants with `--restart on-neighbour-fault` start again.")]
pub struct MpsRecover {
    /// The GPUs
    #[command(flatten)]
    pub gpu: GpusOption,
    /// Restart the server even if the test kernel runs
    #[arg(long)]
    pub force: bool,
}

/// Arguments of `mps start`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  partita mps start
  partita mps start --gpu 0,1 --cpus 0-3
  sudo partita mps start --multi-user --exclusive

`partita run` starts the service when it needs one. A program started without Partita becomes a client if \
it has the variables that
`partita mps status` shows.")]
pub struct MpsStart {
    /// The GPUs
    #[command(flatten)]
    pub gpu: GpusOption,
    /// One server for all users' programs, which then share its faults and its logs (root)
    #[arg(long)]
    pub multi_user: bool,
    /// Run daemon and servers on these processors only: 0,2-5
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
    /// Give each client its own SMs by static MPS partitions; each client then needs one (CUDA 13.1
    /// and newer)
    #[arg(long)]
    pub static_partitions: bool,
    /// Set the GPUs to EXCLUSIVE_PROCESS until the service stops, so that programs that are not
    /// clients fail (root)
    #[arg(long)]
    pub exclusive: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `mps start-server`.
#[derive(Debug, Args)]
pub struct MpsStartServer {
    /// The GPUs
    #[command(flatten)]
    pub gpu: GpusOption,
    /// The user, by number; another user than yourself only as root [default: you]
    #[arg(long, value_name = "UID")]
    pub user: Option<u32>,
}

/// Arguments of `mps stop`.
#[derive(Debug, Args)]
pub struct MpsStop {
    /// The GPUs
    #[command(flatten)]
    pub gpu: GpusOption,
    /// Stop it even if programs use it: they lose their work on the GPU
    #[arg(long)]
    pub force: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
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
    /// Print metrics in the Prometheus text format
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
  uniform   100 % / n for each of --clients n clients
  half      100 % / (n / 2): twice as much, so that idle SMs are used
  weighted  in the ratio of the measured --loads
  exact     these --sms, if a percentage gives exactly that number

Examples:
  partita mps limits
  partita mps limits --percent 50 --mem 20GiB
  partita mps limits --policy half --clients 4
  partita mps limits --policy weighted --loads 30,70 --dry-run
  partita mps limits --percent 100

A percentage is a ceiling, not a reservation, and lowers the SM count that libraries see, with which some \
compute wrong
products. Partita sets one only after a test with right products. `partita run` uses masks and needs 100.")]
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
    /// The number of clients, for uniform and half
    #[arg(long, value_name = "N", requires = "policy")]
    pub clients: Option<u32>,
    /// Each client's load, for weighted: 30,70
    #[arg(long, value_name = "LOAD,…", value_delimiter = ',', requires = "policy")]
    pub loads: Vec<f64>,
    /// Each client's SMs, for exact: 24,60
    #[arg(long, value_name = "SMS,…", value_delimiter = ',', requires = "policy")]
    pub sms: Vec<u32>,
    /// Largest device memory of each client: 20GiB, 512MiB; none for all that there is
    #[arg(long, value_name = "SIZE")]
    pub mem: Option<String>,
    /// The clients' priority, a hint to the driver
    #[arg(long, value_enum)]
    pub priority: Option<ClientPriorityArg>,
    /// Set a percentage without proof that products are right with it
    #[arg(long)]
    pub unproved: bool,
    /// Print what would be set, and set nothing
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
    /// These numbers of SMs
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
A service that was started with --static-partitions gives each client its own SMs and refuses a client that \
names no partition (error 915).
Sizes are chunks: 8 SMs from Hopper on. The last partition of a GPU gets the rest. A client sees only its \
SMs, with which some
libraries compute wrong products, so Partita tests them in each new partition. `partita run --sm` needs \
none of this.

Examples:
  partita mps start --static-partitions
  partita mps partitions add --chunks 8
  partita mps partitions
  partita run --mps-partition GPU-…/ID -- python3 serve.py
  partita mps partitions remove GPU-…/ID"
)]
pub struct MpsPartitions {
    /// The subcommand; without it, partitions are listed
    #[command(subcommand)]
    pub verb: Option<PartitionsVerb>,
    /// The GPU
    #[command(flatten)]
    pub show: MpsShow,
}

/// Subcommands of `mps partitions`.
#[derive(Debug, Subcommand)]
pub enum PartitionsVerb {
    /// Make a partition, while the GPU has no clients
    Add(MpsPartitionsAdd),
    /// Remove an unused partition
    Remove(MpsPartitionsRemove),
}

/// Arguments of `mps partitions add`.
#[derive(Debug, Args)]
pub struct MpsPartitionsAdd {
    /// The GPU
    #[command(flatten)]
    pub gpu: GpusOption,
    /// Its size in chunks
    #[arg(long, value_name = "N")]
    pub chunks: u32,
    /// Make it without proof that products are right in it
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
    /// The client processes
    #[arg(required = true, value_name = "PID")]
    pub pids: Vec<u32>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
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
    /// Follow the logs: print new lines, through rotations, until interrupted
    #[arg(long, short)]
    pub follow: bool,
    /// Print only lines that Partita recognizes as events
    #[arg(long)]
    pub events: bool,
    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
}
