//! A device file's figures, as written.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::plan::Order;

/// The sources of a section's figures, by the figure's name.
pub(super) type Sources = BTreeMap<String, String>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Figures {
    /// The catalogue's name for it; any name in a user's file.
    pub id: String,
    /// Product name.
    pub name: String,
    pub architecture: String,
    /// `major.minor`.
    pub compute_capability: String,
    /// Remarks, above all if sources disagree.
    #[serde(default)]
    #[allow(dead_code, reason = "documentation in the file")]
    pub note: Vec<String>,
    pub chip: Chip,
    /// Its differences from other devices of its compute capability.
    #[serde(default)]
    pub sm: toml::Table,
    pub memory: Memory,
    pub clocks: Clocks,
    pub copy: Copy,
    pub scheduler: Scheduler,
    pub driver: Driver,
    pub board: Board,
    pub mig: Option<Mig>,
    pub measured: Option<Measured>,
}

/// The units of a chip, and those of the product.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Chip {
    pub sms_per_tpc: u32,
    /// GPCs of the product.
    pub gpcs: u8,
    /// TPCs of a whole GPC of the chip.
    pub tpcs_per_gpc: u8,
    /// TPCs of the product.
    pub tpcs: u16,
    /// The order of `%smid`.
    pub order: Order,
    /// The bits of a launch descriptor's mask.
    pub numbering: NumberingName,
    /// Bits of a GPC, if they are numbered by GPC.
    pub stride: Option<u16>,
    /// Dies of the package; 1 by default.
    pub dies: Option<u16>,
    #[serde(default)]
    pub source: Sources,
}

/// As [`super::plan::Numbering`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum NumberingName {
    Logical,
    GpcMajor,
    GpcMinor,
    TwoDies,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Memory {
    pub capacity_mib: u64,
    pub bandwidth_mb_per_s: u64,
    pub reached_permille: Option<u32>,
    pub sm_mb_per_s: Option<u64>,
    pub bus_bits: u32,
    pub l2_kib: u32,
    pub l2_persisting_kib: u32,
    pub ecc: bool,
    #[serde(default)]
    pub source: Sources,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Clocks {
    /// Highest SM clock.
    pub sm_mhz: u32,
    pub memory_mhz: u32,
    #[serde(default)]
    pub source: Sources,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Copy {
    pub engines: u32,
    /// 0 with no lanes: an integrated GPU.
    pub pcie_generation: u32,
    pub pcie_lanes: u32,
    pub link_mb_per_s: Option<u64>,
    pub local_mb_per_s: Option<u64>,
    pub latency_ns: Option<u64>,
    #[serde(default)]
    pub source: Sources,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scheduler {
    pub task_slots: u32,
    pub priority_greatest: i32,
    pub queues_default: Option<u32>,
    pub queues_max: Option<u32>,
    pub launch_ns: Option<u64>,
    pub kernel_gap_ns: Option<u64>,
    pub block_start_ns: Option<u64>,
    pub block_interval_ps: Option<u64>,
    pub slice_ns: Option<u64>,
    pub switch_ns: Option<u64>,
    pub preempt_ns: Option<u64>,
    #[serde(default)]
    pub source: Sources,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Driver {
    pub version: String,
    /// 1000 × major + 10 × minor.
    pub cuda_version: u32,
    /// `major.minor` of launch descriptors.
    pub qmd_version: String,
    pub stream_mask_offset: u32,
    #[serde(default)]
    pub source: Sources,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Board {
    pub pci_device_id: u16,
    pub pci_subsystem_id: Option<u32>,
    pub power_limit_w: u32,
    #[serde(default)]
    pub source: Sources,
}

/// The profiles of its MIG instances, if it can be divided.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mig {
    pub profiles: Vec<MigProfile>,
    #[serde(default)]
    pub source: Sources,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MigProfile {
    /// The name without `MIG`.
    pub name: String,
    /// The number in `nvidia-smi mig -lgip`.
    pub id: u32,
    /// `NVML_GPU_INSTANCE_PROFILE_*`.
    pub index: u32,
    /// Compute slices.
    pub slices: u32,
    pub sms: u32,
    pub memory_mib: u64,
    /// The most instances of it.
    pub count_max: u32,
    /// The memory slices at which it can begin …
    pub starts: Vec<u32>,
    /// … and how many it has.
    pub size: u32,
}

/// The board without a seed, if it was measured.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Measured {
    /// GPC and bit of each TPC, in logical order.
    pub tpcs: Vec<(u8, u16)>,
    /// GPC, TPC in it, virtual GPC, TPC in that, uGPU, CPC and virtual TPC of each.
    pub places: Vec<(u16, u16, u16, u16, u16, u16, u16)>,
    pub tpc_masks: Vec<u32>,
    #[serde(default)]
    pub source: Sources,
}
