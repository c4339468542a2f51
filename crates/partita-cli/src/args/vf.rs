//! The arguments of `partita vf`.

use clap::{ArgGroup, Args, Subcommand};
use partita::core::vf::Policy;

/// Subcommands of `vf`.
#[derive(Debug, Subcommand)]
pub enum Vf {
    /// Show the devices with virtual functions or vGPUs, and who uses them
    List(VfList),
    /// Show what would be written to get some functions or vGPUs; nothing changes
    Plan(VfPlan),
    /// Create functions or vGPUs until exactly the wanted ones are there
    Create(VfCreate),
    /// Make functions or vGPUs ready for virtual machines, and print the lines for libvirt and QEMU
    Assign(VfAssign),
    /// Destroy vGPUs, or disable all functions
    Destroy(VfDestroy),
}

/// Which device.
#[derive(Debug, Args)]
pub struct DeviceOption {
    /// The PCI address of the device, as 0000:1b:00.0; the only one without this option
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub device: Option<String>,
}

/// Arguments of `vf list`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  partita vf list
  partita vf list --json")]
pub struct VfList {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What is wanted.
#[derive(Debug, Args)]
pub struct VfWanted {
    /// So many functions, each an equal part of the device (SR-IOV without vGPUs)
    #[arg(long, value_name = "NUMBER")]
    pub count: Option<u16>,
    /// The types of vGPUs, one for each: 12Q,12Q, or full names, or the driver's numbers
    #[arg(long, value_name = "TYPE[,TYPE]…", value_delimiter = ',', value_parser = vgpu_type)]
    pub want: Option<Vec<String>>,
    /// vGPUs whose memory stands in this ratio, of several sizes if it must be: 2:1:1
    #[arg(long, value_name = "N:N[:N]…", value_delimiter = ':', value_parser = ratio)]
    pub ratio: Option<Vec<u64>>,
    /// How NVIDIA's driver divides time between vGPUs: best-effort, equal or, for
    /// vGPUs of one size, fixed
    #[arg(long, value_name = "POLICY", value_parser = policy)]
    pub scheduler: Option<Policy>,
    /// The length of its time slices, in microseconds
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    pub time_slice: Option<u32>,
}

/// Arguments of `vf plan`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("wanted").args(["count", "want", "ratio"]).required(true))]
#[command(after_help = "\
Examples:
  partita vf plan --count 4
  partita vf plan --device 0000:41:00.0 --want 12Q,12Q

vGPUs that are wanted and in place stay. What a virtual machine holds is never touched.")]
pub struct VfPlan {
    /// The device
    #[command(flatten)]
    pub device: DeviceOption,
    /// The parts
    #[command(flatten)]
    pub wanted: VfWanted,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `vf create`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("target").args(["count", "want", "ratio", "restore"]).required(true))]
#[command(after_help = "\
Examples:
  sudo partita vf create --count 4
  sudo partita vf create --device 0000:41:00.0 --want 12Q,12Q
  sudo partita vf create --restore

Done twice, it changes nothing the second time. If a write fails, what was before is restored. After an \
interruption the same command continues.")]
pub struct VfCreate {
    /// The device
    #[command(flatten)]
    pub device: DeviceOption,
    /// The parts
    #[command(flatten)]
    pub wanted: VfWanted,
    /// Restore what there was before a change that was interrupted
    #[arg(long, conflicts_with_all = ["count", "want", "ratio"])]
    pub restore: bool,
    /// How to print, and whether to change anything
    #[command(flatten)]
    pub output: VfOutput,
}

/// How a change is made and printed.
#[derive(Debug, Args)]
pub struct VfOutput {
    /// Show the writes and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `vf assign`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sudo partita vf assign 0000:41:00.4
  sudo partita vf assign 0000:41:00.4 --release

A function of plain SR-IOV is bound to vfio-pci. NVIDIA's driver gives its functions and vGPUs to virtual \
machines itself.")]
pub struct VfAssign {
    /// The device
    #[command(flatten)]
    pub device: DeviceOption,
    /// Functions by PCI address, or vGPUs by UUID
    #[arg(value_name = "NAME", required = true, value_parser = part)]
    pub names: Vec<String>,
    /// Give functions back to their own driver
    #[arg(long)]
    pub release: bool,
    /// How to print, and whether to change anything
    #[command(flatten)]
    pub output: VfOutput,
}

/// Arguments of `vf destroy`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").args(["names", "all"]).required(true))]
#[command(after_help = "\
Examples:
  sudo partita vf destroy 0000:41:00.4
  sudo partita vf destroy aa618089-8b16-4d01-a136-25a0f3c73123
  sudo partita vf destroy --all

SR-IOV without vGPUs disables its functions only all together.")]
pub struct VfDestroy {
    /// The device
    #[command(flatten)]
    pub device: DeviceOption,
    /// vGPUs by UUID, or by the PCI address of their function
    #[arg(value_name = "NAME", value_parser = part)]
    pub names: Vec<String>,
    /// Every vGPU, and every function of plain SR-IOV
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
    /// How to print, and whether to change anything
    #[command(flatten)]
    pub output: VfOutput,
}

/// The form alone: which types a device has is known later.
fn vgpu_type(text: &str) -> Result<String, String> {
    match text.trim().is_empty() {
        true => Err("a type is empty; `partita vf list` lists them".to_owned()),
        false => Ok(text.to_owned()),
    }
}

fn ratio(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|&number| number > 0);
    number.ok_or_else(|| "a ratio is of numbers from 1 on, as 2:1:1".to_owned())
}

fn policy(text: &str) -> Result<Policy, String> {
    text.parse().map_err(|()| format!("use one of {}", Policy::ALL.map(Policy::word).join(", ")))
}

fn is_hex(text: &str, digits: std::ops::RangeInclusive<usize>) -> bool {
    digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn address(text: &str) -> Result<String, String> {
    match text.split([':', '.']).collect::<Vec<_>>()[..] {
        [domain, bus, device, function]
            if is_hex(domain, 4..=8)
                && is_hex(bus, 2..=2)
                && is_hex(device, 2..=2)
                && is_hex(function, 1..=1) =>
        {
            Ok(text.to_owned())
        }
        _ => Err("a PCI address is written 0000:1b:00.0; `partita vf list` lists them".to_owned()),
    }
}

/// A function or a vGPU.
fn part(text: &str) -> Result<String, String> {
    let is_uuid = || is_hex(&text.replace('-', ""), 32..=32);
    address(text).or_else(|_| match is_uuid() {
        true => Ok(text.to_owned()),
        false => {
            Err("name a PCI address, as 0000:1b:00.4, or a UUID; `partita vf list` lists them".to_owned())
        }
    })
}
