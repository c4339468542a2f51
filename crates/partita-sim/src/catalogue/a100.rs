//! NVIDIA A100 SXM4, 40 GB.

use super::topology;
use crate::control::ControlSpec;
use crate::spec::{
    BoardSpec, ClockSpec, ComputeCapability, CopySpec, DeviceSpec, DriverSpec, MemorySpec, SchedulerSpec,
    SmSpec, StreamMaskLayout, StreamMaskSpec,
};

/// `(gpc, bit in the launch descriptor's mask)` of each TPC, in logical (`%smid`) order.
///
/// The A100 white paper: 108 SMs, 2 to a TPC, up to 8 TPCs to a GPC, 7 or 8 GPCs. (The table of «Hardware Compute
/// Partitioning on NVIDIA GPUs» lists 68 TPCs, more than the part has.) Assumed: 7 GPCs of 8, 8, 8, 8, 8, 7 and 7,
/// round-robin order. Before Hopper the bit is the TPC's logical number.
#[rustfmt::skip]
const TPCS: [(u8, u16); 54] = [
    (0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6),
    (0, 7), (1, 8), (2, 9), (3, 10), (4, 11), (5, 12), (6, 13),
    (0, 14), (1, 15), (2, 16), (3, 17), (4, 18), (5, 19), (6, 20),
    (0, 21), (1, 22), (2, 23), (3, 24), (4, 25), (5, 26), (6, 27),
    (0, 28), (1, 29), (2, 30), (3, 31), (4, 32), (5, 33), (6, 34),
    (0, 35), (1, 36), (2, 37), (3, 38), (4, 39), (5, 40), (6, 41),
    (0, 42), (1, 43), (2, 44), (3, 45), (4, 46), (5, 47), (6, 48),
    (0, 49), (1, 50), (2, 51), (3, 52), (4, 53),
];

/// The catalogue entry.
pub(super) fn spec() -> DeviceSpec {
    DeviceSpec {
        id: "a100",
        name: "NVIDIA A100-SXM4-40GB",
        architecture: "Ampere",
        compute_capability: ComputeCapability::new(8, 0),
        topology: topology(2, &TPCS),
        control: ControlSpec::of(&topology(2, &TPCS)),
        // CUDA C++ Programming Guide, table of technical specifications, compute capability 8.0.
        sm: SmSpec {
            threads_max: 2048,
            blocks_max: 32,
            threads_per_block_max: 1024,
            warp_threads: 32,
            registers: 65_536,
            registers_per_block_max: 65_536,
            registers_per_thread_max: 255,
            register_unit: 256,
            shared_bytes: 164 << 10,
            shared_per_block_bytes: 48 << 10,
            shared_per_block_optin_bytes: 163 << 10,
            shared_reserved_per_block_bytes: 1 << 10,
            shared_unit_bytes: 128,
            cluster_blocks_max: 1,
            fp32_lanes: 64,
        },
        // A100 white paper: 40 GB HBM2, 5120 bits, 1555 GB/s, 40 MB of L2 of which 30 MB can persist.
        memory: MemorySpec {
            capacity_bytes: 40_960 << 20,
            bandwidth_bytes_per_s: 1_555_000_000_000,
            bus_bits: 5120,
            l2_bytes: 40 << 20,
            l2_persisting_bytes: 30 << 20,
            constant_bytes: 64 << 10,
            ecc: true,
        },
        // White paper: boost 1410 MHz, memory 1215 MHz.
        clocks: ClockSpec { sm_khz: 1_410_000, memory_khz: 1_215_000 },
        copy: CopySpec {
            // deviceQuery: 3 copy engines.
            engines: 3,
            // PCIe 4.0 x16 is 31.5 GB/s; bandwidthTest reaches about 25 GB/s.
            link_bytes_per_s: 25_000_000_000,
            // As for H200: 0.85 of half the DRAM bandwidth (assumption).
            local_bytes_per_s: 660_000_000_000,
            latency_ns: 1_500,
        },
        scheduler: SchedulerSpec {
            // 128 resident grids at compute capability 8.0 (CUDA C++ Programming Guide): each holds a slot.
            task_slots: 128,
            queues_default: 8,
            queues_max: 32,
            priority_least: 0,
            priority_greatest: -5,
            ..super::DELAYS
        },
        driver: DriverSpec {
            // The driver on which libsmctrl's CUDA 12.8 offset was tried.
            version: "570.124.06",
            cuda_version: 12_080,
            // Class C6C0 knows V2.3, V2.4 and V3.0; the newest is assumed. The mask sits alike in all three.
            qmd_version: 0x30,
            stream_mask: StreamMaskSpec { offset_bytes: 0x4fc, layout: StreamMaskLayout::EnabledWords4 },
        },
        board: BoardSpec {
            // pci.ids: 10de:20b0 GA100 [A100 SXM4 40GB].
            pci_device_id: 0x20b0,
            pci_subsystem_id: 0x134f_10de,
            pcie_generation: 4,
            pcie_lanes: 16,
            // Data sheet: 400 W.
            power_limit_mw: 400_000,
        },
    }
}
