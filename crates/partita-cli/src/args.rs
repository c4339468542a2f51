//! The arguments of the command line, and nothing else.
//!
//! The build script reads this file too, for completions and man pages, so it
//! uses clap alone. Values stay text here; the commands parse them, so that
//! every wrong value is answered in the same way.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};

/// Share one NVIDIA GPU between programs that know nothing of each other.
///
/// Each program runs as a tenant: it gets the compute units and the memory that it was promised, keeps them while its
/// neighbours misbehave, and can be resized while it runs.
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
    /// The Multi-Process Service that lets tenants run at the same time
    #[command(subcommand)]
    Mps(Mps),
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
    /// Runs a risky job for another partita process
    #[command(name = "internal-job", hide = true)]
    InternalJob(InternalJob),
    /// Becomes a daemon in a session of its own
    #[command(name = "internal-detach", hide = true)]
    InternalDetach(InternalDetach),
}

/// Which GPU.
#[derive(Debug, Args)]
pub struct GpuOption {
    /// The GPU: an index (0), a UUID or a unique beginning of one (GPU-1a2b), or sim:NAME
    ///
    /// Simulated devices are sim:h200, sim:a100 and sim:gtx1060-3gb. Without this option it is the machine's first GPU;
    /// where there is none, sim:h200 is used and said so.
    #[arg(long, value_name = "GPU", env = "PARTITA_GPU", hide_env_values = true)]
    pub gpu: Option<String>,
}

/// Arguments of `devices`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  partita devices
  partita devices --json | jq '.[].uuid'")]
pub struct Devices {
    /// Only this GPU
    #[command(flatten)]
    pub gpu: GpuOption,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `topology`.
#[derive(Debug, Args)]
#[command(after_help = "\
Sources, each asked by itself and compared with the others:
  control   the driver's control interface: GPC, CPC and TPC of every SM (no root)
  probe     each bit of a launch mask disabled alone: which SMs stay empty
  clusters  clusters of blocks, which run only where their SMs share a GPC
  nvdebug   the files of that kernel module, /proc/gpuN, where they are

JSON (a field that goes or changes its meaning changes `schema`; numbers of TPCs are logical):
  schema, gpu, name, uuid, driver_version, compute_capability, qmd_version
  sms, tpcs, sms_per_tpc, holes, places_per_gpc, places_known
  confirmed_sms    SMs that two or more sources place, without contradiction
  agree            whether no two sources contradict each other
  gpcs_proved_by   \"clusters\", \"control\", or null: then shares by GPC are refused
  sources[]        source, state (agrees, contradicted, silent), sms, reason
  disagreements[]  tpc (or null), text
  tenants[]        letter, name, tpcs, sms
  gpcs[]           gpc (as in --sm gpc:N), chip_gpc, ugpu, singletons[],
                   cpcs[]: cpc, places[]: a TPC, or null where it is fused off
  units[]          tpc, sms[], bit, gpc, tenant, confirmed, clusters (a group's number),
                   control: gpc, cpc, tpc_in_gpc, global_tpc, virtual_gpc, migratable_tpc,
                   virtual_tpc, ugpu, predicted_bit; nvdebug: gpc, tpc_in_gpc
  fresh, took_s

Examples:
  partita topology
  partita topology --fresh --svg gpu.svg
  partita topology --json | jq '.units[] | select(.gpc == 0) | .tpc'

Exit code: 0 if the sources agree, 1 if two contradict each other.")]
pub struct Topology {
    /// The GPU
    #[command(flatten)]
    pub gpu: GpuOption,
    /// Measure anew, even if a calibration is kept
    #[arg(long)]
    pub fresh: bool,
    /// Write a picture too
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

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
  partita run --sm 8tpc --compact --dry-run

The program's standard streams, signals and exit code are its own. A program that cannot be held to its limits (statically linked, set-user-id) is refused.")]
pub struct Run {
    /// The GPU
    #[command(flatten)]
    pub gpu: GpuOption,
    /// Compute units: 30%, 40sm, 20tpc, gpc:0-2 or tpc:0-9 [default: all that are free]
    #[arg(long, value_name = "SHARE")]
    pub sm: Option<String>,
    /// How the compute units lie over the GPCs [default: packed]
    #[arg(long, value_enum, value_name = "PLACE")]
    pub place: Option<PlaceArg>,
    /// Have your other tenants make room: the fewest of their TPCs that it takes
    #[arg(long)]
    pub compact: bool,
    /// The share of the device's time; this build offers 100% alone
    #[arg(long, value_name = "PERCENT", default_value = "100%")]
    pub time: String,
    /// Device memory of all its processes together: 20GiB, 512MiB [default: no quota]
    #[arg(long, value_name = "SIZE")]
    pub mem: Option<String>,
    /// Who goes first when tenants compete; this build offers normal alone
    #[arg(long, value_enum, default_value_t = PriorityArg::Normal)]
    pub priority: PriorityArg,
    /// The tenant's name [default: the program's name and a number]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// How the partition is enforced; this build offers masks alone
    #[arg(long, value_enum, default_value_t = ViaArg::Auto)]
    pub via: ViaArg,
    /// shared: at the same time as other tenants (MPS); own: in turns, out of reach of their faults
    #[arg(long, value_enum, default_value_t = IsolationArg::Shared)]
    pub isolation: IsolationArg,
    /// What happens to launches that can never fit: clusters larger than a GPC of the partition, cooperative grids larger than its SMs
    #[arg(long, value_enum, default_value_t = OnMisfitArg::Error)]
    pub on_misfit: OnMisfitArg,
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

/// `--place`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlaceArg {
    /// In as few GPCs as possible: largest clusters, and whole GPCs stay free for others
    Packed,
    /// Evenly over as many GPCs as possible
    Spread,
}

/// `--priority`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PriorityArg {
    /// Before the others
    High,
    /// Like the others
    Normal,
    /// After the others
    Low,
}

/// `--via`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ViaArg {
    /// The best that works here
    Auto,
    /// Masks in the launch descriptors
    Mask,
    /// Green contexts
    Green,
    /// Thread percentages of MPS
    Mps,
    /// Shares of time
    Time,
}

/// `--isolation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IsolationArg {
    /// At the same time as other tenants
    Shared,
    /// In turns with other tenants
    Own,
}

