//! The arguments of `partita mig`.

use clap::{ArgGroup, Args, Subcommand, ValueHint};

use partita_console::GpusOption;

/// Subcommands of `mig`.
#[derive(Debug, Subcommand)]
pub enum Mig {
    /// Show the profiles, the instances and who uses them
    Show(MigShow),
    /// Show what would change to get some instances; nothing changes
    Plan(MigChangeArgs),
    /// Create and destroy instances until exactly the wanted ones are there
    Apply(MigApply),
    /// Destroy instances
    Destroy(MigDestroy),
}

/// Arguments of `mig show`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  partita mig show
  partita mig show --gpu 0,1 --json")]
pub struct MigShow {
    /// The GPUs
    #[command(flatten)]
    pub gpu: GpusOption,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Which instances are wanted.
#[derive(Debug, Args)]
pub struct MigWanted {
    /// The profiles, one for each instance: 3g,1g,1g, or full names as 3g.71gb,1g.18gb+me
    ///
    /// 3g is the profile of three compute slices with the least memory. `partita mig show` lists
    /// the profiles.
    #[arg(long, value_name = "PROFILE[,PROFILE]…", value_delimiter = ',', value_parser = profile)]
    pub want: Option<Vec<String>>,
    /// A file in the form of NVIDIA's mig-parted; its `devices` choose among the GPUs of --gpu, or
    /// among all without that
    #[arg(long, value_name = "FILE", requires = "selected", conflicts_with = "want", value_hint = ValueHint::FilePath)]
    pub config_file: Option<String>,
    /// The name under the file's `mig-configs`
    #[arg(long, value_name = "NAME", requires = "config_file")]
    pub selected: Option<String>,
}

/// Arguments of `mig plan`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("wanted").args(["want", "config_file"]).required(true))]
#[command(after_help = "\
Examples:
  partita mig plan --want 3g,1g,1g
  partita mig plan --config-file config.yaml --selected all-balanced

Instances that are wanted and in place stay. Instances with clients are never touched.")]
pub struct MigChangeArgs {
    /// The GPUs
    #[command(flatten)]
    pub gpu: GpusOption,
    /// The instances
    #[command(flatten)]
    pub wanted: MigWanted,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `mig apply`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("target").args(["want", "config_file", "restore"]).required(true))]
#[command(after_help = "\
Examples:
  sudo partita mig apply --want 3g,1g,1g
  sudo partita mig apply --config-file config.yaml --selected all-balanced
  sudo partita mig apply --restore

Done twice, it changes nothing the second time. If a step fails, the instances from before are restored. \
After an interruption the same command continues.
It never turns MIG mode on or off, and says what an administrator has to type.")]
pub struct MigApply {
    /// The GPUs
    #[command(flatten)]
    pub gpu: GpusOption,
    /// The instances
    #[command(flatten)]
    pub wanted: MigWanted,
    /// Restore the instances from before a change that was interrupted
    #[arg(long, conflicts_with_all = ["want", "config_file"])]
    pub restore: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `mig destroy`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").args(["instances", "all"]).required(true))]
#[command(after_help = "\
Examples:
  sudo partita mig destroy 2
  sudo partita mig destroy MIG-5c89852c-d268-c3f3-1b07-005d5ae1dc3f
  sudo partita mig destroy --all")]
pub struct MigDestroy {
    /// The GPUs
    #[command(flatten)]
    pub gpu: GpusOption,
    /// GPU instances by number, or by the MIG-… of their devices
    #[arg(value_name = "INSTANCE", value_parser = instance)]
    pub instances: Vec<String>,
    /// Every instance
    #[arg(long, conflicts_with = "instances")]
    pub all: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The form alone: which profiles a GPU has is known later.
fn profile(text: &str) -> Result<String, String> {
    let rest = text.trim().trim_start_matches(|digit: char| digit.is_ascii_digit());
    match rest.len() < text.trim().len() && rest.starts_with(['g', 'G', 'c', 'C']) {
        true => Ok(text.to_owned()),
        false => Err("a profile is written 3g, 1g+me or 3g.71gb; `partita mig show` lists them".to_owned()),
    }
}

fn instance(text: &str) -> Result<String, String> {
    match text.parse::<u32>().is_ok() || text.to_ascii_uppercase().starts_with("MIG-") {
        true => Ok(text.to_owned()),
        false => Err("an instance is a number or MIG-…; `partita mig show` lists them".to_owned()),
    }
}
