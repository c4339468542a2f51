//! A device: the numbers of the model and the reported identity.

use partita_core::Topology;

use crate::control::ControlSpec;

/// All data of one device for the model and the simulated driver.
///
/// Plain data: [`crate::catalogue`] builds it, tests may change any field.
#[derive(Clone, Debug)]
pub struct DeviceSpec {
    /// Catalogue name, the `NAME` of `sim:NAME`.
    pub id: &'static str,
    /// Product name exactly as `nvmlDeviceGetName` and `cuDeviceGetName` print it.
    pub name: &'static str,
    /// Architecture's name.
    pub architecture: &'static str,
    pub compute_capability: ComputeCapability,
    /// GPCs and TPCs: logical order and physical (QMD) numbers after floorsweeping.
    pub topology: Topology,
    /// The places of TPCs in the kernel driver's control interface.
    pub control: ControlSpec,
    /// Limits of one SM.
    pub sm: SmSpec,
    /// Device memory and the paths to it.
    pub memory: MemorySpec,
    /// Clock rates reported.
    pub clocks: ClockSpec,
    /// Copy engines and the link to the host.
    pub copy: CopySpec,
    /// The work distributor and its delays.
    pub scheduler: SchedulerSpec,
    /// The driver that the simulated device comes with.
    pub driver: DriverSpec,
    /// Bus and board identity reported.
    pub board: BoardSpec,
    /// The profiles of MIG instances; `None` for a device that cannot be divided.
    pub mig: Option<Vec<MigSpec>>,
}

/// A profile of MIG instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigSpec {
    /// `NVML_GPU_INSTANCE_PROFILE_*`, by which NVML is asked for it.
    pub index: u32,
    /// The profile.
    pub profile: partita_core::mig::Profile,
}

impl DeviceSpec {
    /// The device of a MIG instance: TPCs of whole GPCs first, and as many eighths of the memory
    /// bandwidth as the instance has memory slices.
    ///
    /// # Errors
    /// No TPC is left.
    pub fn part(&self, profile: &partita_core::mig::Profile) -> Result<Self, partita_core::TopologyError> {
        let eighths = profile.slots.first().map_or(8, |slot| slot.size);
        let mut part = self.with_tpcs(profile.sms / self.topology.sms_per_tpc())?;
        part.memory.capacity_bytes = profile.memory_mib << 20;
        part.memory.bandwidth_bytes_per_s = self.memory.bandwidth_bytes_per_s / 8 * u64::from(eighths);
        part.mig = None;
        Ok(part)
    }

    /// The device with this many of its TPCs, whole GPCs first.
    ///
    /// # Errors
    /// No TPC is left.
    pub fn with_tpcs(&self, tpcs: u32) -> Result<Self, partita_core::TopologyError> {
        let mut order: Vec<_> = self.topology.tpcs().iter().enumerate().collect();
        order.sort_by_key(|(logical, tpc)| (tpc.gpc, *logical));
        let mut kept = order[..(tpcs as usize).min(order.len())].to_vec();
        kept.sort_by_key(|(logical, _)| *logical);
        let tpcs: Vec<_> = kept.into_iter().map(|(_, tpc)| *tpc).collect();
        Ok(Self { topology: Topology::new(self.topology.sms_per_tpc(), tpcs)?, ..self.clone() })
    }
}

/// Compute capability `major.minor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeCapability {
    /// Major number.
    pub major: u8,
    /// Minor number.
    pub minor: u8,
}

/// Resources of one SM and their granularity for blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SmSpec {
    /// Resident threads at most.
    pub threads_max: u32,
    /// Resident blocks at most.
    pub blocks_max: u32,
    /// Threads of one block at most.
    pub threads_per_block_max: u32,
    /// Threads of a warp; a block takes whole warps.
    pub warp_threads: u32,
    /// 32-bit registers.
    pub registers: u32,
    /// Registers of one block at most.
    pub registers_per_block_max: u32,
    /// Registers of one thread at most.
    pub registers_per_thread_max: u32,
    /// Registers of a warp are a multiple of this.
    pub register_unit: u32,
    /// Shared memory of the SM for blocks, in bytes.
    pub shared_bytes: u32,
    /// Shared memory of one block without opting in, in bytes.
    pub shared_per_block_bytes: u32,
    /// Shared memory of one block after opting in, in bytes.
    pub shared_per_block_optin_bytes: u32,
    /// Shared memory of each block for the system, in bytes.
    pub shared_reserved_per_block_bytes: u32,
    /// Shared memory is a multiple of this, in bytes.
    pub shared_unit_bytes: u32,
    /// Largest cluster in blocks (with the non-portable attribute); 1 without clusters.
    pub cluster_blocks_max: u32,
    /// FP32 lanes ("CUDA cores"), reported only.
    pub fp32_lanes: u32,
}

