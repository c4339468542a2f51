//! Kepler: one SM per TPC.

use super::parts::{Part, clocks, driver, memory};
use super::plan::{Numbering, Order, Plan};
use super::sm;
use crate::spec::DeviceSpec;

/// NVIDIA GeForce GTX 680: the first generation, with V01_06 descriptors.
pub(super) fn gtx_680(seed: u64) -> DeviceSpec {
    Part {
        id: "gtx-680",
        name: "NVIDIA GeForce GTX 680",
        architecture: "Kepler",
        capability: (3, 0),
        // GTX 680 white paper: GK104, 4 GPCs of 2 SMX.
        plan: Plan {
            sms_per_tpc: 1,
            gpcs: 4,
            tpcs_per_gpc: 2,
            tpcs: 8,
            order: Order::RoundRobin,
            numbering: Numbering::Logical,
        },
        sm: sm::CC_3_0,
        // White paper: 2 GB GDDR5, 256 bits, 192.26 GB/s, 512 KB of L2.
        memory: memory(2_048, 192_260, 256, 512, 0, false),
        // White paper: boost 1058 MHz, 6008 MHz data rate.
        clocks: clocks(1_058, 3_004),
        copy_engines: 1,
        pcie: (3, 16),
        grids: 16,
        // Stream priorities came with compute capability 3.5.
        priority_greatest: 0,
        // Class A0C0 knows V0.6, V1.6 and V1.7; V1.6, which no other class knows, is assumed.
        driver: driver("418.113", 10_010, 0x16, 0x244),
        pci_device_id: 0x1180,
        // White paper: 195 W.
        power_limit_mw: 195_000,
    }
    .spec(seed)
}

/// NVIDIA Tesla K40: the oldest compute capability of «Hardware Compute Partitioning on NVIDIA GPUs».
pub(super) fn tesla_k40(seed: u64) -> DeviceSpec {
    Part {
        id: "tesla-k40",
        name: "Tesla K40c",
        architecture: "Kepler",
        capability: (3, 5),
        // GK110 white paper: 15 SMX. Assumed: 5 GPCs of 3.
        plan: Plan {
            sms_per_tpc: 1,
            gpcs: 5,
            tpcs_per_gpc: 3,
            tpcs: 15,
            order: Order::RoundRobin,
            numbering: Numbering::Logical,
        },
        sm: sm::CC_3_5,
        // Board specification BD-06902: 12 GB GDDR5, 384 bits, 288 GB/s; nvidia-smi shows 11441 MiB with ECC. 1.5 MB of L2.
        memory: memory(11_441, 288_000, 384, 1_536, 0, true),
        // Board specification: 745 MHz, memory 3.0 GHz.
        clocks: clocks(745, 3_004),
        copy_engines: 2,
        pcie: (3, 16),
        grids: 32,
        // Two priorities up to Pascal.
        priority_greatest: -1,
        // Class A1C0 knows V0.6, which has no mask, and V1.7.
        driver: driver("470.223.02", 11_040, 0x17, 0x37c),
        pci_device_id: 0x1024,
        // Board specification: 235 W.
        power_limit_mw: 235_000,
    }
    .spec(seed)
}
