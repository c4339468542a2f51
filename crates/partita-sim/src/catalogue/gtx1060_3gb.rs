//! NVIDIA GeForce GTX 1060 3GB: one SM per TPC, the device of the partitioning paper's figures 3 and 4.

use super::topology;
use crate::control::ControlSpec;
use crate::spec::{
    BoardSpec, ClockSpec, ComputeCapability, CopySpec, DeviceSpec, DriverSpec, MemorySpec, SchedulerSpec,
    SmSpec, StreamMaskLayout, StreamMaskSpec,
};

/// `(gpc, bit in the launch descriptor's mask)` of each TPC, in logical (`%smid`) order.
///
/// «Hardware Compute Partitioning on NVIDIA GPUs», table II: 9 TPCs in 2 GPCs, one SM each; GP106 has 5 to a GPC.
/// Assumed: 5 and 4, round-robin order. The bit is the TPC's logical number.
const TPCS: [(u8, u16); 9] = [(0, 0), (1, 1), (0, 2), (1, 3), (0, 4), (1, 5), (0, 6), (1, 7), (0, 8)];

/// The catalogue entry.
pub(super) fn spec() -> DeviceSpec {
    DeviceSpec {
        id: "gtx1060-3gb",
        name: "NVIDIA GeForce GTX 1060 3GB",
        architecture: "Pascal",
        compute_capability: ComputeCapability::new(6, 1),
        topology: topology(1, &TPCS),
        control: ControlSpec::of(&topology(1, &TPCS)),
        // CUDA C++ Programming Guide, table of technical specifications, compute capability 6.1.
        sm: SmSpec {
            threads_max: 2048,
            blocks_max: 32,
            threads_per_block_max: 1024,
            warp_threads: 32,
            registers: 65_536,
            registers_per_block_max: 65_536,
            registers_per_thread_max: 255,
            register_unit: 256,
            shared_bytes: 96 << 10,
            shared_per_block_bytes: 48 << 10,
            shared_per_block_optin_bytes: 48 << 10,
            shared_reserved_per_block_bytes: 0,
            shared_unit_bytes: 256,
            cluster_blocks_max: 1,
            fp32_lanes: 128,
        },
        // Product page: 3 GB GDDR5, 192 bits, 192.2 GB/s. nvidia-smi of the 470 series shows 3019 MiB.
        memory: MemorySpec {
            capacity_bytes: 3_019 << 20,
            bandwidth_bytes_per_s: 192_200_000_000,
            bus_bits: 192,
            // deviceQuery: 1572864 bytes.
            l2_bytes: 1_536 << 10,
            l2_persisting_bytes: 0,
            constant_bytes: 64 << 10,
            ecc: false,
        },
        // deviceQuery: 1709 MHz, memory 4004 MHz.
        clocks: ClockSpec { sm_khz: 1_708_500, memory_khz: 4_004_000 },
        copy: CopySpec {
            // deviceQuery: 2 copy engines.
            engines: 2,
            // PCIe 3.0 x16 is 15.8 GB/s; bandwidthTest reaches about 12 GB/s.
            link_bytes_per_s: 12_000_000_000,
            // 0.75 of half the DRAM bandwidth (assumption).
            local_bytes_per_s: 72_000_000_000,
            latency_ns: 2_000,
        },
        scheduler: SchedulerSpec {
            // The partitioning paper, figure 12: 32 task slots.
            task_slots: 32,
            queues_default: 8,
            queues_max: 32,
            // Two priorities on Pascal.
            priority_least: 0,
            priority_greatest: -1,
            ..super::DELAYS
        },
        driver: DriverSpec {
            // The driver on which libsmctrl's CUDA 11.4 offset was tried.
            version: "470.223.02",
            cuda_version: 11_040,
            // Class C1C0 knows V1.7, V2.0 and V2.1; the newest is assumed. The mask sits alike in all three.
            qmd_version: 0x21,
            stream_mask: StreamMaskSpec { offset_bytes: 0x37c, layout: StreamMaskLayout::UpperLower },
        },
        board: BoardSpec {
            // pci.ids: 10de:1c02 GP106 [GeForce GTX 1060 3GB].
            pci_device_id: 0x1c02,
            pci_subsystem_id: 0x11c2_10de,
            pcie_generation: 3,
            pcie_lanes: 16,
            // Product page: 120 W.
            power_limit_mw: 120_000,
        },
    }
}