/// Device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySpec {
    /// Capacity that NVML and the driver report as total, in bytes.
    pub capacity_bytes: u64,
    /// DRAM bandwidth in bytes per second, by the vendor.
    pub bandwidth_bytes_per_s: u64,
    /// Share of it that kernels reach, in thousandths.
    pub reached_permille: u32,
    /// The draw of one SM alone, in bytes per second.
    pub sm_bytes_per_s: u64,
    /// Width of the DRAM bus in bits.
    pub bus_bits: u32,
    /// L2 cache in bytes.
    pub l2_bytes: u32,
    /// Largest part of L2 for persisting accesses, in bytes; 0 if unsupported.
    pub l2_persisting_bytes: u32,
    /// Constant memory, in bytes.
    pub constant_bytes: u32,
    /// Whether ECC is on.
    pub ecc: bool,
}

/// Clock rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSpec {
    /// Highest SM clock in kHz (`CU_DEVICE_ATTRIBUTE_CLOCK_RATE`).
    pub sm_khz: u32,
    /// Memory clock in kHz (`CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE`).
    pub memory_khz: u32,
}

/// Copy engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySpec {
    /// Asynchronous copy engines (`CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT`).
    pub engines: u32,
    /// Host to device and device to host, each direction, in bytes per second.
    pub link_bytes_per_s: u64,
    /// A copy inside device memory by one engine, payload bytes per second.
    pub local_bytes_per_s: u64,
    /// Time from issue to the first byte, in nanoseconds.
    pub latency_ns: u64,
}

/// The scheduling pipeline: slots, queues and delays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerSpec {
    /// Kernels that the work distributor holds at once (its task table).
    pub task_slots: u32,
    /// Hardware queues a process gets by default (`CUDA_DEVICE_MAX_CONNECTIONS`).
    pub queues_default: u32,
    /// Hardware queues a process can get at most.
    pub queues_max: u32,
    /// Stream priorities, CUDA's numbering: the least urgent.
    pub priority_least: i32,
    /// Stream priorities, CUDA's numbering: the most urgent (numerically lowest).
    pub priority_greatest: i32,
    /// From submission of a kernel to an idle stream to the task management unit, in nanoseconds.
    pub launch_ns: u64,
    /// From the end of a kernel to the arrival of the next one queued on its stream, in
    /// nanoseconds.
    pub kernel_gap_ns: u64,
    /// From a block's placement to its first instruction, in nanoseconds.
    pub block_start_ns: u64,
    /// The distributor places one block per this time, in picoseconds.
    pub block_interval_ps: u64,
    /// Time slice of a group while another one waits, in nanoseconds.
    pub slice_ns: u64,
    /// Time in which no group runs when the GPU turns from one to another, in nanoseconds.
    pub switch_ns: u64,
    /// Further time for saving the running blocks of the group that stops, and again for restoring
    /// those of the group that continues, in nanoseconds.
    pub preempt_ns: u64,
}

/// Driver and undocumented layouts simulated with the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverSpec {
    /// Driver version string as NVML prints it.
    pub version: &'static str,
    /// CUDA driver API version, `1000 * major + 10 * minor`.
    pub cuda_version: u32,
    /// Version byte of the launch descriptors: `major << 4 | minor`.
    pub qmd_version: u8,
    /// The place of the TPC mask in the stream structure.
    pub stream_mask: StreamMaskSpec,
}

/// The TPC mask inside the driver's private stream structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamMaskSpec {
    /// Byte offset from `*(char **)CUstream`.
    pub offset_bytes: u32,
    /// The layout of the words there.
    pub layout: StreamMaskLayout,
}

/// The layout of a stream's TPC mask. Set bits disable, logical numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamMaskLayout {
    /// `{u32 upper; u32 lower}`: CUDA 8.0 to 11.8.
    UpperLower,
    /// `{u32 enabled; u32 mask[4]}`: CUDA 12.0 and later.
    EnabledWords4,
}

/// Bus and board identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoardSpec {
    /// PCI device id (NVIDIA's vendor id is 0x10de).
    pub pci_device_id: u16,
    /// PCI subsystem id: vendor in the low half.
    pub pci_subsystem_id: u32,
    pub pcie_generation: u32,
    pub pcie_lanes: u32,
    /// Default power limit in milliwatts.
    pub power_limit_mw: u32,
}

impl ComputeCapability {
    /// `major.minor` from its two numbers.
    #[must_use]
    pub const fn new(major: u8, minor: u8) -> Self {
        Self { major, minor }
    }
}

impl core::fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl DeviceSpec {
    /// SMs of the device.
    #[must_use]
    pub fn sm_count(&self) -> u32 {
        self.topology.sm_count()
    }

    /// TPCs of the device.
    #[must_use]
    pub fn tpc_count(&self) -> u32 {
        self.topology.tpc_count()
    }
}