/// `--on-misfit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnMisfitArg {
    /// They get the CUDA error at the call
    Error,
    /// They run on the whole GPU, with a warning and a count
    Widen,
}

/// Arguments of `set`.
#[derive(Debug, Args)]
#[command(after_help = "\
The new limits hold from the tenant's next launch and next allocation on. Kernels that run keep the compute units that they began with.

Examples:
  partita set train --sm 20%
  partita set train --sm 10tpc --mem 30GiB
  partita set --pid 4242 --sm tpc:0-9
  partita set serve --sm gpc:0-1 --compact
  partita set --compact")]
pub struct Set {
    /// The tenant; none beside --compact for all of yours
    #[arg(required_unless_present_any = ["pid", "compact"], conflicts_with = "pid")]
    pub name: Option<String>,
    /// How the compute units lie over the GPCs, from the next change of them on; with --compact at once
    #[arg(long, value_enum, value_name = "PLACE")]
    pub place: Option<PlaceArg>,
    /// Have your other tenants make room: the fewest of their TPCs that it takes; without a tenant, bring all of yours into fewer GPCs
    #[arg(long)]
    pub compact: bool,
    /// The tenant that this process is of
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// What happens to launches that can never fit
    #[arg(long, value_enum)]
    pub on_misfit: Option<OnMisfitArg>,
    /// Compute units: 30%, 40sm, 20tpc, gpc:0-2 or tpc:0-9
    #[arg(long, value_name = "SHARE")]
    pub sm: Option<String>,
    /// The share of the device's time; this build offers 100% alone
    #[arg(long, value_name = "PERCENT")]
    pub time: Option<String>,
    /// Device memory of all its processes together: 20GiB, 512MiB
    #[arg(long, value_name = "SIZE")]
    pub mem: Option<String>,
    /// Who goes first when tenants compete; this build offers normal alone
    #[arg(long, value_enum)]
    pub priority: Option<PriorityArg>,
}

/// Arguments of `ps`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  partita ps
  partita ps --json | jq '.[] | {name, sms, memory_used_bytes}'")]
