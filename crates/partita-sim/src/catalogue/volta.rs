//! Volta: two SMs per TPC, as in every later generation.

use super::parts::{Part, clocks, driver, memory};
use super::plan::{Numbering, Order, Plan};
use super::sm;
use crate::spec::DeviceSpec;

/// NVIDIA TITAN V: the device of the partitioning paper's case study.
pub(super) fn titan_v(seed: u64) -> DeviceSpec {
    Part {
        id: "titan-v",
        name: "NVIDIA TITAN V",
        architecture: "Volta",
        capability: (7, 0),
        // V100 white paper: GV100, 6 GPCs of 7 TPCs of 2 SMs, 80 SMs here: 40 TPCs. Table II of the partitioning paper has 80.
        plan: Plan {
            sms_per_tpc: 2,
            gpcs: 6,
            tpcs_per_gpc: 7,
            tpcs: 40,
            order: Order::RoundRobin,
            numbering: Numbering::Logical,
        },
        sm: sm::CC_7_0,
        // Product page: 12 GB HBM2, 3072 bits, 652.8 GB/s, 4.5 MB of L2; nvidia-smi shows 12066 MiB.
        memory: memory(12_066, 652_800, 3072, 4_608, 0, false),
        // Product page: boost 1455 MHz; memory 850 MHz.
        clocks: clocks(1_455, 850),
        copy_engines: 7,
        pcie: (3, 16),
        grids: 128,
        priority_greatest: -5,
        // Class C3C0 knows V2.2 alone.
        driver: driver("545.29.06", 12_030, 0x22, 0x49c),
        pci_device_id: 0x1d81,
        // Product page: 250 W.
        power_limit_mw: 250_000,
    }
    .spec(seed)
}

/// NVIDIA Jetson AGX Xavier: an integrated GPU, with an aarch64 driver's stream structure.
pub(super) fn xavier(seed: u64) -> DeviceSpec {
    Part {
        id: "xavier",
        name: "Xavier",
        architecture: "Volta",
        capability: (7, 2),
        // Technical brief: 512 lanes in 8 SMs, so 4 TPCs, of one GPC. Table II of the partitioning paper has 8 TPCs.
        plan: Plan {
            sms_per_tpc: 2,
            gpcs: 1,
            tpcs_per_gpc: 4,
            tpcs: 4,
            order: Order::RoundRobin,
            numbering: Numbering::Logical,
        },
        sm: sm::CC_7_2,
        // Data sheet: 32 GB LPDDR4x, 256 bits, 136.5 GB/s, shared with the CPU; deviceQuery shows 31920 MB, 512 KB of L2.
        memory: memory(31_920, 136_500, 256, 512, 0, false),
        // Data sheet: 1377 MHz; memory 2133 MHz.
        clocks: clocks(1_377, 2_133),
        copy_engines: 1,
        pcie: (0, 0),
        grids: 16,
        priority_greatest: -5,
        // Class C3C0 knows V2.2 alone. Jetson Linux's release stands for the driver's: the board has no NVML.
        driver: driver("32.7.1", 10_020, 0x22, 0x24c),
        // On no PCI bus.
        pci_device_id: 0,
        // Data sheet: up to 30 W.
        power_limit_mw: 30_000,
    }
    .spec(seed)
}
