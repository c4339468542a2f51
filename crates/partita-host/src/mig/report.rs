//! What the commands report on MIG.

use std::fmt;

use partita_core::Count;
use serde::{Deserialize, Serialize};

/// Whether MIG is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MigState {
    /// The GPU has no MIG.
    Unsupported,
    /// It is off.
    Off,
    /// It is off until the GPU's next reset.
    OnAfterReset,
    /// It is on.
    On,
    /// It is on until the GPU's next reset.
    OffAfterReset,
}

impl fmt::Display for MigState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unsupported => "not supported",
            Self::Off => "off",
            Self::OnAfterReset => "off, and on after the next reset",
            Self::On => "on",
            Self::OffAfterReset => "on, and off after the next reset",
        })
    }
}

/// What a GPU offers and has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigReport {
    /// The GPU, as messages name it.
    pub gpu: String,
    /// `GPU-…`.
    pub uuid: String,
    /// Whether MIG is on.
    pub mode: MigState,
    /// What an administrator must do before instances can be created.
    pub remedy: Option<String>,
    /// What instances can be.
    pub profiles: Vec<ProfileRow>,
    /// The instances; `None` if only root may list them.
    pub instances: Option<Vec<InstanceRow>>,
    /// Whether a change was interrupted and is not complete.
    pub is_interrupted: bool,
}

/// A kind of instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileRow {
    /// The name, as `3g.71gb`.
    pub name: String,
    /// NVML's number.
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    /// SMs.
    pub sms: u32,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// The most instances of it.
    pub count_max: u32,
    /// Where instances can lie: first memory slice and number of slices, as `4:4`.
    pub placements: Vec<String>,
}

/// A GPU instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceRow {
    /// Its number.
    pub gpu_instance: u32,
    /// The name of its profile.
    pub profile: String,
    /// Where it lies.
    pub placement: String,
    /// Its compute instances.
    pub compute_instances: Vec<ComputeRow>,
}

/// A compute instance, which programs see as a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeRow {
    /// Its number.
    pub compute_instance: u32,
    /// Its compute slices.
    pub slices: u32,
    /// `MIG-…`.
    pub uuid: String,
    /// The processes with contexts on it.
    pub processes: Vec<u32>,
    /// Whether a `partita run --mig` has it.
    pub is_taken: bool,
}

impl InstanceRow {
    /// Whether it must stay as it is.
    pub(crate) fn has_clients(&self) -> bool {
        self.compute_instances.iter().any(|one| one.is_taken || !one.processes.is_empty())
    }
}

/// A change, planned or made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigChange {
    /// The GPU, as messages name it.
    pub gpu: String,
    /// What an administrator must do before a plan can be carried out.
    pub remedy: Option<String>,
    /// The instances that stay.
    pub kept: Vec<InstanceRow>,
    /// The steps, in order.
    pub steps: Vec<StepRow>,
    /// Whether the steps were done.
    pub is_applied: bool,
    /// Whether it completed, undid or replaced a change that was interrupted.
    pub is_continued: bool,
}

/// One call of NVML.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum StepRow {
    /// Destroy a compute instance.
    DestroyComputeInstance {
        /// Its GPU instance.
        gpu_instance: u32,
        /// Its number.
        compute_instance: u32,
        /// The profile of the GPU instance.
        profile: String,
    },
    /// Destroy a GPU instance.
    DestroyGpuInstance {
        /// Its number.
        gpu_instance: u32,
        /// Its profile.
        profile: String,
        /// Where it lies.
        placement: String,
    },
    /// Create a GPU instance.
    CreateGpuInstance {
        /// Its profile.
        profile: String,
        /// Where it lies.
        placement: String,
    },
    /// Create a compute instance.
    CreateComputeInstance {
        /// Where its GPU instance lies.
        placement: String,
        /// Its compute slices.
        slices: u32,
    },
}

impl fmt::Display for StepRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DestroyComputeInstance { gpu_instance, compute_instance, profile } => {
                write!(f, "destroy compute instance {compute_instance} of {gpu_instance} ({profile})")
            }
            Self::DestroyGpuInstance { gpu_instance, profile, placement } => {
                write!(f, "destroy GPU instance {gpu_instance} ({profile} at {placement})")
            }
            Self::CreateGpuInstance { profile, placement } => {
                write!(f, "create GPU instance {profile} at {placement}")
            }
            Self::CreateComputeInstance { placement, slices } => {
                let slices = Count(*slices, "slice");
                write!(f, "create the compute instance at {placement} ({slices})")
            }
        }
    }
}