pub struct Ps {
    /// Only the tenant that this process is of, with its TPCs and GPCs in full
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
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

/// Arguments of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Every check runs in a child process with a time limit: some of them hang or crash a broken driver on purpose.

Examples:
  partita doctor
  partita doctor --gpu 1 --json

Exit code: 0 if nothing failed, 1 if a check failed.")]
pub struct Doctor {
    /// The GPU
    #[command(flatten)]
    pub gpu: GpuOption,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `demo`.
#[derive(Debug, Args)]
#[command(after_help = "\
One tenant answers requests, the other fills the GPU. The demo takes under ten seconds.

Examples:
  partita demo
  partita demo --gpu sim:h200 --svg demo.svg")]
pub struct Demo {
    /// The GPU
    #[command(flatten)]
    pub gpu: GpuOption,
    /// Where to write the picture
    #[arg(long, value_name = "FILE", default_value = "partita-demo.svg", value_hint = ValueHint::FilePath)]
    pub svg: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `--routes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RouteArg {
    /// Streams of the lowest priority
    Low,
    /// Streams of the default priority
    Stream,
    /// Streams of the highest priority
    High,
    /// Blocks of 64 to 1024 threads
    Large,
    /// Graphs that are armed anew for each mask
    Graph,
    /// Clusters
    Cluster,
    /// Cooperative launches
    Cooperative,
}

/// Arguments of `prove`.
#[derive(Debug, Args)]
#[command(after_help = "\
Kernels are launched on streams of several priorities, in graphs, in clusters and cooperatively, several masks at a time; each block counts itself at the SM that it runs on. \
It runs in a child process of its own, without MPS.

Examples:
  partita prove
  partita prove --blocks 1000000000 --masks 10000
  partita prove --gpu sim:a100 --seed 7 --json

Exit code: 0 if every block ran inside its set, 1 if one did not, 125 if nothing could be proved.")]
pub struct Prove {
    /// The GPU
    #[command(flatten)]
    pub gpu: GpuOption,
    /// Blocks to run, at least [default: 100 million; 1 million on a simulated GPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub blocks: Option<u64>,
    /// Masks to try, at least [default: 2000; 400 on a simulated GPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub masks: Option<u32>,
    /// The seed of masks and launches: the same seed, the same proof [default: another one each time]
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Only these routes [default: all that the GPU offers]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ROUTES")]
    pub routes: Vec<RouteArg>,
    /// Masks whose launches are in flight together; 1 waits for each
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=32))]
    pub in_flight: Option<u32>,
    /// To prove the proof: every so many masks one TPC too many is enabled
    #[arg(long, value_name = "N", default_value_t = 0, hide = true)]
    pub fault_every: u32,
}

/// Subcommands of `mps`.
#[derive(Debug, Subcommand)]
pub enum Mps {
    /// Start the GPU's service, if it does not run
    Start(MpsGpu),
    /// Stop the GPU's service
    Stop(MpsStop),
    /// Say whether the GPU's service runs, and for whom
    Status(MpsGpu),
}

/// Arguments of `mps start` and `mps status`.
#[derive(Debug, Args)]
pub struct MpsGpu {
    /// The GPU
    #[command(flatten)]
    pub gpu: GpuOption,
}

/// Arguments of `mps stop`.
#[derive(Debug, Args)]
pub struct MpsStop {
    /// The GPU
    #[command(flatten)]
    pub gpu: GpuOption,
    /// Stop it even if programs use it; they lose their work on the GPU
    #[arg(long)]
    pub force: bool,
}

/// Subcommands of `sim`.
#[derive(Debug, Subcommand)]
pub enum Sim {
    /// Print shell lines that put CUDA programs on the simulated GPU
    #[command(after_help = "\
Examples:
  eval \"$(partita sim env)\"
  eval \"$(partita sim env --gpu sim:a100)\" && ./program")]
    Env(SimEnv),
}

/// Arguments of `sim env`.
#[derive(Debug, Args)]
pub struct SimEnv {
    /// The simulated device: sim:h200, sim:a100 or sim:gtx1060-3gb
    #[arg(long, value_name = "GPU", default_value = "sim:h200")]
    pub gpu: String,
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  partita completions bash > ~/.local/share/bash-completion/completions/partita
  partita completions zsh > \"${fpath[1]}/_partita\"
  partita completions fish > ~/.config/fish/completions/partita.fish")]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub shell: ShellArg,
}

/// A shell that completions are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ShellArg {
    /// bash
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  partita man | man -l -
  partita man run | man -l -")]
pub struct Man {
    /// The command whose page it is [default: the page of partita itself]
    pub command: Vec<String>,
}

/// Arguments of `generate`.
#[derive(Debug, Args)]
pub struct Generate {
    /// The directory
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
}

/// Arguments of `internal-job`.
#[derive(Debug, Args)]
pub struct InternalJob {
    /// The job
    pub name: String,
    /// Its parameters as JSON
    pub request: String,
}

/// Arguments of `internal-detach`.
#[derive(Debug, Args)]
pub struct InternalDetach {
    /// The daemon and its arguments
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}
