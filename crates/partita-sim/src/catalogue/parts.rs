//! What the devices' entries are put together from.

use super::plan::Plan;
use crate::control::ControlSpec;
use crate::spec::{
    BoardSpec, ClockSpec, ComputeCapability, CopySpec, DeviceSpec, DriverSpec, MemorySpec, SchedulerSpec,
    SmSpec, StreamMaskLayout, StreamMaskSpec,
};

/// Delays of the pipeline, alike for all devices until they are measured apart.
///
/// The counts in it are those of no device; each entry sets its own.
pub(super) const DELAYS: SchedulerSpec = SchedulerSpec {
    task_slots: 0,
    queues_default: 0,
    queues_max: 0,
    priority_least: 0,
    priority_greatest: 0,
    // Published launch latencies of a null kernel lie between 2 and 5 µs from call to start; H200 took 3.3 µs for the
    // call alone, part of which overlaps. Assumption: 2 µs in the host interface and front end.
    launch_ns: 2_000,
    // Back-to-back kernels of one stream leave about 1 µs (assumption, agrees with 4 kernels of 190 µs in 779 µs).
    kernel_gap_ns: 1_000,
    // A few hundred cycles from placement to first instruction (assumption).
    block_start_ns: 200,
    // One block per clock of about 2 GHz (assumption).
    block_interval_ps: 500,
    // H200 under time slicing: the slowest request waited 2.02 ms longer than alone.
    slice_ns: 2_000_000,
    // H200 under time slicing: the median request, which came as the other's slice ended, waited 0.31 ms longer than
    // alone, in two experiments. How that divides is an assumption.
    switch_ns: 35_000,
    preempt_ns: 150_000,
};

/// One device, as its data sheets have it.
pub(super) struct Part {
    pub id: &'static str,
    pub name: &'static str,
    pub architecture: &'static str,
    /// Major, minor.
    pub capability: (u8, u8),
    pub plan: Plan,
    pub sm: SmSpec,
    pub memory: MemorySpec,
    pub clocks: ClockSpec,
    /// Copy engines, as deviceQuery counts them.
    pub copy_engines: u32,
    /// Generation and lanes.
    pub pcie: (u32, u32),
    /// Resident grids.
    pub grids: u32,
    pub priority_greatest: i32,
    pub driver: DriverSpec,
    pub pci_device_id: u16,
    pub power_limit_mw: u32,
}

impl Part {
    /// The entry of a board; `seed` as in [`Plan::topology`].
    pub(super) fn spec(self, seed: u64) -> DeviceSpec {
        let topology = self.plan.topology(seed);
        let control = ControlSpec::of(&topology);
        let (pcie_generation, pcie_lanes) = self.pcie;
        let bandwidth = self.memory.bandwidth_bytes_per_s;
        DeviceSpec {
            id: self.id,
            name: self.name,
            architecture: self.architecture,
            compute_capability: ComputeCapability::new(self.capability.0, self.capability.1),
            topology,
            control,
            sm: self.sm,
            memory: self.memory,
            clocks: self.clocks,
            copy: CopySpec {
                engines: self.copy_engines,
                // A lane carries 1 GB/s in generation 3 and twice that in each later one; an integrated GPU copies in its memory.
                link_bytes_per_s: match pcie_lanes {
                    0 => bandwidth / 200 * 85,
                    lanes => (u64::from(lanes) * 800_000_000) << (pcie_generation - 3),
                },
                local_bytes_per_s: bandwidth / 200 * 85,
                latency_ns: 2_000,
            },
            scheduler: SchedulerSpec {
                task_slots: self.grids,
                // One hardware queue before Hyper-Q, which came with compute capability 3.5.
                queues_default: if self.capability < (3, 5) { 1 } else { 8 },
                queues_max: if self.capability < (3, 5) { 1 } else { 32 },
                priority_least: 0,
                priority_greatest: self.priority_greatest,
                ..DELAYS
            },
            driver: self.driver,
            board: BoardSpec {
                pci_device_id: self.pci_device_id,
                pci_subsystem_id: 0x10de,
                pcie_generation,
                pcie_lanes,
                power_limit_mw: self.power_limit_mw,
            },
        }
    }
}

/// A driver: its version, CUDA's, the version byte of its launch descriptors, and the offset of a stream's mask. The offsets are those
/// that libsmctrl and its forks list for this CUDA version, and the driver versions those that the entries were tried on.
pub(super) const fn driver(
    version: &'static str,
    cuda_version: u32,
    qmd_version: u8,
    stream_offset_bytes: u32,
) -> DriverSpec {
    let layout =
        if cuda_version < 12_000 { StreamMaskLayout::UpperLower } else { StreamMaskLayout::EnabledWords4 };
    DriverSpec {
        version,
        cuda_version,
        qmd_version,
        stream_mask: StreamMaskSpec { offset_bytes: stream_offset_bytes, layout },
    }
}

/// Memory: capacity in MiB, bandwidth in MB/s, width in bits, L2 in KiB, the part of it that can persist in KiB, ECC.
pub(super) const fn memory(
    capacity_mib: u64,
    bandwidth_mb_per_s: u64,
    bus_bits: u32,
    l2_kib: u32,
    l2_persisting_kib: u32,
    ecc: bool,
) -> MemorySpec {
    MemorySpec {
        capacity_bytes: capacity_mib << 20,
        bandwidth_bytes_per_s: bandwidth_mb_per_s * 1_000_000,
        bus_bits,
        l2_bytes: l2_kib << 10,
        l2_persisting_bytes: l2_persisting_kib << 10,
        constant_bytes: 64 << 10,
        ecc,
    }
}

/// The highest SM clock and the memory clock, in MHz.
pub(super) const fn clocks(sm_mhz: u32, memory_mhz: u32) -> ClockSpec {
    ClockSpec { sm_khz: sm_mhz * 1_000, memory_khz: memory_mhz * 1_000 }
}
